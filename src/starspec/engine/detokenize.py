"""Incremental detokenization: only whole characters, and no text that may become part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from starspec.quoting import sendable

UNFINISHED = "\ufffd"  # what a decoder prints for an incomplete UTF-8 sequence
MAX_CHAR_TOKENS = 4  # a character of UTF-8 has at most four bytes, and a token has at least one
CONTEXT_TOKENS = 5  # prompt tokens that are decoded too, because some tokenizers attach a space to the next word
MAX_PENDING = 64  # tokens that may wait for the end of a character: each further one decodes them all again


class Decodes(Protocol):
    """The part of a tokenizer that detokenization needs."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...


class StopMatch(NamedTuple):
    """The token just added has completed this stop string."""

    stop: str


class Detokenizer:
    """The text of one answer, extended token by token.

    `take()` returns the text that is final: complete characters, without a tail that may begin a stop string. A
    character that the prompt begins and the answer completes belongs to the answer.
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
        self._window: list[int] = []  # tokens that are decoded together
        self._num_decoded = 0  # tokens of the window whose text is in the prompt or in `_text`
        self._decoded = ""  # their text
        self._start_window(prompt_token_ids, CONTEXT_TOKENS)
        self._text = ""
        self._next_offset = 0
        self._num_taken = 0
        self._num_unchecked = 0  # leading characters in which a stop string does not count
        self._num_searched = 0  # leading characters in which none ends
        self._is_stopped = False

    @property
    def text(self) -> str:
        """All text so far, including what `take` holds back."""
        return self._text

    @property
    def next_offset(self) -> int:
        """Where the next token's text will begin in `text`: inside a character that it continues, the character's."""
        return min(self._next_offset, len(self._text)) if self._is_stopped else self._next_offset

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
        added = self._added_text()
        whole = added.rstrip(UNFINISHED)
        self._next_offset = len(self._text) + len(whole)
        if added and (added == whole or is_last):
            self._settle(added)
        elif len(self._window) - self._num_decoded > MAX_PENDING:
            self._give_up()

    def _settle(self, added: str) -> None:
        """This is the text of the window's new tokens, whatever comes."""
        self._text += added
        self._start_window(self._window, len(self._window) - self._num_decoded)

    def _give_up(self) -> None:
        """Wait no longer for a character, or for any text, of the new tokens but the last ones.

        An answer may be bytes that never become characters, or special tokens that are skipped.
        """
        last = self._window[1 - MAX_CHAR_TOKENS :]
        del self._window[1 - MAX_CHAR_TOKENS :]
        if added := self._added_text():
            self._settle(added)
        else:
            del self._window[self._num_decoded :]
        self._window += last
        self._next_offset = max(self._next_offset, len(self._text))

    def _added_text(self) -> str:
        """What the window's new tokens add to the text of those before them.

        That text is not final where the prompt ends within a character: the new tokens may turn its U+FFFD into the
        character. A decoder with byte fallback even turns every character of a run of byte tokens into U+FFFD while the
        run has an incomplete one.
        """
        before, both = self._decoded, self._decode(self._window)
        if both.startswith(before):
            return both[len(before) :]
        final = self._final_text(self._window[: self._num_decoded])
        if both.startswith(final):
            num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, both, strict=False)))
            return both[max(len(final), num_equal) :]
        return self._decode(self._window[self._num_decoded :])

    def _final_text(self, token_ids: list[int]) -> str:
        """The text of these tokens without those at the end that leave a character incomplete."""
        for num in range(len(token_ids), max(0, len(token_ids) - MAX_CHAR_TOKENS), -1):
            text = self._decode(token_ids[:num])
            if not text.endswith(UNFINISHED):
                return text
        return ""

    def _start_window(self, token_ids: Sequence[int], num: int) -> None:
        """Begin a new window: the last `num` tokens, and those before them with which their first character begins."""
        for num_last in range(num, num + MAX_CHAR_TOKENS):
            last = list(token_ids[-num_last:])
            text = self._decode(last)
            if not text.startswith(UNFINISHED) or self._begins_with_character(last):
                break
        else:  # they do not become text
            last = list(token_ids[-num:])
            text = self._decode(last)
        self._window, self._num_decoded, self._decoded = last, len(last), text

    def _begins_with_character(self, token_ids: list[int]) -> bool:
        """Whether a character begins with the first token. Later tokens may turn its text into U+FFFD."""
        beginnings = (self._decode(token_ids[:length]) for length in range(1, MAX_CHAR_TOKENS + 1))
        return any(not text.startswith(UNFINISHED) for text in beginnings)

    def _decode(self, token_ids: list[int]) -> str:
        text = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
        return sendable(text)  # a token may be half of a surrogate pair

    def _match_stop(self) -> StopMatch | None:
        """Cut the text at the stop string that begins first, if the text not yet returned contains one.

        Only in new text one can end. Text that may begin a stop string is held back for long, and many tokens are added
        to it.
        """
        new = self._text[self._num_searched :]
        likely = [stop for stop in self._stop if stop[-1] in new]
        found = [(at, stop) for stop in likely if (at := self._text.find(stop, self._search_start(stop))) >= 0]
        if not found:
            self._num_searched = len(self._text)
            return None
        at, stop = min(found)
        self._text = self._text[: at + len(stop) if self._include_stop else at]
        self._is_stopped = True
        return StopMatch(stop)

    def _search_start(self, stop: str) -> int:
        """The first index at which a match counts: after the text returned so far, and with a new, checked end."""
        return max(self._num_taken, max(self._num_unchecked, self._num_searched) - len(stop) + 1)

    def _held_len(self) -> int:
        """The number of characters at the end that may begin a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._text) - self._num_taken), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stop):
                return length
        return 0
