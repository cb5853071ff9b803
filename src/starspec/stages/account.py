"""What a pipe's traversals have cost, as far as its coordinator is told."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from starspec.stages.member import Member
from starspec.stages.membership import Membership
from starspec.stats import PipeStats, StageStats
from starspec.wire.messages import StageWork


class PipeAccount:
    """Adds up what lands.

    Args:
        num_stages: of the pipe.
    """

    def __init__(self, num_stages: int) -> None:
        self.stats = PipeStats()
        self._work = [StageWork(0.0, 0.0, 0, 0, 0, 0)] * num_stages
        self._landed_s = 0.0  # when something landed last

    def note(self, work: Sequence[StageWork], num_bytes: int, launched_s: float, now: float) -> None:
        """A traversal has landed.

        Args:
            work: of all stages, in order.
            num_bytes: of the landing.
            launched_s: when the traversal left.
        """
        stats = self.stats
        stats.num_traversals += 1
        stats.num_landing_bytes += num_bytes
        self._work = [_sum(*pair) for pair in zip(self._work, work, strict=True)]
        seconds = now - max(launched_s, self._landed_s)
        if seconds > 0.0:
            stats.fill.add(min(1.0, max(each.compute_s for each in work) / seconds))
        self._landed_s = now

    def of(self, members: Membership, depth: int, num_in_flight: int, num_losses: int) -> PipeStats:
        """The statistics of now."""
        stats = self.stats
        stats.depth, stats.num_in_flight, stats.num_losses = depth, num_in_flight, num_losses
        places = {member: place for place, member in enumerate(members.chain)}
        order = [*members.chain, *(index for index in range(len(members.members)) if index not in places)]
        stats.stages = [self._stage(members.members[index], places.get(index)) for index in order]
        return stats

    def _stage(self, member: Member, place: int | None) -> StageStats:
        what = member.what
        stats = StageStats(
            endpoint=member.name,
            layers="" if what is None else f"{what.start}:{what.end}",
            index=place,
            is_attached=member.liveness is not None,
            is_fit=member.why_unfit is None,
        )
        if place is not None:
            own, stats.num_traversals = self._work[place], self.stats.num_traversals
            stats.compute_s, stats.wait_s = own.compute_s, own.wait_s
            stats.num_bytes, stats.num_hidden_bytes = own.num_bytes, own.num_hidden_bytes
        return stats


def possible(work: StageWork, traversal_s: float) -> StageWork:
    """What a stage says of its part of a traversal, which took so long in all: no part takes longer."""
    return replace(work, compute_s=min(work.compute_s, traversal_s), wait_s=min(work.wait_s, traversal_s))


def _sum(one: StageWork, other: StageWork) -> StageWork:
    return replace(
        other,
        compute_s=one.compute_s + other.compute_s,
        wait_s=one.wait_s + other.wait_s,
        num_bytes=one.num_bytes + other.num_bytes,
        num_hidden_bytes=one.num_hidden_bytes + other.num_hidden_bytes,
    )
