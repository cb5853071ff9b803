"""What a stage does with messages and traversals, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor

from starspec.errors import CacheRangeError, PeerProtocolError
from starspec.models.runner import ForwardOutput, Segment, Stage
from starspec.stages.frames import Bytes, Frame, FrameDecoder, pack, told, unpack
from starspec.stages.laws import RowLaws
from starspec.stages.rows import StageRows
from starspec.windows.judging import judge
from starspec.windows.window import Window
from starspec.wire.messages import (
    Alive,
    Attach,
    Attached,
    Beat,
    CoordinatorToStage,
    Detach,
    Gap,
    Identify,
    Identity,
    JudgeOf,
    Landing,
    Outdated,
    Refused,
    Retract,
    StageWork,
    Traversal,
    VerdictOf,
    WindowHead,
)
from starspec.wire.stage_session import StageSession, StaleTraversal
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES


class _Cost(NamedTuple):
    """Of one traversal at this stage, when its computing begins."""

    wait_s: float
    started_s: float


class StageWorker:
    """One stage. The last one also judges.

    Args:
        runner: of its layers.
        clock: seconds.
        is_invariant: whether a token's bits do not depend on what it is batched with.
    """

    def __init__(self, runner: Stage, clock: Callable[[], float], *, is_invariant: bool = False) -> None:
        self.rows = StageRows(runner.cache)
        self.session = StageSession()
        self.num_dropped = 0  # windows that were not computed, because they stood on refused tokens
        self._runner = runner
        self._clock = clock
        self._is_invariant = is_invariant
        self._laws = RowLaws()
        self._failures: list[BaseException] = []
        self._decoder = FrameDecoder(runner.info.vocab_size)

    def control(self, message: CoordinatorToStage) -> Attached | Outdated | Refused | Alive | Gap | Identity | None:
        """Note what the coordinator says. Returns: the answer to send, if there is one."""
        now = self._clock()
        if isinstance(message, Identify):
            return Identity(self.session.stage_id)
        if isinstance(message, Beat):
            return self.session.answer(message, now, is_busy=False)
        if isinstance(message, Attach):
            answer = self.session.attach(message, now)
            if answer is not None:
                return answer
            self._free_all()
            return self._attached()
        if self.session.hear(message, now):
            if isinstance(message, Detach):
                self._free_all()
            elif isinstance(message, Retract):
                self.rows.retract(message)
        return None

    def check_lease(self) -> None:
        """Free all rows if the coordinator was silent for too long. To be called now and then."""
        if self.session.end_lease(self._clock()):
            self._free_all()

    def take(self, parts: Sequence[Bytes], wait_s: float = 0.0) -> Frame | Landing | Gap | None:
        """Compute one traversal.

        Args:
            wait_s: it lay here before.
        Returns: what to send to the next stage; or the answer for the coordinator; None if the traversal was stale.
        Raises: PeerProtocolError if the parts are not a traversal; nothing has changed then.
        """
        frame = self._decoder.decode(parts)
        try:
            gap = self.session.take(frame.traversal)
            return self._compute(frame, _Cost(wait_s, self._clock())) if gap is None else gap
        except StaleTraversal:
            return None
        except (PeerProtocolError, CacheRangeError, ValueError) as error:
            return self.session.break_off(frame.traversal.pipe_epoch, str(error))

    def take_failures(self) -> list[BaseException]:
        """Why windows had no answer since the last call, for the log."""
        failures, self._failures = self._failures, []
        return failures

    def _compute(self, frame: Frame, cost: _Cost) -> Frame | Landing:
        traversal, is_last = frame.traversal, self._runner.layers.is_last
        self._check_layers_before(traversal.work)
        self._check_windows(traversal.windows)
        for change in traversal.changes:
            self.rows.change(change)
            self._laws.forget(change.row)
        judges = self._decoder.judges(frame).judges if is_last else []
        of_window = {each.window: each for each in judges}
        standing = [self._stands(each, of_window.get(index)) for index, each in enumerate(traversal.windows)]
        self.num_dropped += len(standing) - sum(standing)
        hidden = self._hidden(frame, standing)
        segments = [self.rows.place(each) for each, is_kept in zip(traversal.windows, standing, strict=True) if is_kept]
        try:
            output = self._runner.forward(segments, hidden=hidden) if segments else None
        finally:
            if hidden is not None:
                self._check_written(segments)
        if not is_last:
            return self._pass_on(frame, standing, output, cost)
        verdicts = self._judge(traversal, of_window, segments, output)
        return Landing(traversal.pipe_epoch, traversal.number, verdicts, self._work(frame, cost))

    def _check_layers_before(self, work: Sequence[StageWork]) -> None:
        """Raises: PeerProtocolError unless all layers before its own have computed what came, each once."""
        ends = (0, *(each.end for each in work))
        if [each.start for each in work] != list(ends[:-1]) or ends[-1] != self._runner.layers.start:
            came = ", ".join(f"{each.start}:{each.end}" for each in work) or "of no stage"
            own = self._runner.layers
            raise PeerProtocolError(f"what layers {came} have computed came to layers {own}: is a --next wrong?")

    def _check_windows(self, windows: Sequence[WindowHead]) -> None:
        """Raises: PeerProtocolError if the hidden states of all windows are too many, or token ids are missing."""
        state_bytes = self._runner.info.hidden_size * self._runner.cache.keys[0].element_size()
        num_tokens = sum(0 if each.is_dropped else each.num_tokens for each in windows)
        if num_tokens * state_bytes > MAX_HIDDEN_BYTES:
            raise PeerProtocolError(f"hidden states of {num_tokens} tokens are more than a stage takes")
        if self._runner.layers.is_first and not all(each.token_ids for each in windows):
            raise PeerProtocolError("the first stage is not told the token ids of a window")

    def _check_written(self, segments: Sequence[Segment]) -> None:
        """What another stage sends may be no numbers: then its pipe breaks, and they do not stay in the cache.

        Attention multiplies what it masks by 0, so a NaN would reach the next sequence in that row.

        Raises: PeerProtocolError if a key or a value that was written is not finite.
        """
        written = [self.rows.cache.behind(each.row, len(each.token_ids)) for each in segments]
        if all(bool(torch.isfinite(each).all()) for each in written):
            return
        for each in written:
            each.zero_()
        raise PeerProtocolError("hidden states of the stage before lead to keys and values that are not finite")

    def _stands(self, window: WindowHead, judge: JudgeOf | None) -> bool:
        """Whether a window is to be computed."""
        is_known = judge is None or self._laws.stands(window.row, judge)  # in any case: the judge may bring the law
        return not (window.is_dropped or self.rows.is_stale(window)) and is_known

    def _hidden(self, frame: Frame, standing: Sequence[bool]) -> Tensor | None:
        """The hidden states of the windows that are computed here."""
        if self._runner.layers.is_first:
            return None
        num_tokens = [0 if each.is_dropped else each.num_tokens for each in frame.traversal.windows]
        like = self._runner.cache.keys[0]
        hidden = unpack(frame.hidden, sum(num_tokens), self._runner.info.hidden_size, like, self.session.hidden_dtype)
        if all(standing):
            return hidden
        is_kept = [kept for kept, num in zip(standing, num_tokens, strict=True) for _ in range(num)]
        return hidden[like.new_tensor(is_kept).bool()]

    def _pass_on(self, frame: Frame, standing: Sequence[bool], output: ForwardOutput | None, cost: _Cost) -> Frame:
        traversal = frame.traversal
        windows = [
            replace(each, token_ids=[], is_dropped=not is_kept)
            for each, is_kept in zip(traversal.windows, standing, strict=True)
        ]
        hidden: Bytes = (
            b"" if output is None or output.hidden is None else pack(output.hidden, self.session.hidden_dtype)
        )
        return Frame(replace(traversal, windows=windows, work=self._work(frame, cost)), frame.judges, hidden)

    def _work(self, frame: Frame, cost: _Cost) -> tuple[StageWork, ...]:
        """Of the stages so far."""
        layers, compute_s = self._runner.layers, self._clock() - cost.started_s
        own = StageWork(compute_s, cost.wait_s, frame.num_bytes, len(frame.hidden), layers.start, layers.end)
        return (*frame.traversal.work, own)

    def _judge(
        self,
        traversal: Traversal,
        judges: dict[int, JudgeOf],
        segments: Sequence[Segment],
        output: ForwardOutput | None,
    ) -> list[VerdictOf]:
        """One verdict for each judge; one without tokens for a window that was dropped.

        A sequence whose law fails stays where it is, so windows that stand on what it was to emit are dropped.
        """
        of_row = {traversal.windows[index].row: each for index, each in judges.items()}
        computed = [each for each in segments if each.row in of_row]
        if output is None or not computed:
            return [VerdictOf() for _ in judges]
        windows = [Window(each, self._laws.judge(each.row, of_row[each.row])) for each in computed]
        verdicts = {
            each.segment.row: verdict for each, verdict in zip(windows, judge(windows, output, False), strict=True)
        }
        for row, verdict in verdicts.items():
            if verdict.error is None:
                self._laws.extend(row, verdict.result.token_ids)
            else:
                self._failures.append(verdict.error)
        return [told(verdicts[row]) if row in verdicts else VerdictOf() for row in of_row]

    def _free_all(self) -> None:
        self.rows.free_all()
        self._laws.forget_all()

    def _attached(self) -> Attached:
        layers, cache = self._runner.layers, self._runner.cache
        return Attached(
            self.session.pipe_epoch,
            layers.start,
            layers.end,
            layers.num_layers,
            self._runner.info.fingerprint,
            cache.num_rows,
            cache.max_len,
            self.session.stage_id,
            cache.num_bytes,
            str(cache.keys[0].dtype).removeprefix("torch."),
            self._is_invariant,
        )
