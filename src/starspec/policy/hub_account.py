"""Whether a hub is worth its time: an account, in seconds, of what drafts cost a target and what they save.

Other rules bound what one fault of a hub costs: a late proposal, a flood, a tag that has to be opened again. This one
bounds the sum, whatever the hub does and however it times it. If decoding with the hub has been slower than plain
decoding by more than a small credit, the target *rests*: for a while it asks for no drafts and waits for none. A rest
lasts several times as long as the loss, so the loss is a small share of the time.

The account credits the hub only with tokens that its own drafts gained. What another drafter gains beside it, or in its
place, the target would gain without the hub, too.

No clock and no I/O: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedMean

FIRST_S: Final = 0.65  # of the first credit: a first proposal takes longer, since the hub prefills the prompt
CREDIT_S: Final = 0.3  # what a hub may cost before the target rests, if it was worth its time before
CREDIT_ROUNDS: Final = 4.0  # the credit is at least so many plain rounds
TRIAL_S: Final = 0.1  # the credit after a rest
REST: Final = 8.0  # a rest is so many times as long as the credit, and what the hub cost beyond it
WEIGHT: Final = 0.1  # of the newest round in means
DOUBTFUL_TOKENS: Final = 2.0  # of a sequence in a round with drafts: if they are fewer, plain rounds are measured
TOLERANCE: Final = 0.05  # a hub may be slower than plain decoding by this much


class HubAccount:
    """The account of one target with its hub. It outlives links: a hub that comes back finds it as it was."""

    def __init__(self) -> None:
        self._credit_s = FIRST_S + CREDIT_S
        self._rests_until_s = float("-inf")
        self._hub_s = 0.0  # since the last round ended
        self._num_tokens = DecayedMean(WEIGHT)  # of a sequence in rounds with drafts of the hub
        self._drafted_s = DecayedMean(WEIGHT, max_ratio=2.0)  # forwards of such rounds; one slow moment says little
        self.num_rests = 0

    def is_resting(self, now: float) -> bool:
        """Whether to ask for no drafts, and to wait for none."""
        return now < self._rests_until_s

    def rest_s(self, now: float) -> float:
        """Seconds that the rest still lasts; 0 = none."""
        return max(0.0, self._rests_until_s - now)

    @property
    def is_doubtful(self) -> bool:
        """Whether drafts save so little that plain rounds have to be measured, to compare them with."""
        return 0.0 < self._num_tokens.value < DOUBTFUL_TOKENS

    def add_time(self, seconds: float) -> None:
        """So much time went to the hub instead of a forward: waits, messages, features."""
        self._hub_s += seconds

    def end_round(
        self, forward_s: float, plain_s: float | None, num_gained: float, now: float, *, drafted_share: float
    ) -> None:
        """A round is over. Effects: may begin a rest.

        Args:
            forward_s: seconds of its forward.
            plain_s: the same of a round without drafts; None = not known.
            num_gained: tokens that the hub's drafts gained, on average over all sequences of the round.
            drafted_share: of the round's draft tokens: those of the hub; 0 = it drafted nothing. It pays for so much of
                what their verification costs.
        """
        lost_s, self._hub_s = self._hub_s, 0.0
        if drafted_share:
            self._num_tokens.add(1.0 + num_gained)
            self._drafted_s.add(forward_s)
            if plain_s is not None:
                lost_s += drafted_share * max(0.0, self._drafted_s.value - plain_s)
        plain_s = forward_s if plain_s is None else plain_s
        self._charge(lost_s - num_gained * plain_s, plain_s, 1.0 + num_gained, now)

    def _charge(self, lost_s: float, plain_s: float, num_tokens: float, now: float) -> None:
        """Args: lost_s: how much longer the round took than plain decoding; negative if it was faster."""
        if self.is_resting(now):
            return
        most_s = max(CREDIT_S, CREDIT_ROUNDS * plain_s)
        left_s = self._credit_s + TOLERANCE * plain_s * num_tokens - lost_s
        self._credit_s = min(left_s, max(self._credit_s, most_s))
        if self._credit_s < 0.0:
            self._rests_until_s = now + REST * (most_s - self._credit_s)
            self._credit_s = min(TRIAL_S, most_s)
            self.num_rests += 1
