"""A request in our own terms: which answers to generate, and in what form the client wants them."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.wire.messages import RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """The form of the reply."""

    is_stream: bool = False
    include_usage: bool = False  # one more chunk with the usage, at the end of a stream
    continuous_usage: bool = False  # the usage so far in every chunk
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
        """Of all prompts, each counted once however many answers it gets."""
        per_prompt = len(self.specs) // self.num_prompts
        return sum(len(spec.prompt_token_ids) for spec in self.specs[::per_prompt])
