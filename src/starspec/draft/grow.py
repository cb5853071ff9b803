"""How sessions grow by a layer: one batched forward, one more draft token for each that asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from starspec.draft.session import DraftSession
from starspec.errors import OurBug
from starspec.models.runner import ModelRunner, Segment
from starspec.speculation.sampling import propose_token


class Growth(NamedTuple):
    """A session's part of a layer: the first `num_tokens` of those that it misses."""

    session: DraftSession
    num_tokens: int


class Drafter(Protocol):
    """What turns sequences into draft tokens. Sessions lease its rows, where it keeps what it knows of them."""

    @property
    def name(self) -> str: ...

    @property
    def max_len(self) -> int:
        """Tokens of the longest sequence, drafts included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids below this can be read."""
        ...

    @property
    def num_free_rows(self) -> int: ...

    def lease(self, session: DraftSession) -> None:
        """Give the session a row. Raises: NoFreeRow. Effects: `session.row`."""
        ...

    def free(self, session: DraftSession) -> None:
        """Take the session's row away, if it has one. Effects: `session.row`; its tokens and chain stay."""
        ...

    def num_missing(self, session: DraftSession) -> int:
        """Tokens that must be read before the next draft token is known, at least 1."""
        ...

    def grow(self, layer: Sequence[Growth]) -> None:
        """Read tokens of several sessions at once; each that then misses none gets its next draft token(s).

        Args:
            layer: sessions that hold rows, each once; 1 <= num_tokens <= num_missing.
        Effects: the sessions' chains and rows; none of them if it raises.
        """
        ...

    def reroot(self, session: DraftSession, token_ids: list[int]) -> None:
        """Commit the tokens of a verdict, and keep of row and chain what is still true."""
        ...

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        """Raises: OurBug unless exactly these sessions' rows are leased, and fit them."""
        ...


class CausalDrafter:
    """Drafts chains with a causal LM.

    A row holds K/V of the first `cache.lengths[row]` tokens of the session, committed and draft, and never of all
    of them: the last token's forward is what yields the next.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._cache = runner.cache

    @property
    def name(self) -> str:
        return self._runner.info.name

    @property
    def max_len(self) -> int:
        return min(self._runner.info.max_model_len, self._cache.max_len)

    @property
    def vocab_size(self) -> int:
        return self._runner.info.vocab_size

    @property
    def num_free_rows(self) -> int:
        return self._cache.num_free_rows

    def lease(self, session: DraftSession) -> None:
        session.row = self._cache.lease()

    def free(self, session: DraftSession) -> None:
        if session.row is not None:
            self._cache.free(session.row)
            session.row = None

    def num_missing(self, session: DraftSession) -> int:
        return len(session) - (0 if session.row is None else self._cache.lengths[session.row])

    def grow(self, layer: Sequence[Growth]) -> None:
        segments = [self._segment(*growth) for growth in layer]
        logits = self._runner.forward(segments)  # [sessions that miss nothing more, V]
        for segment in segments:
            self._cache.append(segment.row, len(segment.token_ids))
        ready = [growth.session for growth, segment in zip(layer, segments, strict=True) if segment.num_logits]
        for session, token_id in zip(ready, next_draft_tokens(ready, logits), strict=True):
            session.extend(token_id)

    def reroot(self, session: DraftSession, token_ids: list[int]) -> None:
        num_valid = session.reroot(token_ids)
        if session.row is not None:
            self._cache.truncate(session.row, min(num_valid, self._cache.lengths[session.row]))

    def check_integrity(self, sessions: Iterable[DraftSession]) -> None:
        self._cache.check_integrity()
        lengths = {session.row: len(session) for session in sessions if session.row is not None}
        if lengths.keys() != self._cache.rows.leased:
            raise OurBug(f"rows {sorted(self._cache.rows.leased)} are leased, sessions hold {sorted(lengths)}")
        for row, length in lengths.items():
            if self._cache.lengths[row] >= length:
                raise OurBug(f"row {row} holds {self._cache.lengths[row]} tokens of a session of {length}")

    def _segment(self, session: DraftSession, num_tokens: int) -> Segment:
        if session.row is None:
            raise OurBug(f"session {session.key} is to grow without a row")
        start = self._cache.lengths[session.row]
        stop = start + num_tokens
        return Segment(session.row, session.tokens(start, stop), num_logits=int(stop == len(session)))


def next_draft_tokens(sessions: Sequence[DraftSession], logits: Tensor) -> list[int]:
    """Guess each target's next token with the target's own law (design D1).

    Args:
        logits: [B, V], one row a session, at the end of its chain.
    Returns: B token ids.
    """
    # max is five times as fast as argmax on a CPU, and finds the same index
    token_ids: list[int] = logits.max(dim=-1).indices.tolist() if sessions else []
    for index, session in enumerate(sessions):
        # the draft's embedding may be padded further than the target's
        is_padding = token_ids[index] >= session.target_vocab_size
        if is_padding or not session.law.is_plain_argmax:
            known = logits[index, : session.target_vocab_size]
            token_ids[index] = propose_token(known, session.law, len(session), session.path_counts)
    return token_ids
