"""What `LLM` answers, as vLLM has it: one result for each prompt, with one output for each answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from starspec.stats import RequestStats
from starspec.wire.messages import EngineOutput, PromptLogprob, TokenLogprob


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: int | str | None = None
    metrics: RequestStats = field(default_factory=RequestStats)

    def add(self, output: EngineOutput) -> None:
        """Append the output of one round."""
        self.text += output.text
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *output.logprobs]
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        if output.stats is not None:
            self.metrics = output.stats


@dataclass(slots=True)
class RequestOutput:
    """The answers to one prompt."""

    prompt: str | None  # None if token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PromptLogprob | None] | None = None  # one a token; nothing comes before the first: None

    @property
    def metrics(self) -> RequestStats:
        """Statistics of all answers together."""
        return RequestStats.sum_of([each.metrics for each in self.outputs])
