"""Predicted outputs: propose what follows in a text that the client expects, from where the answer stands in it.

The client gives the text of a file, say, and asks for the file with a change. The answer then follows the text, leaves
it at the change, and follows it again behind the change.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

MAX_NGRAM: Final = 4  # tokens by which a place in the text is found again
NEAR: Final = 16  # tokens; one token alone shows a place no further ahead than this
NUM_CHARACTERS: Final = sys.maxunicode + 1


class PredictedText:
    """Follows one answer through the text that was predicted for it.

    The text is searched where the answer leaves it, less than a millisecond for 100,000 tokens. It has no index: one
    would take a target's thread a second to make for so many, and a kilobyte for each.

    Args:
        token_ids: the text. The answer is expected to begin with it.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)
        self._characters = _characters(token_ids)
        self._next: int | None = 0  # index of the token that should come next; None = the answer has left the text
        self._followed_to = 0  # index behind the last token that came as expected
        self._last: deque[int] = deque(maxlen=MAX_NGRAM)  # tokens of the answer

    def append(self, token_ids: Iterable[int]) -> None:
        """The answer goes on with these tokens."""
        for token_id in token_ids:
            self._last.append(token_id)
            if self._next is not None and self._token_ids[self._next : self._next + 1] == [token_id]:
                self._next = self._followed_to = self._next + 1
            else:
                self._next = self._found()

    def propose(self, num_tokens: int, ahead: Sequence[int] = ()) -> list[int]:
        """At most so many tokens that follow in the text; none if the answer has left it, or is at its end.

        Args:
            ahead: tokens that follow first; the answer leaves the text if the text has others.
        """
        if self._next is None:
            return []
        start = self._next + len(ahead)
        return self._token_ids[start : start + num_tokens] if self._token_ids[self._next : start] == [*ahead] else []

    def _found(self) -> int | None:
        """Where the answer comes back to the text, by its last tokens: the longest run of them that the text has.

        Of several places, it is the next one behind what was followed so far, or else the last one before.
        """
        last, found, longest = _characters(self._last), None, 0
        for size in range(1, len(last) + 1):
            place = self._place_of(last[-size:])
            if place is None:  # then no longer run is there
                break
            found, longest = place, size
        is_sure = longest > 1 or (found is not None and 0 < found - self._followed_to <= NEAR)
        return found if is_sure else None

    def _place_of(self, run: str) -> int | None:
        """The index behind a place of the run; None if there is none. Goes through the text once."""
        ahead = max(0, self._followed_to + 1 - len(run))
        start = self._characters.find(run, ahead)
        if start < 0:
            start = self._characters.rfind(run, 0, ahead + len(run) - 1)
        return start + len(run) if start >= 0 else None


def _characters(token_ids: Iterable[int]) -> str:
    """A character for each token, so that runs of tokens are found as fast as words. No vocabulary is so large that
    two tokens share one; if they did, a guess would be wrong.
    """
    return "".join([chr(token_id % NUM_CHARACTERS) for token_id in token_ids])
