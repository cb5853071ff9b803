"""Text from tokens as they come: whole characters only, and nothing that a stop string could take back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

UNFINISHED = "\ufffd"  # what a decoder prints for an incomplete UTF-8 sequence
CONTEXT_TOKENS = 5  # prompt tokens decoded along, because some tokenizers glue a space to the next word


class Decodes(Protocol):
    """The part of a tokenizer that detokenizing needs."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


class StopMatch(NamedTuple):
    """A stop string was completed by the token just added."""

    stop: str


class Detokenizer:
    """One answer's text, grown a token at a time.

    `take()` hands out the text that is final: complete characters, less a tail that may turn out to be the
    beginning of a stop string.
    """

    def __init__(
        self,
        tokenizer: Decodes,
        prompt_token_ids: Sequence[int],
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._include_stop = include_stop
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt_token_ids[-CONTEXT_TOKENS:])  # tokens decoded together
        self._num_read = len(self._window)  # tokens of the window whose text is in `_text` already
        self._text = ""
        self._num_taken = 0
        self._num_unchecked = 0  # characters at the beginning in which a stop string does not count
        self._is_stopped = False

    @property
    def text(self) -> str:
        """All text so far, with what `take` still holds back."""
        return self._text

    def add(self, token_id: int, *, check_stop: bool = True) -> StopMatch | None:
        """Add one token; on a completed stop string, cut the text there and say which.

        Args:
            check_stop: False while fewer than `min_tokens` tokens are out. A stop string that is complete by then does
                not count later either, however many tokens come before the next `take`.
        Effects: the text; after a match nothing may be added.
        """
        self._window.append(token_id)
        self._grow(is_last=False)
        if check_stop:
            return self._match_stop()
        self._num_unchecked = len(self._text)
        return None

    def finish(self) -> StopMatch | None:
        """No more tokens will come: text held back for an unfinished character is final now."""
        if self._is_stopped:
            return None
        self._grow(is_last=True)
        match = self._match_stop()
        self._is_stopped = True
        return match

    def take(self) -> str:
        """The final text that was not handed out before."""
        end = len(self._text) if self._is_stopped else len(self._text) - self._held_len()
        taken = self._text[self._num_taken : max(end, self._num_taken)]
        self._num_taken += len(taken)
        return taken

    def _grow(self, *, is_last: bool) -> None:
        """Append the text of the window's unread tokens, unless it ends within a character."""
        read = self._decode(self._window[: self._num_read])
        both = self._decode(self._window)
        if len(both) <= len(read) or (both.endswith(UNFINISHED) and not is_last):
            return
        self._text += both[len(read) :]
        self._window = self._window[self._num_read :]
        self._num_read = len(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _match_stop(self) -> StopMatch | None:
        """Cut the text at the stop string that begins first, if one is in the text not yet handed out."""
        found = [(at, stop) for stop in self._stop if (at := self._text.find(stop, self._first_place(stop))) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._text = self._text[: at + len(stop) if self._include_stop else at]
        self._is_stopped = True
        return StopMatch(stop)

    def _first_place(self, stop: str) -> int:
        """Where a match of it may begin: in text not yet handed out, and so that its end has been checked."""
        return max(self._num_taken, self._num_unchecked - len(stop) + 1)

    def _held_len(self) -> int:
        """Characters at the end that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._text) - self._num_taken), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stop):
                return length
        return 0
