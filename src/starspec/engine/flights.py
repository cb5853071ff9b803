"""Windows of one sequence in flight, and the tokens that they take for granted before their verdicts have landed.

        committed   window 1           window 2           window 3
        ... t    |  t  a  b  c      |  d  e  f  g      |  h  i  j  k
                    └── draft ──┘ ▲    └── draft ──┘ ▲
                                  guess d            guess h

A window verifies its draft (a b c), and gives the target's own token after it. The next window stands on the draft and
on a guess of that token (d), which is the first token that was drafted behind (a b c). If the verdict of a window is
another, the windows behind it are stale: the last stage sees that by itself, and gives no tokens for them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from starspec.policy.pipe_depth import WindowGap
from starspec.speculation.tree import DraftTree


@dataclass(slots=True, eq=False)
class Flight:
    """A window in flight."""

    tree: DraftTree  # what is verified
    is_presumed: bool  # what follows is drafted already, as if the tree, a chain, were accepted
    guess: int | None = None  # of the token behind the chain, on which the next window stands; None = there is none
    is_stale: bool = False  # it stands on refused tokens


class _Landed(NamedTuple):
    """The last verdict of a sequence."""

    at_s: float
    is_presumed: bool  # of its window
    is_right: bool  # it was as presumed


class Flights:
    """Those of one sequence that are not stale, oldest first.

    Only its sequence's rounds change it. Others read it.
    """

    def __init__(self) -> None:
        self._flying: deque[Flight] = deque()
        self.token_ids: list[int] = []  # presumed to follow the committed ones: drafts, and guesses between them
        self._landed: _Landed | None = None
        self._has_drafted = False  # a window with a draft has landed

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def settled(self) -> list[int]:
        """Those of the presumed tokens on which a window stands: all up to the last guess."""
        return self.token_ids[: self.num_settled]

    @property
    def num_settled(self) -> int:
        return sum(each.tree.num_draft_tokens + 1 for each in self._flying if each.guess is not None)

    @property
    def may_go_on(self) -> bool:
        """Whether another window can stand on those in flight."""
        return bool(self._flying) and self._flying[-1].is_presumed

    def stand_on(self, guess: int) -> int:
        """The next window stands on the last one, and on this token behind it. Returns: tokens of the last one."""
        last = self._flying[-1]
        assert last.is_presumed, "nothing is presumed behind the last window"
        last.guess = guess
        self.token_ids.append(guess)
        return last.tree.num_draft_tokens + 1

    def launch(self, tree: DraftTree, *, is_presumed: bool) -> Flight:
        """A window is launched behind all others. Args: is_presumed: as of Flight."""
        flight = Flight(tree, is_presumed)
        self._flying.append(flight)
        if is_presumed:
            self.token_ids += tree.token_ids
        return flight

    def land(self, flight: Flight, token_ids: tuple[int, ...]) -> int | None:
        """The verdict of the oldest one has landed, with these tokens.

        Returns: None if they are as presumed; otherwise how many of them were presumed, before the first other one.
        Effects: otherwise the windows behind it are stale, and nothing is presumed any more.
        """
        assert self._flying.popleft() is flight, "verdicts land in the order of the launches"
        if flight.guess is not None and token_ids == (*flight.tree.token_ids, flight.guess):
            del self.token_ids[: len(token_ids)]
            return None
        presumed, self.token_ids = self.token_ids, []
        for each in self._flying:
            each.is_stale = True
        self._flying.clear()
        num_right = 0
        for token_id, guess in zip(token_ids, presumed, strict=False):
            if token_id != guess:
                return num_right
            num_right += 1
        return None if num_right == len(presumed) else num_right

    def note_landed(self, flight: Flight, now: float, num_tokens: int, *, is_right: bool) -> WindowGap | None:
        """A verdict has landed with so many tokens, and was as presumed or not.

        Returns: the gap before it. None before the first draft, since the drafter may still prefill the prompt, and if
            the two windows were not launched alike.
        """
        before, self._landed = self._landed, _Landed(now, flight.is_presumed, is_right)
        num_drafted = flight.tree.num_draft_tokens
        had_drafted, self._has_drafted = self._has_drafted, self._has_drafted or num_drafted > 0
        if before is None or not had_drafted or before.is_presumed != flight.is_presumed:
            return None
        stands = before.is_presumed and before.is_right
        return WindowGap(now - before.at_s, num_drafted, stands, num_tokens)

    def clear(self) -> None:
        """They are lost, and never land."""
        self._flying.clear()
        self.token_ids, self._landed = [], None
