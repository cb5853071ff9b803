"""How a target's wait for a hub ended, and what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starspec.client.tag import HubTag
from starspec.policy.deadline import Round


class Waited(NamedTuple):
    """How a wait ended."""

    late: Sequence[HubTag] = ()  # awaited tags without an answer
    round: Round | None = None  # None = the wait does not tell how long drafting takes


def round_of(asked: Sequence[HubTag], late: Sequence[HubTag], seconds: float) -> Round | None:
    """Returns: what a wait shows about the time that drafting takes. None if the hub prefilled, or drafted nothing.

    A hub may end a draft early, so a proposal counts with its own length.
    """
    if late and all(tag.is_opening for tag in late):
        return None
    if not late and not any(tag.num_proposed for tag in asked):
        return None
    lengths = [tag.num_proposed or tag.num_wanted for tag in asked]
    return Round(lengths, seconds, sum(tag.num_behind for tag in asked))
