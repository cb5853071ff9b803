"""Predicted outputs: propose what follows in a text that the client expects, from where the answer stands in it.

The client gives the text of a file, say, and asks for the file with a change. The answer then follows the text, leaves
it at the change, and follows it again behind the change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Final

MAX_NGRAM: Final = 4  # tokens by which a place in the text is found again
NEAR: Final = 16  # tokens; one token alone shows a place no further ahead than this


class PredictedText:
    """Follows one answer through the text that was predicted for it.

    Indexing costs MAX_NGRAM dictionary entries a token.

    Args:
        token_ids: the text. The answer is expected to begin with it.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = list(token_ids)
        self._followers: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> indices behind it
        for end in range(1, len(token_ids) + 1):
            for size in range(1, min(MAX_NGRAM, end) + 1):
                self._followers[tuple(self._token_ids[end - size : end])].append(end)
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
        last = tuple(self._last)
        for size in range(len(last), 0, -1):
            places = self._followers.get(last[-size:])
            if places is not None:
                index = min(bisect_right(places, self._followed_to), len(places) - 1)
                is_near = 0 < places[index] - self._followed_to <= NEAR
                return places[index] if size > 1 or is_near else None
        return None
