"""`starspec generate`: answer one prompt in this process."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from starspec.cli import options as opt
from starspec.cli.process import log_to_stderr
from starspec.cli.speculation import DraftOptions

if TYPE_CHECKING:
    from starspec.llm import LLM
    from starspec.sampling_params import SamplingParams
    from starspec.stats import RequestStats


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from standard input.", metavar="PROMPT")],
    *,
    target: opt.TargetModel,
    draft: opt.DraftModel = None,
    draft_quantization: opt.DraftQuantization = None,
    spec_method: opt.SpecMethod = None,
    spec_tokens: opt.SpecTokens = None,
    draft_p_min: opt.DraftPMin = None,
    speculative_config: opt.SpeculativeJson = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Put the prompt into the model's chat template.", rich_help_panel=opt.SAMPLING),
    ] = False,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens to generate, at most.", rich_help_panel=opt.SAMPLING)
    ] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 = always the likeliest token.", rich_help_panel=opt.SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens of this share, 0 to 1.", rich_help_panel=opt.SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Keep this many likeliest tokens; 0 = all.", rich_help_panel=opt.SAMPLING)
    ] = 0,
    min_p: Annotated[
        float,
        typer.Option(
            help="Keep tokens of at least this share of the likeliest one, 0 to 1.", rich_help_panel=opt.SAMPLING
        ),
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="Of the draws.", show_default="another each time", rich_help_panel=opt.SAMPLING)
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; may be repeated.", show_default="none", rich_help_panel=opt.SAMPLING),
    ] = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    numerics: opt.Numerics = opt.MODEL.numerics,
    max_model_len: opt.MaxModelLen = None,
    num_threads: opt.NumThreads = None,
) -> None:
    """Answer one prompt in this process: the text on standard output, one line of statistics on standard error."""
    from starspec.sampling_params import SamplingParams  # noqa: PLC0415 (as below: nothing before it is needed)

    config = DraftOptions(
        json_text=speculative_config,
        method=spec_method,
        model=draft,
        quantization=draft_quantization,
        num_tokens=spec_tokens,
        p_min=draft_p_min,
    ).to_config()
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
    )
    log_to_stderr("warning")
    text = sys.stdin.read() if prompt == "-" else prompt
    with _loading(target):
        from starspec.llm import LLM  # noqa: PLC0415 (imports torch)

        llm = LLM(
            model=target,
            speculative_config=config,
            max_num_seqs=1,
            dtype=dtype,
            device=device,
            numerics=numerics,
            max_model_len=max_model_len,
            num_threads=num_threads,
        )
    with llm:
        _answer(llm, text, params, is_chat=chat)


def _loading(model: str) -> AbstractContextManager[object]:
    """A spinner on a terminal, a line elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return console.status(f"loading {model}")
    console.print(f"loading {model} ...", highlight=False)
    return nullcontext()


def _answer(llm: LLM, prompt: str, params: SamplingParams, *, is_chat: bool) -> None:
    started_s = time.monotonic()
    for output in llm.stream(_prompt_of(llm, prompt) if is_chat else prompt, params):
        sys.stdout.write(output.text)
        sys.stdout.flush()
        if output.stats is not None:
            print(flush=True)
            print(_story(output.stats, time.monotonic() - started_s), file=sys.stderr)


def _prompt_of(llm: LLM, text: str) -> list[int]:
    from starspec.models.loading.tokenizer import prompt_ids_of_chat  # noqa: PLC0415 (imports tokenizers)

    return prompt_ids_of_chat(llm.tokenizer, [{"role": "user", "content": text}])


def _story(stats: RequestStats, elapsed_s: float) -> str:
    acceptance = stats.acceptance
    num_tokens = acceptance.num_emitted_tokens
    rate = num_tokens / elapsed_s if elapsed_s else 0.0
    story = f"{num_tokens} tokens in {elapsed_s:.2f} s ({rate:.1f} tokens/s)"
    if not acceptance.num_drafts:
        return f"{story}; no drafts"
    return (
        f"{story}; block efficiency {acceptance.block_efficiency:.2f}, "
        f"acceptance length {acceptance.acceptance_length:.2f}, acceptance rate {acceptance.acceptance_rate:.0%}"
    )
