"""A parsed request: which answers to generate, and in what form to reply."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.wire.messages import RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """The form of the reply."""

    is_stream: bool = False
    include_usage: bool = False  # a stream ends with one more chunk, which has the usage
    continuous_usage: bool = False  # every chunk has the usage so far
    num_top_logprobs: int | None = None  # None: no log-probabilities
    has_token_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The answers of one HTTP request. Answer i belongs to prompt i // n."""

    specs: tuple[RequestSpec, ...]
    num_prompts: int
    prompt_param: str  # what the client calls the prompt
    options: ReplyOptions

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts. Each prompt counts once, however many answers it has."""
        per_prompt = len(self.specs) // self.num_prompts
        return sum(len(spec.prompt_token_ids) for spec in self.specs[::per_prompt])
