"""`starspec chat`: a conversation with a running gateway, with the statistics of each answer."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import typer

from starspec.cli.gateway_client import DEFAULT_URL, ApiKey, GatewayClient, GatewayUrl
from starspec.config.option import MODELS, SAMPLING
from starspec.errors import ConfigError, StarspecError
from starspec.quoting import harmless, sendable

HELP: Final = """\
/speculative off   answer without drafts from now on; /speculative on: with them again
/clear             begin a new conversation
/quit              end, as Ctrl-D does"""
PROMPT: Final = "> "
INDENT: Final = "  "
NEW_LINE: Final = "\n"
SEEDS: Final = 2**63
THINKS: Final = "<think>"
ANSWERS: Final = "</think>"


@dataclass(slots=True)
class Conversation:
    """What was said, and how the next answer is made."""

    model: str
    max_tokens: int
    temperature: float
    seed: int | None
    messages: list[dict[str, str]] = field(default_factory=list)
    is_speculative: bool = True

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {
            "model": self.model,
            "messages": self.messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculative": self.is_speculative,
            **seed,
        }

    def command(self, line: str) -> str:
        """Obey a line that begins with a slash. Returns: what to say."""
        match line.split():
            case ["/speculative", ("on" | "off") as switch]:
                self.is_speculative = switch == "on"
                return f"speculation is {switch}"
            case ["/clear"]:
                self.messages.clear()
                return "a new conversation"
            case _:
                return HELP


def chat(
    url: GatewayUrl = DEFAULT_URL,
    model: Annotated[
        str | None,
        typer.Option(
            help="Which of the gateway's models answers.",
            metavar="NAME",
            show_default="its first",
            rich_help_panel=MODELS,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of an answer, at most.", min=1, rich_help_panel=SAMPLING)
    ] = 512,
    temperature: Annotated[
        float,
        typer.Option(
            help="Sampling temperature; 0 takes the likeliest token each time.", min=0, rich_help_panel=SAMPLING
        ),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed that decides the draws.", show_default="another each time", rich_help_panel=SAMPLING),
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Talk with a model behind a running gateway, and see after each answer what drafts brought.

    /speculative off answers without drafts, /clear begins anew, /quit or Ctrl-D ends. Lines may also come from a pipe.
    """
    if not math.isfinite(temperature):
        raise ConfigError(f"--temperature must be at least 0 and finite, got {temperature}")
    if seed is not None and not 0 <= seed < SEEDS:
        raise ConfigError(f"--seed must be in [0, 2**63), got {seed}")  # as `generate` says it
    client = GatewayClient(url, api_key)
    conversation = Conversation(_chosen(model, client.models()), max_tokens, temperature, seed)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, PLC0415 (editing of lines, and a history of them)
        print(f"{harmless(conversation.model)} at {client.url}; /help tells the commands")
    while (line := _next_line(PROMPT if is_terminal else "")) is not None:
        if line.startswith("/quit"):
            return
        if line.startswith("/"):
            print(conversation.command(line))
        elif line.strip():
            _answer(client, conversation, line)


def _chosen(asked: str | None, served: list[str]) -> str:
    """The model that is to answer. Raises: StarspecError if it is not served now."""
    if asked is not None and asked not in served:
        raise StarspecError(
            f"--model: the gateway has no model {asked!r} that can answer now; it has {', '.join(map(repr, served))}"
        )
    return asked or served[0]


def _next_line(prompt: str) -> str | None:
    """The next line; None at the end, also after Ctrl-C. Raises: ConfigError if it is not valid Unicode."""
    try:
        line = input(prompt)
        line.encode()
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeError as error:
        raise ConfigError("standard input is not valid Unicode text: give it in UTF-8") from error
    return line


def _answer(client: GatewayClient, conversation: Conversation, line: str) -> None:
    """Print an answer as it comes, and its statistics. One that fails, is interrupted or is empty leaves no trace."""
    conversation.messages.append({"role": "user", "content": line})
    answer, last = Answer(), {}
    try:
        for last in client.chat(conversation.body()):
            answer.take(last)
    except KeyboardInterrupt:
        conversation.messages.pop()
        print(f"\n{INDENT}stopped")
        return
    except StarspecError as error:
        conversation.messages.pop()
        print(f"{NEW_LINE if last else ''}{INDENT}{harmless(str(error))}")
        return
    if answer.is_empty:
        conversation.messages.pop()
        print(f"\n{INDENT}{answer.why_empty} Your line is not part of the conversation.")
    else:
        conversation.messages.append(answer.message())
        print()
    print(f"{INDENT}{harmless(statistics(last))}")


class Answer:
    """An answer as it comes. Prints it, and the model's reasoning before it between tags, dim on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415

        self._console = Console(highlight=False)
        self._text = self._reasoning = self._finish_reason = ""

    @property
    def is_empty(self) -> bool:
        return not self._text.strip()

    @property
    def why_empty(self) -> str:
        """A sentence about an empty answer."""
        if self._finish_reason != "length":
            return "The answer is empty."
        return "There is no answer: --max-tokens was reached before it began."

    def take(self, chunk: dict[str, Any]) -> None:
        """Print what a chunk adds."""
        for choice in chunk["choices"]:
            self._finish_reason = choice.get("finish_reason") or ""
            reasoning, text = (choice["delta"].get(key) or "" for key in ("reasoning", "content"))
            if reasoning:
                self._print_dim(reasoning if self._reasoning else f"{THINKS}\n{reasoning}")
                self._reasoning += reasoning
            if text and self._reasoning and not self._text:
                self._print_dim(f"{'' if self._reasoning.endswith(NEW_LINE) else NEW_LINE}{ANSWERS}\n")
            print(harmless(text if self._text.strip() else text.lstrip(NEW_LINE)), end="", flush=True)
            self._text += text

    def message(self) -> dict[str, str]:
        """As part of the conversation. The chat template decides what the model sees of its reasoning."""
        reasoning = {"reasoning": sendable(self._reasoning)} if self._reasoning else {}
        return {"role": "assistant", "content": sendable(self._text), **reasoning}

    def _print_dim(self, text: str) -> None:
        self._console.out(harmless(text), style="dim", end="")


def statistics(chunk: dict[str, Any]) -> str:
    """One line on an answer, from its last chunk."""
    metrics = chunk.get("metrics") or {}
    parts = [f"{chunk['usage']['completion_tokens']} tokens"]
    if metrics.get("tokens_per_second") is not None:
        parts.append(f"{metrics['tokens_per_second']:.1f} tokens/s")
    speculative = metrics.get("speculative_decoding") or {}
    if not speculative.get("num_draft_tokens"):
        return ", ".join([*parts, "no drafts"])
    accepted, length = (speculative.get(key, 0) for key in ("num_accepted_draft_tokens", "mean_acceptance_length"))
    drafts = f"{accepted} of {speculative['num_draft_tokens']} draft tokens accepted"
    return ", ".join([*parts, drafts, f"acceptance length {length:.2f}"])
