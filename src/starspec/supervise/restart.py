"""When a dead child is started again: soon at first, later each time, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_DELAY_S = 0.25
MAX_DELAY_S = 8.0
MAX_DEATHS = 5  # within the window; then it is given up
WINDOW_S = 60.0


def restart_delay_s(deaths_s: Sequence[float]) -> float | None:
    """How long to wait before the next start.

    Args:
        deaths_s: times of the child's deaths, the newest last.
    Returns: seconds, doubling with each death of the last minute; None = give it up.
    """
    recent = [death_s for death_s in deaths_s if death_s > deaths_s[-1] - WINDOW_S]
    if len(recent) > MAX_DEATHS:
        return None
    return float(min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (len(recent) - 1)))
