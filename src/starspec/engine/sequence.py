"""One request's answer as the target holds it: its tokens, its cache row, its text, its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from torch import Tensor

from starspec.engine.detokenize import Detokenizer
from starspec.ids import RequestId, RequestKey
from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec
from starspec.stats import RequestStats
from starspec.wire.messages import EngineOutput, RequestSpec, TokenLogprob


class SequenceState(Enum):
    WAITING = auto()  # no cache row yet
    PREFILLING = auto()  # the prompt is being forwarded, chunk by chunk
    RUNNING = auto()  # one round after the other
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended."""

    reason: Literal["stop", "length", "abort", "error"]
    stop_reason: int | str | None = None  # the stop token id or stop string


@dataclass(slots=True)
class RoundOutput:
    """What one round added, after truncation."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    features: Tensor | None = None  # [tokens, F] of the positions before each of them, if the drafts read any


class TargetSequence:
    """A request between arrival and last token.

    While it runs, the cache row holds the K/V of every committed token but the last: that one is the root of
    the next forward.
    """

    def __init__(
        self,
        key: RequestKey,
        spec: RequestSpec,
        *,
        max_len: int,
        eos_token_ids: tuple[int, ...],
        detokenizer: Detokenizer,
        arrived_s: float,
    ) -> None:
        self.key = key
        self.spec = spec
        self.sampling: SamplingSpec = spec.sampling
        self.token_ids = list(spec.prompt_token_ids)
        self.prompt_len = len(spec.prompt_token_ids)
        self.max_len = max_len  # committed tokens at which the answer ends
        self.counts = TokenCounts(spec.prompt_token_ids, ())
        self.state = SequenceState.WAITING
        self.row: int | None = None
        self.stats = RequestStats()
        self.arrived_s = arrived_s
        self.admitted_s = float("inf")  # when it got its row
        self.first_token_s: float | None = None
        self.num_passed_over = 0  # steps in a row that took others instead: to a row, or to a round
        self._eos_token_ids = frozenset(eos_token_ids)
        self._end_token_ids = frozenset(spec.sampling.end_token_ids)
        self._detokenizer = detokenizer

    @property
    def request_id(self) -> RequestId:
        return self.key.request_id

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_len - len(self.token_ids)

    def extend(self, token_ids: tuple[int, ...], logprobs: list[TokenLogprob]) -> RoundOutput:
        """Commit the tokens of one verdict, up to and with the one that ends the answer.

        Args:
            token_ids: accepted draft tokens and the target's own last token.
            logprobs: one for each, or empty when none are asked for.
        Returns: the tokens really added; fewer than given if the answer ended within them.
        Effects: `token_ids`, `counts`, the text, and `state` at the end.
        """
        emitted = RoundOutput()
        for index, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            emitted.token_ids.append(token_id)
            emitted.logprobs.extend(logprobs[index : index + 1])
            emitted.finish = self._finish_after(token_id)
            if emitted.finish is not None:
                self.state = SequenceState.FINISHED
                break
        self.counts.append(emitted.token_ids)
        return emitted

    def _finish_after(self, token_id: int) -> Finish | None:
        """Whether the answer ends with this token: end token, then stop string, then length."""
        may_end = self.num_output_tokens >= self.sampling.min_tokens
        if token_id in self._end_token_ids and may_end:
            if token_id not in self._eos_token_ids:
                self._detokenizer.add(token_id)
            self._detokenizer.finish()
            return Finish("stop", None if token_id in self._eos_token_ids else token_id)
        match = self._detokenizer.add(token_id, check_stop=may_end)
        is_full = self.num_remaining <= 0
        if match is None and is_full:
            match = self._detokenizer.finish()
        if match is not None:
            return Finish("stop", match.stop)
        return Finish("length") if is_full else None

    def output(self, emitted: RoundOutput) -> EngineOutput:
        """The message that tells the client; the last one carries the statistics."""
        finish = emitted.finish
        return EngineOutput(
            request_id=self.request_id,
            token_ids=emitted.token_ids,
            text=self._detokenizer.take(),
            logprobs=emitted.logprobs if self.spec.logprobs is not None else None,
            finish_reason=finish.reason if finish else None,
            stop_reason=finish.stop_reason if finish else None,
            stats=self.stats if finish else None,
        )
