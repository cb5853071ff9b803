"""The time that a target spends on its hub, measured for the hub's account and for the cost of prefill."""

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
        self._seconds = 0.0

    def __enter__(self) -> None:
        self._started_s = self._clock()

    def __exit__(self, *exception: object) -> None:
        if not self._at_hub:
            return
        seconds = self._clock() - self._started_s
        self._seconds += seconds
        if self._account is not None:
            self._account.add_time(seconds)

    def take(self) -> float:
        """The seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
