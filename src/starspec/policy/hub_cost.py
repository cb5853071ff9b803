"""Whether a hub pays for a target: its account, and the rounds without drafts that it is compared with.

Our own targets and vLLM servers weigh a hub in the same way. No clock and no I/O: `now` is seconds of one monotonic
clock.
"""

from __future__ import annotations

from typing import NamedTuple

from starspec.policy.hub_account import HubAccount
from starspec.policy.plain_speed import PlainSpeed


class RoundGain(NamedTuple):
    """What a round had of drafts, and of those of the hub."""

    num_sequences: int
    has_drafts: bool  # of whatever drafter
    drafted_share: float = 0.0  # of its draft tokens: those of the hub
    num_gained: float = 0.0  # tokens that the hub's drafts gained, on average over all its sequences


class HubCost:
    """What a hub costs one target.

    Args:
        account: the target's; None = it keeps none, so the hub may cost anything.
    """

    def __init__(self, account: HubAccount | None) -> None:
        self.account = account
        self._plain_speed = PlainSpeed()

    def plain_tokens_per_s(self, num_sequences: int) -> float:
        """As `PlainSpeed.tokens_per_s`."""
        return self._plain_speed.tokens_per_s(num_sequences)

    def is_plain_round_due(
        self, num_sequences: int, now: float, *, is_hub_lost: bool, is_speed_wanted: bool = False
    ) -> bool:
        """Whether the next round should have no drafts, to measure the plain speed.

        A lost hub drafts nothing, so rounds are plain anyway.

        Args:
            is_speed_wanted: the hub wants to know the plain speed. Otherwise only an account in doubt does.
        """
        is_doubtful = self.account is not None and self.account.is_doubtful
        is_wanted = is_speed_wanted or is_doubtful
        return is_wanted and not is_hub_lost and self._plain_speed.is_due(num_sequences, now)

    def end_round(self, forward_s: float, gain: RoundGain, now: float) -> bool:
        """A round is over, whose forward took so long. Returns: whether the target rests from the hub from now on."""
        if not gain.has_drafts:
            self._plain_speed.add_round(forward_s, gain.num_sequences, now)
        if self.account is None:
            return False
        num_rests, plain_s = self.account.num_rests, self._plain_speed.round_s(gain.num_sequences)
        self.account.end_round(forward_s, plain_s, gain.num_gained, now, drafted_share=gain.drafted_share)
        return self.account.num_rests > num_rests
