"""Whether a hub's prefill pays: what drafts save until requests end, against what prefill costs the target.

A hub on its own machine prefills while the target decodes, and the target loses only a wait. A hub on the same cores
slows the target down for as long as it prefills. So the cost is not the time that the hub prefills, but the time that
the target loses. It has two parts: the wait when the target sends the prompts, and the time by which its steps are
slower than usual, divided by the prefilled tokens.

Our engine measures all the time that it spends on the hub, so its waits count by tokens, too (`add_wait`). A plug-in of
vLLM knows only the wait of the step that sends the prompts (`add_request`).
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedMean, DecayedRatio

FIRST_OUTPUT_LEN: Final = 128.0  # tokens that a request generates, before any was seen to end
OUTPUT_LEN_WEIGHT: Final = 0.2  # of a new output length among those before it
WEIGHT: Final = 0.2  # of a new wait, likewise
FADE: Final = 0.8  # of what prefill cost, with each newer one
MAX_SLOWED: Final = 1.0  # of a step's usual time: sharing cores costs no more than that; a longer step was interrupted
MAX_UNFINISHED: Final = 2.0  # unfinished prefill counts as 1 / MAX_UNFINISHED of its tokens: it would have taken longer


class PrefillCost:
    """Seconds that the target loses by prefill of one hub, learnt from the last ones.

    Before any was measured, prefill is assumed to cost nothing: it has to be tried.
    """

    def __init__(self) -> None:
        self._wait_s: DecayedMean | None = None
        self._token_s = DecayedRatio(FADE)  # seconds lost by tokens prefilled
        self._begin()

    def _begin(self) -> None:
        self._num_requested = self._num_prefilled = 0  # tokens, since the hub last had nothing to prefill
        self._num_beside = self._num_compared = 0  # steps, likewise
        self._slowed_s = 0.0  # of the compared ones
        self._waited_s = 0.0  # likewise, where each wait is known

    @property
    def is_going_on(self) -> bool:
        """Whether the hub has something to prefill."""
        return self._num_requested > 0

    def add_request(self, num_tokens: int, waited_s: float | None) -> None:
        """The hub was sent so many tokens to prefill.

        Args:
            waited_s: how much longer the target waited than for drafts alone; None = it did not wait for them.
        """
        self._num_requested += num_tokens
        if waited_s is None:
            return
        if self._wait_s is None:
            self._wait_s = DecayedMean(WEIGHT, prior=max(0.0, waited_s))
        else:
            self._wait_s.add(max(0.0, waited_s))

    def add_wait(self, seconds: float) -> None:
        """The target worked and waited for its hub so much longer than for drafts alone, because of prefill."""
        self._waited_s += max(0.0, seconds)

    def add_answer(self, num_prefilled: int, num_refused: int) -> None:
        """The hub has prefilled so many tokens, and refused others, which it has not prefilled."""
        self._num_prefilled += num_prefilled
        self._num_requested = max(0, self._num_requested - num_refused)
        if not self._num_requested:
            self._begin()

    def add_step(self, seconds: float, usual_s: float | None) -> None:
        """A step of the target ran beside it.

        Args:
            usual_s: what such a step takes alone; None = not known.
        """
        self._num_beside += 1
        if usual_s is not None:
            self._num_compared += 1
            self._slowed_s += min(seconds - usual_s, MAX_SLOWED * usual_s)

    def end(self) -> None:
        """The hub has nothing to prefill any more. What it has not answered to, nobody wants any more."""
        if self._num_compared or self._waited_s:
            self._token_s.add(self._lost_s, self._num_done)
        self._begin()

    def drop(self) -> None:
        """The hub was lost. What it had not answered to says nothing."""
        self._begin()

    def seconds(self, num_tokens: int) -> float:
        """Seconds that the target loses if the hub is sent so many tokens to prefill.

        Prefill that is going on may already have cost more than usual.
        """
        token_s = self._token_s.value
        if self.is_going_on:
            token_s = max(token_s, self._lost_s / self._num_done)
        return (self._wait_s.value if self._wait_s else 0.0) + num_tokens * token_s

    def pays(self, num_tokens: int, before_s: float, after_s: float, output_len: float = FIRST_OUTPUT_LEN) -> bool:
        """Whether drafts are worth the prefill of so many tokens.

        How many tokens a request has says little about how many follow. So as many are expected as requests generate
        in all. Drafts help only those tokens that are left when prefill ends.

        Args:
            before_s: seconds in which each request gains one token now.
            after_s: seconds in which it will, after prefill.
            output_len: tokens that a request generates in all.
        """
        cost_s = self.seconds(num_tokens)
        return (before_s - after_s) * (output_len - cost_s / before_s) > cost_s

    @property
    def _lost_s(self) -> float:
        """Seconds lost so far. Steps that could not be compared are assumed to have lost as much as the others."""
        return self._waited_s + max(0.0, self._slowed_s) * self._num_beside / max(1, self._num_compared)

    @property
    def _num_done(self) -> float:
        """Tokens that the hub has prefilled, at least."""
        return max(self._num_prefilled, self._num_requested / MAX_UNFINISHED)
