"""Prompts: from a file, or the few that come with starspec.

A file is UTF-8, with or without a byte-order mark, and has one JSON object a line:
`{"id": str, "category": str, "turns": [str, ...], "reference": str}`; other keys are ignored. Only measurements that
grade answers need the reference, which others ignore in any form.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from starspec.config import ModelConfig
from starspec.errors import ConfigError
from starspec.json_text import parse_json
from starspec.models.loading.checks import context_length
from starspec.models.loading.tokenizer import load_tokenizer, prompt_ids_of_chat

T = TypeVar("T")

CONTINUED = "plain"  # category of text that a model is to continue; everything else is asked in a chat


class _Line(msgspec.Struct):
    turns: Annotated[list[str], Meta(min_length=1)]
    id: str = ""
    category: str = ""
    reference: Any = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One entry. Most measurements ask its first turn only."""

    name: str  # unique within its file
    category: str
    text: str  # of the first turn
    later_turns: tuple[str, ...] = ()
    reference: str | None = None  # what an answer is compared with; None = unknown


def own_prompts() -> list[Prompt]:
    """The prompts that come with starspec, of our own writing: text, questions, arithmetic, code."""
    return _parse(files("starspec.harness").joinpath("prompts.jsonl").read_bytes(), "prompts.jsonl")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, in its order.

    Raises: ConfigError naming the file, and the line that cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"prompts '{path}' cannot be read: {error.strerror}") from error
    return _parse(content, str(path))


def spread(entries: Sequence[T], num: int) -> list[T]:
    """`num` of the entries, evenly over all, so that every category is represented. All, if there are fewer."""
    if num >= len(entries):
        return list(entries)
    return [entries[index * len(entries) // num] for index in range(num)]


def prompt_token_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The prompt tokens: text to continue as it is, a question in the chat template if the model has one.

    Args:
        tokenizer: the target's.
    """
    if prompt.category == CONTINUED or not tokenizer.chat_template:
        return list(tokenizer.encode(prompt.text))
    return prompt_ids_of_chat(tokenizer, [{"role": "user", "content": prompt.text}])


def fitting_prompts(tokenizer: Any, prompts: Sequence[Prompt], max_tokens: int) -> list[Prompt]:
    """The prompts of at most `max_tokens` tokens, in their order.

    Args:
        tokenizer: the target's.
    """
    return [each for each in prompts if len(prompt_token_ids(tokenizer, each)) <= max_tokens]


def check_fit(prompts: Sequence[Prompt], model: ModelConfig) -> None:
    """Check, before weights are read, that a target can answer each prompt: the engine refuses others.

    Args:
        model: the target, which was found.
    Raises: ConfigError that names the first prompt that has no tokens, or too many for the context.
    """
    tokenizer, length = load_tokenizer(model.model), context_length(model)
    for prompt in prompts:
        num_tokens = len(prompt_token_ids(tokenizer, prompt))
        if num_tokens == 0:
            raise ConfigError(f"prompt '{prompt.name}' is empty: leave it out")
        if num_tokens >= length:
            raise ConfigError(
                f"prompt '{prompt.name}' has {num_tokens} tokens, and this model's context holds {length} with at "
                "least one new token: leave it out"
            )


def hash_prompts(prompts: Sequence[Prompt]) -> str:
    """A hash of names, texts and categories that matter, for receipts and for resumed work."""
    digest = hashlib.sha256()
    for prompt in prompts:
        mark = f"{CONTINUED}\0" if prompt.category == CONTINUED else ""
        digest.update(f"{prompt.name}\0{prompt.text}\0{mark}".encode())
    return digest.hexdigest()


def _parse(content: bytes, where: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"prompts '{where}', line {number}: {_complaint(line, error)}; "
                "a prompt file holds one JSON object a line, in UTF-8"
            ) from error
        first, *later = entry.turns
        reference = entry.reference if isinstance(entry.reference, str) else None
        prompts.append(Prompt(entry.id or f"line-{number}", entry.category, first, tuple(later), reference))
    if not prompts:
        raise ConfigError(f"prompts '{where}': there are none in it")
    return prompts


def _complaint(line: bytes, error: Exception) -> str:
    """Why a line is refused. msgspec calls half of a surrogate pair "truncated input"; this names it."""
    try:
        json.dumps(parse_json(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as half:
        return str(half)
    except ValueError:
        pass
    return str(error)
