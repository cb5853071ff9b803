"""A parsed request: which answers to generate, and in what form to reply."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.gateway.reasoning import Thinking
from starspec.gateway.tools import ToolUse
from starspec.wire.messages import RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """The form of the reply."""

    is_stream: bool = False
    include_usage: bool = False  # a stream ends with one more chunk, which has the usage
    continuous_usage: bool = False  # every chunk has the usage so far
    num_top_logprobs: int | None = None  # None: no log-probabilities
    num_prompt_logprobs: int | None = None  # as before, of the prompt, in vLLM's form; None: none
    echo: bool = False  # the text begins with the prompt, and its log-probabilities with those of the prompt
    has_answer: bool = True  # false: only the prompt is echoed
    has_token_ids: bool = False
    tool_use: ToolUse | None = None  # None: a text has no calls
    thinking: Thinking | None = None  # None: a text has no reasoning
    is_reasoning_told: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The answers of one HTTP request. Answer i belongs to prompt i // n."""

    specs: tuple[RequestSpec, ...]
    num_prompts: int
    prompt_param: str  # what the client calls the prompt
    prompt_texts: tuple[str, ...] = ()  # of the prompts, if they are to be echoed
    options: ReplyOptions

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts. Each prompt counts once, however many answers it has."""
        per_prompt = len(self.specs) // self.num_prompts
        return sum(len(spec.prompt_token_ids) for spec in self.specs[::per_prompt])

    def prompt_text(self, choice: int) -> str:
        """What to echo in front of an answer."""
        return self.prompt_texts[choice * self.num_prompts // len(self.specs)] if self.prompt_texts else ""
