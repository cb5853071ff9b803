"""When a target tries again to reach its hub, and when it tells people that there is none.

    after                                      it tries again
    no answer to Hello, or to a ping           every RETRY_S
    a refusal                                  when the hub said, or after REFUSED_RETRY_S
    a link that ended                          at once, if the last one was stable; else after RETRY_S, doubling
    a link whose hub broke the rules           after BREACH_S, doubling

No I/O and no clock of its own: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final, Literal

from starspec.policy.backoff import Backoff

RETRY_S: Final = 0.25  # between two Hellos, and between two pings while attaching
REFUSED_RETRY_S: Final = 5.0  # after a refusal that will not change by itself: the hub may be replaced by one that fits
LONGEST_REFUSAL_S: Final = 60.0  # whatever a hub says: it may be replaced, too
ATTACH_S: Final = 5.0  # from Welcome to the first answer on this target's own port
KEEP_ALIVE_S: Final = 1.0  # between two pings, at most; and at most a quarter of the lease
STABLE_S: Final = 10.0  # a link that lasts for less has failed: before the next one, pauses double ...
LONGEST_RETRY_S: Final = 4.0  # ... up to this,
BREACH_S: Final = 1.0  # or, if the hub broke the rules, from this ...
LONGEST_BREACH_S: Final = 60.0  # ... up to this
HINT_S: Final = 3.0  # log, not as a warning, that the first hub has not answered for so long: it may be starting
UNHEARD_S: Final = 10.0  # log a warning that one to which Hello went has not answered for so long: a hub does at once
START_S: Final = 600.0  # log a warning then. `starspec up` gives its processes as long to start


class Reconnecting:
    """The links of one target with its hub, and how they ended."""

    def __init__(self) -> None:
        self._losses = Backoff(RETRY_S, LONGEST_RETRY_S, STABLE_S, num_free=1)
        self._breaches = Backoff(BREACH_S, LONGEST_BREACH_S, LONGEST_BREACH_S)
        self._first_try_s: float | None = None
        self._has_hinted = False

    def note_connected(self, now: float) -> None:
        """The hub has answered on the target's own port."""
        self._losses.note_success(now)
        self._breaches.note_success(now)

    def after_loss_s(self, now: float, least_s: float = 0.0) -> float:
        """The link has ended. Returns: seconds until the next try; longer if links fail again and again."""
        return max(least_s, self._losses.pause_s(now))

    def after_breach_s(self, now: float) -> float:
        """The hub broke the rules. Returns: as `after_loss_s`, and longer."""
        return self._breaches.pause_s(now)

    def note_unanswered(self, now: float, *, has_warned: bool) -> Literal["warning", "hint"] | None:
        """The first hub has not answered yet. It may load its draft, and listens after that.

        Returns: whether to warn people, unless that was done, or to tell them; the latter once.
        """
        if self._first_try_s is None:
            self._first_try_s = now
        waited_s = now - self._first_try_s
        if waited_s > START_S and not has_warned:
            return "warning"
        if waited_s > HINT_S and not self._has_hinted:
            self._has_hinted = True
            return "hint"
        return None


def after_refusal_s(retry_after_s: float | None) -> float:
    """Seconds until the next try after a refusal.

    Args:
        retry_after_s: what the hub said; None = asking again will not help.
    """
    return REFUSED_RETRY_S if retry_after_s is None else min(LONGEST_REFUSAL_S, max(RETRY_S, retry_after_s))


def keep_alive_s(lease_s: float) -> float:
    """Seconds between two pings that renew a lease."""
    return min(KEEP_ALIVE_S, lease_s / 4)
