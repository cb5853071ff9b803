"""What the last stage knows about the sequences: their laws, and the tokens that it has emitted itself."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.errors import PeerProtocolError
from starspec.sampling.counts import TokenCounts
from starspec.windows.window import Judge, Law
from starspec.wire.messages import JudgeOf, RowLaw


@dataclass(slots=True)
class _Sequence:
    law: Law
    counts: TokenCounts  # empty if the law does not count
    num_tokens: int
    last_token_id: int


class RowLaws:
    """The sequence in each row.

    The last stage judges windows in order, so it knows before anybody else whether a window stands on true tokens: it
    compares them with those that it has emitted.
    """

    def __init__(self) -> None:
        self._of_row: dict[int, _Sequence] = {}

    def forget(self, row: int) -> None:
        """The row has another occupant, or none."""
        self._of_row.pop(row, None)

    def forget_all(self) -> None:
        self._of_row.clear()

    def stands(self, row: int, judge: JudgeOf) -> bool:
        """Whether a window begins with the last true token.

        If a window before it was refused, its position or its root is wrong, because it presumes all tokens of that
        window and one more.

        Raises: PeerProtocolError if the sequence has no law, or gets another one.
        """
        if (judge.law is None) != (row in self._of_row):
            raise PeerProtocolError(f"the sequence in row {row} has no law, or two")
        if judge.law is not None:
            self._of_row[row] = _begin(judge, judge.law)
        here = self._of_row[row]
        return (judge.prefix_len, judge.root) == (here.num_tokens, here.last_token_id)

    def judge(self, row: int, judge: JudgeOf) -> Judge:
        """What decides a window that stands."""
        here = self._of_row[row]
        return Judge(here.law, judge.tree, judge.prefix_len, here.counts)

    def extend(self, row: int, token_ids: tuple[int, ...]) -> None:
        """These tokens were emitted."""
        here = self._of_row[row]
        here.num_tokens += len(token_ids)
        here.last_token_id = token_ids[-1]
        if here.law.sampling.adjusts_logits:
            here.counts.append(token_ids)


def _begin(judge: JudgeOf, told: RowLaw) -> _Sequence:
    """Raises: PeerProtocolError if the law counts tokens but does not come with them, or has tokens for nothing."""
    num_wanted = judge.prefix_len if told.sampling.adjusts_logits else 0
    if len(told.token_ids) != num_wanted:
        raise PeerProtocolError(f"a law that needs {num_wanted} tokens comes with {len(told.token_ids)}")
    law = Law(told.sampling, told.relaxation, told.num_logprobs)
    counts = TokenCounts(told.token_ids[: told.prompt_len], told.token_ids[told.prompt_len :])
    return _Sequence(law, counts, judge.prefix_len, judge.root)
