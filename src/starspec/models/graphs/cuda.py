"""CUDA graphs of small forwards: several hundred kernels launched at once.

A decoding step of a small model is limited by kernel launches, not by bytes: SmolLM2 on an H200 took 12 ms a step,
while reading its weights takes 0.06 ms. So the first forward of each shape (`models/graphs/step_batch.py`) is recorded,
and later ones replay it. Recording takes tens of milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol
from weakref import WeakMethod

import structlog
import torch

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.mask import is_chain
from starspec.models.batch import PackedBatch, Piece, RowRange
from starspec.models.graphs.step_batch import MAX_TREE_LEN, StepBatch, StepShape, step_shape, wanted_logits
from starspec.models.loading.transformers_calls import first_line
from starspec.models.runner import ForwardOutput

MAX_GRAPHS: Final = 256  # forwards of further shapes are launched kernel by kernel
NUM_WARM_UPS: Final = 2  # runs before a recording, in which libraries allocate memory and choose kernels

log = structlog.get_logger()

Run = Callable[[PackedBatch, Sequence[int]], ForwardOutput]
Step = Callable[[], ForwardOutput]


class Recorder(Protocol):
    """Makes a step that repeats what the given step did."""

    def __call__(self, step: Step) -> Step: ...


class CudaRecorder:
    """Records CUDA graphs that share the memory that a step needs only while it runs."""

    _at_work: ClassVar[threading.Lock] = threading.Lock()  # torch records one graph at a time in a process

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, step: Step) -> Step:
        """Record a step.

        Returns: a step that launches the same kernels. Each time, it overwrites and returns the same tensors.
        """
        with self._at_work, torch.cuda.device(self._device):
            before = torch.cuda.current_stream()
            # on this device; by default torch takes a stream of the device that was first recorded on
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            try:
                stream.wait_stream(before)
                with torch.cuda.stream(stream):
                    for _ in range(NUM_WARM_UPS):
                        step()
                before.wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                    output = step()
                self._pool = graph.pool()
            finally:
                torch.cuda.set_stream(before)  # a failed recording leaves its own stream set

        def replay() -> ForwardOutput:
            with torch.cuda.device(self._device):
                graph.replay()
            return output

        return replay


class _Recorded(NamedTuple):
    """A recorded step of one shape that gives the features of certain layers."""

    batch: StepBatch
    replay: Step


class StepGraphs:
    """Runs small forwards of a runner in fixed shapes, which are recorded once and replayed.

    If there is no memory to record a shape, its forwards are launched kernel by kernel. After any other failure,
    nothing more is recorded.

    Args:
        run: the runner's method that runs a packed batch; held weakly, so that it does not keep the runner alive.
        cache: the keys and values.
        num_heads: Hq, query heads of a layer.
        record: records steps; None = CUDA graphs.
    """

    def __init__(self, run: Run, cache: RaggedCache, num_heads: int, record: Recorder | None = None) -> None:
        self._run, self._cache, self._num_heads = WeakMethod(run), cache, num_heads
        self._record = record or CudaRecorder(cache.device)
        self._recorded: dict[tuple[StepShape, tuple[int, ...]], _Recorded] = {}
        self._too_large = set[StepShape]()
        self._max_graphs = MAX_GRAPHS

    def of(self, run: Run) -> StepGraphs:
        """The same for another runner over the same cache."""
        return StepGraphs(run, self._cache, self._num_heads, self._record)

    @property
    def num_graphs(self) -> int:
        """Shapes that have been recorded so far."""
        return len(self._recorded)

    def shares(self, pieces: Sequence[Piece], rows: RowRange) -> list[list[Piece]]:
        """Distribute the pieces of a forward over steps, in order.

        Args:
            pieces: what the forward computes.
            rows: the row counts that a step may have, with an upper limit.
        Returns: [] for a prefill; otherwise pieces grouped so that `step_shape` has a shape for each group. The
            exception is a tree of more than MAX_TREE_LEN tokens, which no target has.
        """
        shares: list[list[Piece]] = []
        for piece in pieces:
            if piece.is_prompt:
                return []
            if shares and step_shape([*shares[-1], piece], self._cache, rows) is not None:
                shares[-1].append(piece)
            else:
                shares += [[part] for part in self._parts(piece, rows)]
        return shares

    def _parts(self, piece: Piece, rows: RowRange) -> list[Piece]:
        """A piece, cut if it is too large for a step."""
        is_beyond = len(piece.segment.token_ids) > MAX_TREE_LEN and not is_chain(piece.segment.parents)
        if piece.num_tokens == 1 or is_beyond or step_shape([piece], self._cache, rows) is not None:
            return [piece]
        middle = (piece.first + piece.last) // 2
        halves = (Piece(piece.segment, piece.first, middle), Piece(piece.segment, middle, piece.last))
        return [part for half in halves for part in self._parts(half, rows)]

    @torch.inference_mode()
    def forward(self, pieces: Sequence[Piece], rows: RowRange, feature_layers: Sequence[int]) -> ForwardOutput | None:
        """Run one step. Effects: as a forward of the runner.

        Args:
            pieces: what the forward computes.
            rows: the row counts that it may have.
            feature_layers: as for the runner's forward.
        Returns: the logits that the pieces want, and features of all their tokens. None if there is no shape for them,
            or if bits are not preserved and the step cannot be recorded; then nothing was computed.
        Raises: as the runner's forward.
        """
        shape = step_shape(pieces, self._cache, rows)
        if shape is None:
            return None
        layers = tuple(feature_layers)
        recorded = self._recorded.get((shape, layers)) or self._recording(shape, pieces, layers)
        if recorded is None:
            if rows.highest is None:
                return None
            batch = StepBatch(shape, self._cache, self._num_heads)  # the same bits as a recorded step
            recorded = _Recorded(batch, self._step(batch, layers))
        recorded.batch.fill(pieces)
        return _of_pieces(recorded.replay(), pieces, shape.num_tokens)

    def _step(self, batch: StepBatch, layers: tuple[int, ...]) -> Step:
        def step() -> ForwardOutput:
            run = self._run()
            assert run is not None, "the runner was deleted while a step of it ran"
            batch.prepare()
            return run(batch.packed, layers)

        return step

    def _recording(self, shape: StepShape, pieces: Sequence[Piece], layers: tuple[int, ...]) -> _Recorded | None:
        if len(self._recorded) >= self._max_graphs or shape in self._too_large:
            return None
        try:
            batch = StepBatch(shape, self._cache, self._num_heads)
            batch.fill(pieces)
            recorded = self._recorded[shape, layers] = _Recorded(batch, self._record(self._step(batch, layers)))
        except torch.OutOfMemoryError:
            log.warning("not enough memory for a CUDA graph of this shape", shape=shape)
            self._too_large.add(shape)
            return None
        except RuntimeError as error:  # a kernel of this model or this machine cannot be recorded
            log.warning("a step cannot be recorded: no more CUDA graphs", shape=shape, error=first_line(error))
            self._max_graphs = 0
            return None
        return recorded


def _of_pieces(output: ForwardOutput, pieces: Sequence[Piece], num_tokens: int) -> ForwardOutput:
    """Copy what the pieces asked for, because the next forward of this shape overwrites the output."""
    num_logits = sum(wanted_logits(piece) for piece in pieces)
    features = output.features
    if features is not None:
        of_each = features.view(-1, num_tokens, features.shape[-1])
        features = torch.cat([of_each[index, : piece.num_tokens] for index, piece in enumerate(pieces)])
    return ForwardOutput(output.logits[:num_logits].clone(), features)
