"""Tokenizers: loading one, comparing two, applying a chat template, and which tokens end a text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError

from starspec.errors import ModelError, RequestError, VocabularyMismatch
from starspec.fingerprint import HasVocabulary
from starspec.ids import BadWords
from starspec.json_text import parse_json
from starspec.models.loading.config_json import check_config_json, read_config
from starspec.models.loading.locate import is_synthetic, locate
from starspec.models.loading.tokenizer_files import check_has_tokenizer, check_tokenizer_files
from starspec.models.loading.transformers_calls import as_model_error, first_line, import_config_checks
from starspec.quoting import quoted

Vocabulary = Mapping[str, int]

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")  # of a conversation's messages
# a chat template is a program, and a conversation can make it fail in many ways
TEMPLATE_ERRORS: Final = (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError)


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a Hugging Face folder, a Hub id, a .gguf file or a synthetic model.

    Returns: a transformers tokenizer (`PreTrainedTokenizerBase`).
    Raises: ModelError if the model has no tokenizer, or if it cannot be read.
    """
    if is_synthetic(model):
        from starspec.models.synthetic.tokenizer import synthetic_tokenizer  # noqa: PLC0415 (imports transformers)

        return synthetic_tokenizer(model)
    folder = locate(model)
    check_tokenizer_files(model, folder)
    from transformers import AutoTokenizer  # noqa: PLC0415 (a second to import, and synthetic models do without)

    # transformers may accept wrong settings here and fail over them later, when it loads the weights
    check_config_json(model, folder)
    import_config_checks()  # a tokenizer reads the config, too
    with as_model_error(f"'{model}' has no tokenizer that can be read"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        except Exception:
            if (folder / "config.json").is_file():
                read_config(model, folder)  # transformers read this too; its faults are not the tokenizer's
            check_has_tokenizer(model, folder)
            raise
    tokenizer.clean_up_tokenization_spaces = False  # it removes spaces of text that a stream has already sent
    return tokenizer


def prompt_ids_of_text(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """The prompt of a text.

    Raises: RequestError if it is not valid Unicode.
    Effects: warns if the tokenizer puts a second BOS token in front.
    """
    token_ids = _encoded(tokenizer, text, add_special_tokens, "prompt")
    bos = getattr(tokenizer, "bos_token", None)
    if add_special_tokens and bos and token_ids[:2] == [tokenizer.bos_token_id] * 2:
        warnings.warn(
            f"the text begins with {bos}, and the tokenizer put another in front: models do not expect two, "
            "give add_special_tokens=False",
            stacklevel=4,  # the caller of `LLM.generate`
        )
    return token_ids


def prompt_ids_of_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """The prompt of a conversation in the model's chat template, up to where the answer begins.

    Raises: RequestError if the model has no chat template, if a message has another role than ROLES, or content that is
        not text, if the template cannot process the messages, or if they are not valid Unicode.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise RequestError("this model has no chat template; send plain prompts", "messages")
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not is_list or not all(isinstance(each, Mapping) and "role" in each for each in messages):
        raise RequestError("messages must be a list of {'role': ..., 'content': ...}", "messages")
    told = [{**each, "content": _content_of(index, each)} for index, each in enumerate(messages)]
    try:
        text = tokenizer.apply_chat_template(told, add_generation_prompt=True, tokenize=False)
    except TEMPLATE_ERRORS as error:
        why = f"the model's chat template cannot process these messages: {first_line(error)}"
        raise RequestError(why, "messages") from error
    return _encoded(tokenizer, text, False, "messages")  # a template writes special tokens itself


def _content_of(index: int, message: Mapping[str, Any]) -> str:
    """The text of a message, as the HTTP API gives it to a template: some print whatever they get.

    Raises: RequestError.
    """
    role, content = message["role"], message.get("content")
    if role not in ROLES:
        raise RequestError(f"messages[{index}].role must be one of {', '.join(ROLES)}, not {quoted(role)}", "messages")
    if isinstance(content, str):
        return content
    if role == "assistant" and content in (None, []):  # one that calls a tool needs no text
        return ""
    if not content or not isinstance(content, Sequence) or not all(map(_is_text, content)):
        raise RequestError(
            f"messages[{index}].content must be text, or a list of {{'type': 'text', 'text': ...}}", "messages"
        )
    return "\n".join(part["text"] for part in content)


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def bad_words_of(tokenizer: Any, texts: Sequence[str]) -> BadWords:
    """The tokens of texts that an output must not contain: at the start of a line, and behind a space, as in vLLM."""
    found = list[tuple[int, ...]]()
    for text in texts:
        bare = text.lstrip() or text
        first, spaced = (tuple(tokenizer.encode(each, add_special_tokens=False)) for each in (bare, f" {bare}"))
        found.append(first)
        if len(spaced) == len(first) and spaced[:1] != first[:1]:  # otherwise it begins with a token for the space
            found.append(spaced)
    return tuple(found)


def _encoded(tokenizer: Any, text: str, add_special_tokens: bool, param: str) -> list[int]:
    try:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except TypeError as error:  # the tokenizer's, for half of a surrogate pair
        what = "the prompt is" if param == "prompt" else f"{param} are"
        raise RequestError(f"{what} not valid Unicode text", param) from error


def check_vocabularies(target: HasVocabulary, draft: HasVocabulary) -> None:
    """Raises: VocabularyMismatch with the sizes and the first token that differs, unless both assign the same ids."""
    compare_vocabularies(target.get_vocab(), draft.get_vocab())


def compare_vocabularies(target_vocab: Vocabulary, draft_vocab: Vocabulary) -> None:
    """As `check_vocabularies`, of what their tokenizers know."""
    if target_vocab != draft_vocab:
        raise _mismatch(target_vocab, draft_vocab)


def check_pair(target_model: str, draft_model: str) -> None:
    """Raises: VocabularyMismatch unless both models have the same vocabulary; ModelError if one has no tokenizer."""
    check_vocabularies(load_tokenizer(target_model), load_tokenizer(draft_model))


def check_vocabulary_files(target_model: str, draft_model: str) -> None:
    """As `check_pair`, as far as two small files show it in a second, without transformers.

    Tokens may be added elsewhere, so only an id that has a token in both files is compared. A model without a
    `tokenizer.json`, such as a head, passes.

    Raises: VocabularyMismatch.
    """
    files = [locate(each) / "tokenizer.json" for each in (target_model, draft_model) if not is_synthetic(each)]
    if target_model == draft_model or len(files) < 2 or not all(each.is_file() for each in files):
        return
    from tokenizers import Tokenizer  # noqa: PLC0415 (most commands do without)

    try:
        target_vocab, draft_vocab = (Tokenizer.from_file(str(each)).get_vocab() for each in files)
    except Exception:  # tokenizers raises it as it is; whoever loads the model says what is wrong
        return
    tokens = {token_id: token for token, token_id in target_vocab.items()}
    if any(tokens.get(token_id, token) != token for token, token_id in draft_vocab.items()):
        raise _mismatch(target_vocab, draft_vocab)


def eos_token_ids(folder: Path, tokenizer: Any = None) -> tuple[int, ...]:
    """Every token id that ends a text, ascending: from generation_config.json, config.json and the tokenizer.

    Each file has none, one or a list. Checkpoints often name only some of the ids in each place, so all count.
    """
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        found.update(_as_ids(_read_json(folder / name).get("eos_token_id")))
    found.update(_as_ids(getattr(tokenizer, "eos_token_id", None)))
    return tuple(sorted(found))


def _mismatch(target_vocab: Vocabulary, draft_vocab: Vocabulary) -> VocabularyMismatch:
    return VocabularyMismatch(
        "target and draft do not share a vocabulary, so token ids of one mean nothing to the other: "
        f"{len(target_vocab)} tokens against {len(draft_vocab)}, {_first_difference(target_vocab, draft_vocab)}"
    )


def _first_difference(target: Vocabulary, draft: Vocabulary) -> str:
    by_id = ({token_id: token for token, token_id in vocab.items()} for vocab in (target, draft))
    target_tokens, draft_tokens = by_id
    for token_id in sorted(target_tokens.keys() | draft_tokens.keys()):
        of_target, of_draft = target_tokens.get(token_id), draft_tokens.get(token_id)
        if of_target != of_draft:
            return f"first different at id {token_id} ({_quoted(of_target)} against {_quoted(of_draft)})"
    return "with several names for one id"


def _quoted(token: str | None) -> str:
    return "no token" if token is None else repr(token)


def _as_ids(value: object) -> list[int]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read: {first_line(error)}") from error
    return content if isinstance(content, dict) else {}
