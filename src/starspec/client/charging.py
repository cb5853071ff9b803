"""The time that a target spends on its hub, measured for the hub's account."""

from __future__ import annotations

from collections.abc import Callable, Sized

from starspec.policy.hub_account import HubAccount


class Charging:
    """Charges the time of a `with` block to the hub's account. An idle target charges nothing.

    Args:
        account: None = nothing is charged.
        clock: seconds, monotonic.
        at_hub: what the target has at its hub; empty = it is idle.
    """

    def __init__(self, account: HubAccount | None, clock: Callable[[], float], at_hub: Sized) -> None:
        self._account = account
        self._clock = clock
        self._at_hub = at_hub
        self._started_s = 0.0

    def __enter__(self) -> None:
        self._started_s = self._clock()

    def __exit__(self, *exception: object) -> None:
        if self._account is not None and self._at_hub:
            self._account.add_time(self._clock() - self._started_s)
