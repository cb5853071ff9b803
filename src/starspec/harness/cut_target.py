"""A target in stages for measuring: each stage is on a thread of this process, behind its own socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final, Self

from starspec.config import ModelConfig, PipeConfig, StageConfig, TargetConfig
from starspec.stages.build import build_stage
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.open import open_stages
from starspec.stages.server import StageServer
from starspec.wire.transports.waiting import Waiting

IN_FLIGHT: Final = 2  # rounds that travel at once
SILENCE_S: Final = 20.0  # the stages share one interpreter, so each may be late
STOP_S: Final = 10.0


class CutTarget:
    """A model that is cut into equal stages. A context manager.

    Raises: as build_stage.
    """

    def __init__(self, model: ModelConfig, num_stages: int) -> None:
        self.num_stages = num_stages
        self._model = model
        with ExitStack() as stack:
            self.endpoints = [
                stack.enter_context(_serving(model, f"{place + 1}/{num_stages}")).address for place in range(num_stages)
            ]
            self._stack = stack.pop_all()

    @contextmanager
    def coordinator(self) -> Iterator[RemoteVerifier]:
        """Attach the stages. They are free again behind the block. Raises: as open_stages."""
        pipe = PipeConfig(stages=tuple(self.endpoints), in_flight=IN_FLIGHT, silence_s=SILENCE_S)
        verifier = open_stages(TargetConfig(name="bench", pipe=pipe), self._model, Waiting()).verifier
        try:
            yield verifier
        finally:
            verifier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def _serving(model: ModelConfig, layers: str) -> Iterator[StageServer]:
    server = build_stage(StageConfig(layers=layers, listen="tcp://127.0.0.1:0", silence_s=SILENCE_S), model)
    thread = threading.Thread(target=server.run, name=f"bench-stage-{layers}", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(STOP_S)
