"""Whether a hub pays for a server whose draft lengths are fixed. Lengths that adapt weigh that themselves.

Fixed lengths are what the operator asked for, so they are used while the hub is asked at all. The account only decides
whether it is asked. It is that of our own targets (`policy/hub_account.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from starspec.integrations.vllm.settings import VllmSettings
from starspec.log_limit import LogLimit
from starspec.policy.hub_account import HubAccount
from starspec.policy.plain_speed import PlainSpeed, is_plain_round_due

log = structlog.get_logger()


def account_of(settings: VllmSettings) -> HubAccount | None:
    """The account of a server with these settings; None if it keeps none.

    Lengths that adapt need none, and an operator who sets the longest wait says by it what a hub may cost.
    """
    return None if settings.adaptive or settings.deadline_ms is not None else HubAccount()


class HubCost:
    """The hub's account of one server, and what its steps without drafts take.

    Args:
        account: as `account_of` made it.
        clock: seconds, monotonic.
    """

    def __init__(self, account: HubAccount, clock: Callable[[], float]) -> None:
        self.account = account
        self._plain_speed = PlainSpeed()
        self._log_limit = LogLimit(clock)

    def is_plain_step_due(self, num_rows: int, now: float, *, is_hub_lost: bool) -> bool:
        """Whether the next step should have no drafts, to measure what such steps take."""
        return is_plain_round_due(
            self._plain_speed,
            num_rows,
            now,
            is_wanted=False,
            is_doubtful=self.account.is_doubtful,
            is_hub_lost=is_hub_lost,
        )

    def end_step(
        self, step_s: float, num_rows: int, num_gained: int, now: float, *, has_drafts: bool, is_by_hub: bool
    ) -> None:
        """vLLM has verified. Effects: may begin a rest, which is logged.

        Args:
            num_gained: draft tokens that were accepted, of all rows.
            has_drafts: whether any row had a draft.
            is_by_hub: whether the hub made the drafts.
        """
        if not has_drafts:
            self._plain_speed.add_round(step_s, num_rows, now)
        has_hub_drafted = has_drafts and is_by_hub
        num_rests = self.account.num_rests
        self.account.end_round(
            step_s,
            self._plain_speed.round_s(num_rows),
            num_gained / num_rows if has_hub_drafted else 0.0,
            now,
            drafted_share=float(has_hub_drafted),
        )
        if self.account.num_rests > num_rests:
            event = "the hub takes more time than its drafts save; it is asked for none for a while"
            self._log_limit.log(log.warning, event, seconds=round(self.account.rest_s(now), 1))
