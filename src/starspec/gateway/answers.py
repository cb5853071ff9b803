"""One answer while it is generated, and the usage and metrics of a request's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from starspec.gateway.replies import CompletionTokensDetails, FinishReason, RequestMetrics, SpeculativeMetrics, Usage
from starspec.stats import RequestStats
from starspec.wire.messages import EngineOutput, PromptLogprob, TokenLogprob, Verified


@dataclass(slots=True)
class Answer:
    """Everything that was generated for one choice."""

    index: int
    prompt_token_ids: list[int]
    prompt_text: str = ""  # to be echoed
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)  # of all its tokens but the first
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stats: RequestStats | None = None
    verified: Verified | None = None  # of a draft that the client gave

    @property
    def is_empty(self) -> bool:
        """Whether nothing was generated yet."""
        return not self.token_ids and self.finish_reason is None

    @property
    def num_entries(self) -> int:
        """About how many values a reply has for this answer: its tokens, and what is told of each."""
        per_token = 1 + (len(self.logprobs[0].top) + 1 if self.logprobs else 0)
        per_prompt_token = 1 + (len(self.prompt_logprobs[0].top) + 1 if self.prompt_logprobs else 0)
        return len(self.prompt_token_ids) * per_prompt_token + len(self.token_ids) * per_token

    def add(self, output: EngineOutput) -> None:
        self.prompt_logprobs.extend(output.prompt_logprobs or ())
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs or ())
        self.finish_reason = finish_reason_of(output)
        self.stop_reason = output.stop_reason
        self.stats = output.stats or self.stats
        self.verified = output.verified or self.verified


def finish_reason_of(output: EngineOutput) -> FinishReason | None:
    """The finish reason of an output. The router turns aborted and failed ones into errors before."""
    reason = output.finish_reason
    assert reason in (None, "stop", "length")
    return reason


def usage_of(num_prompt_tokens: int, answers: Sequence[Answer], *, has_prediction: bool = False) -> Usage:
    """The usage of a request. Each prompt counts once, however many answers it has."""
    num_completion_tokens = sum(len(answer.token_ids) for answer in answers)
    details = _details_of(answers) if has_prediction else UNSET
    return Usage(num_prompt_tokens, num_completion_tokens, num_prompt_tokens + num_completion_tokens, details)


def _details_of(answers: Sequence[Answer]) -> CompletionTokensDetails:
    """What became of the prediction, as far as answers have ended."""
    total = RequestStats.sum_of([answer.stats for answer in answers if answer.stats is not None])
    num_accepted = total.num_accepted_prediction_tokens
    return CompletionTokensDetails(num_accepted, total.num_prediction_tokens - num_accepted)


def metrics_of(answers: Sequence[Answer]) -> RequestMetrics:
    """The metrics of a request. Times are given for a single answer only."""
    stats = [answer.stats for answer in answers if answer.stats is not None]
    speculative = speculative_metrics(stats)
    if len(answers) != 1 or not stats:
        return RequestMetrics(speculative_decoding=speculative)
    return _timed(speculative, stats[0], len(answers[0].token_ids))


def speculative_metrics(stats: Sequence[RequestStats]) -> SpeculativeMetrics:
    """Sums over the answers. Rates are computed from the sums."""
    total = RequestStats.sum_of(stats)
    histogram = total.acceptance_histogram
    histogram += [0] * (total.num_spec_tokens + 1 - len(histogram))
    return SpeculativeMetrics(
        mean_acceptance_length=total.acceptance.acceptance_length,
        draft_acceptance_rate=total.acceptance.acceptance_rate,
        acceptance_histogram=histogram,
        num_spec_steps=total.acceptance.num_drafts,
        num_accepted_draft_tokens=total.acceptance.num_accepted_tokens,
        num_draft_tokens=total.acceptance.num_draft_tokens,
        num_spec_tokens=total.num_spec_tokens,
        lossless=total.is_lossless,
        num_relaxed_tokens=total.acceptance.num_relaxed_tokens,
    )


def _timed(speculative: SpeculativeMetrics, stats: RequestStats, num_tokens: int) -> RequestMetrics:
    gaps = num_tokens - 1
    return RequestMetrics(
        speculative_decoding=speculative,
        time_to_first_token_ms=max(0.0, stats.time_to_first_token_s - stats.queue_s) * 1e3,
        generation_time_ms=stats.generation_s * 1e3,
        queue_time_ms=stats.queue_s * 1e3,
        mean_itl_ms=stats.generation_s * 1e3 / gaps if gaps > 0 else None,
        tokens_per_second=gaps / stats.generation_s if gaps > 0 and stats.generation_s > 0 else None,
    )
