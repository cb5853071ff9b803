"""`starspec generate`: answer one prompt in this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from starspec.cli.binder import bound, flag_of, take
from starspec.cli.output import check_output
from starspec.cli.process import log_to_stderr
from starspec.cli.serve import TARGET_MODEL
from starspec.cli.speculation import DRAFT_OPTIONS, DraftOptions, check_draft_is_named
from starspec.config import ModelConfig, Option, ProcessConfig
from starspec.config.option import NONE_GIVEN, SAMPLING
from starspec.errors import ConfigError, RequestError, StarspecError
from starspec.models.loading.checks import check_models, check_room
from starspec.models.loading.locate import folder_name
from starspec.models.loading.progress import listening, report
from starspec.models.loading.tokenizer import load_tokenizer, prompt_ids_of_chat, prompt_ids_of_text
from starspec.observe.progress import ProgressBar
from starspec.openmp import SLEEP_AT_ONCE, unless_given
from starspec.quoting import harmless

if TYPE_CHECKING:
    from starspec.llm import LLM
    from starspec.sampling_params import SamplingParams
    from starspec.stats import RequestStats

DEFAULT_NUM_TOKENS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the answer is drawn, and whether the prompt is a chat.

    The options state no bounds: `SamplingParams` knows them all, and says all of them in one way.
    """

    chat: Annotated[bool, Option("Put the prompt into the model's chat template.", SAMPLING, ("--chat",))] = False
    max_tokens: Annotated[
        int | None, Option("Tokens to generate, at most.", SAMPLING, shown=f"{DEFAULT_NUM_TOKENS}, or what fits")
    ] = None
    temperature: Annotated[float, Option("Sampling temperature; 0 takes the likeliest token each time.", SAMPLING)] = (
        0.0
    )
    top_p: Annotated[float, Option("Keep the likeliest tokens of this share, 0 to 1.", SAMPLING)] = 1.0
    top_k: Annotated[int, Option("Keep this many likeliest tokens; 0 = all.", SAMPLING)] = 0
    min_p: Annotated[float, Option("Keep tokens of at least this share of the likeliest one, 0 to 1.", SAMPLING)] = 0.0
    seed: Annotated[int | None, Option("Seed that decides the draws.", SAMPLING, shown="another each time")] = None
    stop: Annotated[tuple[str, ...], Option("End before this text; may be repeated.", SAMPLING, shown=NONE_GIVEN)] = ()

    def to_params(self) -> SamplingParams:
        """The request's parameters. `max_tokens` is None if it is not given.

        Raises: ConfigError that names the option, if a value is out of range.
        """
        from starspec.sampling_params import SamplingParams  # noqa: PLC0415 (imports what --help does not need)

        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "chat"}
        with _naming_options():
            return SamplingParams(**given)


@bound
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.", metavar="PROMPT")],
    *,
    model: Annotated[ModelConfig, take(*TARGET_MODEL)],
    drafting: Annotated[DraftOptions, take(*DRAFT_OPTIONS)],
    sampling: SamplingOptions,
    process: Annotated[ProcessConfig, take("log_level", log_level="warning")],
) -> None:
    """Answer one prompt in this process: the text on standard output, one line of statistics on standard error."""
    speculative = drafting.to_config()
    check_draft_is_named(speculative)
    params = sampling.to_params()
    log_to_stderr(process.log_level)
    check_output()
    check_models(model, speculative.draft_model(model) if speculative else None)
    if params.max_tokens is not None:
        check_room(model, params.max_tokens)
    text = _read(prompt)
    os.environ.update(unless_given(os.environ, SLEEP_AT_ONCE))
    with ProgressBar("loading") as bar, listening(bar.show):
        report(folder_name(model.model))
        if sampling.chat or not text.strip():
            _check_prompt(model.model, text, is_chat=sampling.chat)
        from starspec.llm import LLM  # noqa: PLC0415 (imports torch)

        options = {name: getattr(model, name) for name in TARGET_MODEL}
        llm = LLM(speculative_config=speculative, max_num_seqs=1, use_tqdm=False, **options)
    with llm:
        _answer(llm, text, params, is_chat=sampling.chat)


def _read(prompt: str) -> str:
    """The text of the prompt. Raises: ConfigError if it is not valid Unicode."""
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()
    except UnicodeError as error:  # Python reads a byte that is not UTF-8 as half of a surrogate pair
        where = "standard input" if prompt == "-" else "the prompt"
        raise ConfigError(f"{where} is not valid Unicode text: give it in UTF-8") from error
    return text


def _check_prompt(model: str, text: str, *, is_chat: bool) -> None:
    """Check what the tokenizer shows before weights are read.

    Raises: ConfigError if a text has no tokens (a tokenizer may put a BOS token in front, which is a prompt), or if
        there is no chat template, or if it refuses the conversation.
    """
    try:
        prompt = _prompt_ids(load_tokenizer(model), text, is_chat)
    except RequestError as error:
        raise ConfigError(f"--chat: {error}" if is_chat else str(error)) from error
    if not prompt:
        raise ConfigError("the prompt is empty: give a text to continue, or - and a text on standard input")


@contextmanager
def _naming_options() -> Iterator[None]:
    """Make a ConfigError that names the option of a RequestError about a sampling parameter."""
    try:
        yield
    except RequestError as error:
        name = error.param or ""
        if name not in [each.name for each in fields(SamplingOptions)]:
            raise
        raise ConfigError(str(error).replace(name, flag_of(SamplingOptions, name))) from error


def _answer(llm: LLM, text: str, params: SamplingParams, *, is_chat: bool) -> None:
    """Print the answer as it comes: as it is for a file or a pipe, and for a terminal without what could command it.

    Raises: StarspecError if it ends with an error.
    """
    started_s, is_terminal = time.monotonic(), sys.stdout.isatty()
    prompt = _prompt_ids(llm.tokenizer, text, is_chat)
    if params.max_tokens is None:
        room = llm.engine.verifier.info.max_model_len - len(prompt)
        params = replace(params, max_tokens=max(1, min(DEFAULT_NUM_TOKENS, room)))  # no room: the engine says so
    with _naming_options():
        for output in llm.stream(prompt, params):
            sys.stdout.write(harmless(output.text) if is_terminal else output.text)
            sys.stdout.flush()
            if output.stats is not None:
                print(flush=True)
                print(_summary(output.stats, time.monotonic() - started_s), file=sys.stderr)
            if output.finish_reason == "error":
                raise StarspecError(f"the answer is not whole: {output.stop_reason}")


def _prompt_ids(tokenizer: Any, text: str, is_chat: bool) -> list[int]:
    if is_chat:
        return prompt_ids_of_chat(tokenizer, [{"role": "user", "content": text}])
    return prompt_ids_of_text(tokenizer, text)


def _summary(stats: RequestStats, elapsed_s: float) -> str:
    acceptance = stats.acceptance
    num_tokens = acceptance.num_emitted_tokens
    rate = num_tokens / elapsed_s if elapsed_s else 0.0
    summary = f"{num_tokens} tokens in {elapsed_s:.2f} s ({rate:.1f} tokens/s)"
    if not acceptance.num_drafts:
        return f"{summary}; no drafts"
    return (
        f"{summary}; block efficiency {acceptance.block_efficiency:.2f}, "
        f"acceptance length {acceptance.acceptance_length:.2f}, acceptance rate {acceptance.acceptance_rate:.0%}"
    )
