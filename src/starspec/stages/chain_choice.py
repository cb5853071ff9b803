"""Which member takes which position of a pipe, and the links that are gone round. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.stages.member import Member
from starspec.stages.pipe import Pipe

Link = tuple[int, int]
"""From a member to the one behind it."""


class ChainChoice:
    """Chooses a member for each position: the one that has it, the one that it belongs to, or another.

    Of these, one that was at fault again and again is the last choice.

    Args:
        pipe: whose stages the members must be like.
        members: the first ones are those of the positions in order, as the operator named them.
    """

    def __init__(self, pipe: Pipe, members: Sequence[Member]) -> None:
        self._pipe = pipe
        self._members = members
        self._cut: set[Link] = set()

    def avoid(self, link: Link) -> None:
        """This link was not there, or leads elsewhere: choose a chain without it, if there is one."""
        self._cut.add(link)

    def choose(self, present: tuple[int, ...], now: float) -> tuple[int, ...] | None:
        """A member for each position; None if one lacks.

        Args:
            present: the member that has each position.
        Effects: if there is no chain without a link that is avoided, all links may be whole again.
        """
        chain = self._chain_from((), present, now)
        if chain is None and self._cut:
            self._cut.clear()
            chain = self._chain_from((), present, now)
        return chain

    def _chain_from(self, begun: tuple[int, ...], present: tuple[int, ...], now: float) -> tuple[int, ...] | None:
        """The best chain that begins so."""
        position, num_positions = len(begun), len(self._pipe.stages)
        if position == num_positions:
            return begun
        usual = (present[position], position, *range(num_positions, len(self._members)))
        for index in sorted(usual, key=lambda each: self._members[each].is_faulty(now)):
            if self._can_follow(begun, index):
                chain = self._chain_from((*begun, index), present, now)
                if chain is not None:
                    return chain
        return None

    def _can_follow(self, begun: tuple[int, ...], index: int) -> bool:
        member, wanted = self._members[index], self._pipe.stages[len(begun)]
        is_cut = bool(begun) and (begun[-1], index) in self._cut
        is_taken = any(index == each or member.is_same_as(self._members[each]) for each in begun)
        return not (is_cut or is_taken) and member.is_there and member.fits(wanted, self._pipe)
