"""Incremental detokenization: only whole characters, and no text that may become part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

UNFINISHED = "\ufffd"  # what a decoder prints for an incomplete UTF-8 sequence
CONTEXT_TOKENS = 5  # prompt tokens that are decoded too, because some tokenizers attach a space to the next word


class Decodes(Protocol):
    """The part of a tokenizer that detokenization needs."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


class StopMatch(NamedTuple):
    """The token just added has completed this stop string."""

    stop: str


class Detokenizer:
    """The text of one answer, extended token by token.

    `take()` returns the text that is final: complete characters, without a tail that may begin a stop string.
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
        self._num_decoded = len(self._window)  # tokens of the window whose text is already in `_text`
        self._text = ""
        self._num_taken = 0
        self._num_unchecked = 0  # leading characters in which a stop string does not count
        self._is_stopped = False

    @property
    def text(self) -> str:
        """All text so far, including what `take` holds back."""
        return self._text

    def add(self, token_id: int, *, check_stop: bool = True) -> StopMatch | None:
        """Add one token. If it completes a stop string, cut the text there.

        Args:
            check_stop: False while the answer has fewer than `min_tokens` tokens. A stop string that is complete by
                then does not count later either.
        Returns: the completed stop string, if any; then no token may be added.
        """
        self._window.append(token_id)
        self._grow(is_last=False)
        if check_stop:
            return self._match_stop()
        self._num_unchecked = len(self._text)
        return None

    def finish(self) -> StopMatch | None:
        """End the text: what was held back for an incomplete character is final now."""
        if self._is_stopped:
            return None
        self._grow(is_last=True)
        match = self._match_stop()
        self._is_stopped = True
        return match

    def take(self) -> str:
        """The final text that was not returned before."""
        end = len(self._text) if self._is_stopped else len(self._text) - self._held_len()
        taken = self._text[self._num_taken : max(end, self._num_taken)]
        self._num_taken += len(taken)
        return taken

    def _grow(self, *, is_last: bool) -> None:
        """Append the text of the window's new tokens, unless it ends within a character."""
        before = self._decode(self._window[: self._num_decoded])
        both = self._decode(self._window)
        if len(both) <= len(before) or (both.endswith(UNFINISHED) and not is_last):
            return
        self._text += both[len(before) :]
        self._window = self._window[self._num_decoded :]
        self._num_decoded = len(self._window)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _match_stop(self) -> StopMatch | None:
        """Cut the text at the stop string that begins first, if the text not yet returned contains one."""
        found = [(at, stop) for stop in self._stop if (at := self._text.find(stop, self._search_start(stop))) >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._text = self._text[: at + len(stop) if self._include_stop else at]
        self._is_stopped = True
        return StopMatch(stop)

    def _search_start(self, stop: str) -> int:
        """The first index at which a match counts: after the text returned so far, and with a checked end."""
        return max(self._num_taken, self._num_unchecked - len(stop) + 1)

    def _held_len(self) -> int:
        """The number of characters at the end that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._text) - self._num_taken), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stop):
                return length
        return 0
