"""The last requests that have ended, with their own acceptance."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from starspec.gateway.answers import Answer, metrics_of
from starspec.observe.view import RequestView

NUM_REQUESTS: Final = 50
MAX_TEXT: Final = 400  # characters that are kept of an answer


class FinishedRequests:
    """Remembers the last NUM_REQUESTS.

    Args:
        shows_text: keep the beginning of each answer's text.
        wall_clock: Unix time.
    """

    def __init__(self, *, shows_text: bool, wall_clock: Callable[[], float] = time.time) -> None:
        self._shows_text = shows_text
        self._wall_clock = wall_clock
        self._latest: deque[RequestView] = deque(maxlen=NUM_REQUESTS)

    def add(self, request_id: str, target: str, num_prompt_tokens: int, answers: Sequence[Answer]) -> None:
        """A request has ended, and all its answers are whole. Args: target: the one that answered first."""
        metrics = metrics_of(answers)
        speculative = metrics.speculative_decoding
        self._latest.appendleft(
            RequestView(
                request_id=request_id,
                ended_s=self._wall_clock(),
                target=target,
                num_prompt_tokens=num_prompt_tokens,
                num_tokens=sum(len(answer.token_ids) for answer in answers),
                finish_reason=answers[0].finish_reason or "",
                acceptance_length=speculative.mean_acceptance_length,
                acceptance_rate=speculative.draft_acceptance_rate,
                accepted=speculative.acceptance_histogram,
                tokens_per_s=metrics.tokens_per_second,
                first_token_ms=metrics.time_to_first_token_ms,
                text=answers[0].text[:MAX_TEXT] if self._shows_text else None,
            )
        )

    @property
    def latest(self) -> list[RequestView]:
        """The newest first."""
        return list(self._latest)
