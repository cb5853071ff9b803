"""How long a step may wait for proposals. Two rules behind one interface, for two kinds of targets.

NoStallDeadline     Our engine measures its own rounds and forwards. A wait may last as long as a proposal can save, but
                    not so long that a client sees its tokens stall (ADR 5).
StepTimeDeadline      vLLM tells a plug-in only the time between two calls. A wait may last about as long as the last
                    rounds with this hub, but not longer than two vLLM steps: a slower draft does not pay.

One rule cannot serve both. The engine's wait is only a part of a hub's round, since the hub drafts while the engine
does other work. vLLM's wait is the whole round, and each millisecond of it delays all rows of the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from starspec.policy.estimators import DecayedMean

MIN_ROUND_WAIT_S: Final = 0.050
FIRST_ROUND_WAIT_S: Final = 1.0  # before any round has been measured
MAX_GAP_S: Final = 0.250  # a client may always wait this long for a token, and longer only if two rounds take longer
GAP_SHARE: Final = 0.8  # of the longest gap: the rest is for what happens between two rounds
ROUND_WEIGHT: Final = 0.1  # of the newest round in the mean of recent rounds

MIN_STEP_WAIT_S: Final = 0.005
FIRST_STEP_WAIT_S: Final = 0.25  # before any round has been measured
NUM_ROUNDS: Final = 16  # rounds with the hub that are remembered
SLACK: Final = 1.5  # times the longest of them: rounds vary
MAX_STEPS: Final = 2.0  # vLLM steps: a draft that takes longer is slower than decoding


class Round(NamedTuple):
    """Drafts that a target requested together, and how long it waited for them."""

    lengths: Sequence[int]  # draft tokens of each, at least 1
    seconds: float
    num_caught_up: int = 0  # tokens that the hub had to prefill first, since it drafted nothing for some rounds


class RecentRounds:
    """The last rounds with one hub."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque(maxlen=NUM_ROUNDS)

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, round_: Round) -> None:
        """All awaited proposals took this long; if some were late, at least this long."""
        self._rounds.append(round_)

    def longest_s(self, lengths: Sequence[int]) -> float:
        """Longest time that a round with drafts of these lengths is expected to take. There must be a round.

        A round with longer drafts, or with more of them, than a measured one may take that much longer, and not more:
        a hub drafts for many at once no slower than for one after the other. Only the measured rounds that are closest
        to the requested one are scaled up in this way.
        """
        growths = [_growth(each.lengths, lengths) for each in self._rounds]
        least = min(growths)
        nearest_s = max(each.seconds for each, growth in zip(self._rounds, growths, strict=True) if growth == least)
        longest_s = max(each.seconds for each in self._rounds)  # a busy hub delays small rounds too
        return max(least * nearest_s, longest_s)


def _growth(before: Sequence[int], now: Sequence[int]) -> float:
    """The largest factor by which one round may take longer than another, because it asks for more."""
    return max(1.0, max(now) / max(before)) * max(1.0, len(now) / len(before))


class Deadline(Protocol):
    """The longest wait of a step for its proposals."""

    def seconds(self, lengths: Sequence[int], rounds: RecentRounds) -> float:
        """For the next wait.

        Args:
            lengths: draft steps of each awaited proposal, at most; there is at least one.
            rounds: the last ones with the hub.
        """
        ...


class NoStallDeadline:
    """Even a round whose proposals do not come ends within the time of two recent rounds, or within MAX_GAP_S.

    A wait also never lasts longer than a proposal can save. Without this bound, a hub that is always equally late would
    be waited for forever, since recent rounds contain their waits.

    Args:
        fixed_s: the operator's own deadline; None = follows recent rounds.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._round, self._verify = DecayedMean(ROUND_WEIGHT), DecayedMean(ROUND_WEIGHT)  # seconds

    def seconds(self, lengths: Sequence[int], rounds: RecentRounds) -> float:  # noqa: ARG002 (of the interface)
        """As Deadline."""
        if self._fixed_s is not None:
            return self._fixed_s
        if not self._round.count:
            return FIRST_ROUND_WAIT_S
        plain_s = (1 + max(lengths)) * self._verify.value  # each draft token can save one forward
        longest_s = GAP_SHARE * max(MAX_GAP_S, min(2.0 * self._round.value, plain_s))
        return max(MIN_ROUND_WAIT_S, longest_s - self._verify.value)

    def note_round(self, round_s: float, verify_s: float) -> None:
        """A round of the engine took this long, and its forward this much of it."""
        self._round.add(round_s)
        self._verify.add(verify_s)


class StepTimeDeadline:
    """As long as the last rounds took, with some slack, and at most two vLLM steps.

    Args:
        fixed_s: the operator's own deadline; None = follows recent rounds and steps.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._step_s: float | None = None

    def seconds(self, lengths: Sequence[int], rounds: RecentRounds) -> float:
        """As Deadline."""
        if self._fixed_s is not None:
            return self._fixed_s
        expected_s = SLACK * rounds.longest_s(lengths) if rounds else FIRST_STEP_WAIT_S
        most_s = FIRST_STEP_WAIT_S if self._step_s is None else MAX_STEPS * self._step_s
        return max(MIN_STEP_WAIT_S, min(expected_s, most_s))

    def note_step(self, step_s: float) -> None:
        """vLLM took this long between two calls.

        A shorter time counts at once. A longer one counts little by little, since such a step may prefill a prompt.
        """
        known_s = step_s if self._step_s is None else self._step_s
        self._step_s = min(step_s, 1.05 * known_s)
