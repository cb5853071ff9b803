"""The ways of drafting for a vLLM server that are compared: a hub's, and each of its rivals in a server of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starspec.bench.faults.star_processes import ServerProcess
from starspec.bench.vllm.answers import Timed, VllmAnswer, ask_all
from starspec.bench.vllm.server import VllmServer, on_shared_cores
from starspec.errors import PeerLost

PLAIN, DRAFT_MODEL, HUB, SILENT_HUB = "plain", "vLLM's draft model", "hub", "silent hub"
PROPOSER: Final = "starspec.integrations.vllm.StarProposer"
MAX_MODEL_LEN: Final = 2048
KV_BYTES: Final = 300_000_000  # of each server
BACK_S: Final = 30.0  # longest wait until a hub's drafts come again
FEW_TOKENS: Final = 48  # of an answer that warms up: long enough for a row without drafts to probe


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModels:
    """What is measured, and how."""

    python: str  # interpreter of the environment with vLLM
    target: str
    draft: str
    quantization: str  # of the draft at the hub
    dtype: str
    num_threads: int  # of a server, and of the hub
    num_draft_tokens: int  # of the hub, at most
    vllm_options: Sequence[str] = ()  # further words of vLLM's command line

    def start_hub(self) -> ServerProcess:
        """Without waiting for it."""
        words = ["--draft", self.draft, "--draft-quantization", self.quantization, "--dtype", self.dtype]
        return ServerProcess("draft", *words, "--port", "0", "--num-threads", str(self.num_threads))

    def start_server(
        self, speculative: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> VllmServer:
        """Without waiting for it."""
        shape = ["--dtype", self.dtype, "--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory-bytes", str(KV_BYTES)]
        return VllmServer(
            self.python,
            self.target,
            speculative=speculative,
            options=[*shape, *self.vllm_options],
            environ={**on_shared_cores(self.num_threads), **(environ or {})},
        )


@dataclass(slots=True)
class Method:
    """One server, and how it has done so far."""

    name: str
    num_draft_tokens: int
    server: VllmServer
    stopped: ServerProcess | None = None  # a hub that stands still meanwhile
    rates: dict[int, list[float]] = field(default_factory=dict)  # batch size -> tokens/s of each repeat
    acceptance_lengths: dict[int, list[float]] = field(default_factory=dict)
    answers: dict[int, list[VllmAnswer]] = field(default_factory=dict)  # the last ones

    @property
    def title(self) -> str:
        """With its length, where it drafts."""
        return f"{self.name}, K = {self.num_draft_tokens}" if self.num_draft_tokens else self.name

    def batch_sizes(self, wanted: Sequence[int]) -> Sequence[int]:
        """Those that it is tried with: what a silent hub costs shows alone."""
        return wanted if self.stopped is None else wanted[:1]

    async def run(self, prompts: Sequence[Sequence[int]], num_tokens: int, batch_size: int) -> None:
        """Answer all prompts once. Raises: PeerLost if a request fails."""
        before = self.server.reading()
        with _standing_still(self.stopped):
            timed = await ask_all(self.server.url, prompts, num_tokens=num_tokens, batch_size=batch_size)
        reading = self.server.reading().since(before)
        self.rates.setdefault(batch_size, []).append(timed.tokens_per_s)
        self.acceptance_lengths.setdefault(batch_size, []).append(reading.acceptance_length)
        self.answers[batch_size] = timed.answers

    async def warm_up(self, prompt: Sequence[int]) -> Timed:
        """The first answer takes seconds; and a hub's drafts may begin later than the server does.

        Raises: PeerLost if no draft comes where drafts are due.
        """
        deadline_s = time.monotonic() + BACK_S
        while True:
            before = self.server.reading()
            timed = await ask_all(self.server.url, [prompt], num_tokens=FEW_TOKENS, batch_size=1)
            if self.num_draft_tokens == 0 or self.server.reading().num_drafts > before.num_drafts:
                return timed
            if time.monotonic() > deadline_s:
                raise PeerLost(f"no drafts reach the server of '{self.name}':\n{self.server.output()}")


@dataclass(frozen=True, slots=True)
class Star:
    """A hub and the server that it drafts for."""

    hub: ServerProcess
    server: VllmServer
    num_draft_tokens: int

    def methods(self, rival: Method) -> list[Method]:
        """What answers in turns with this rival. What a hub costs that answers nothing shows beside plain decoding."""
        ours = [Method(HUB, self.num_draft_tokens, self.server)]
        if rival.name == PLAIN:
            ours.append(Method(SILENT_HUB, self.num_draft_tokens, self.server, stopped=self.hub))
        return [rival, *ours]


@contextmanager
def _standing_still(hub: ServerProcess | None) -> Iterator[None]:
    if hub is None:
        yield
        return
    hub.send(signal.SIGSTOP)
    try:
        yield
    finally:
        hub.send(signal.SIGCONT)


def start_star(models: VllmModels, ending: ExitStack) -> Star:
    """Start a hub, which is waited for, and the server that it drafts for, which is not ready when this returns.

    Args:
        ending: closing it ends both.
    Raises: PeerLost if the hub does not come up; ConfigError as VllmServer.
    """
    hub = models.start_hub()
    ending.callback(hub.end)
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": models.num_draft_tokens}
    environ = {"STARSPEC_HUB": hub.wait_ready(), "STARSPEC_FALLBACK": "none"}
    return Star(hub, ending.enter_context(models.start_server(speculative, environ)), models.num_draft_tokens)


def start_rival(models: VllmModels, length: int, ending: ExitStack) -> Method:
    """Start a server that drafts without a hub, which is not ready when this returns.

    Args:
        length: draft tokens of vLLM's own draft model; 0 = plain decoding.
        ending: closing it ends the server.
    Raises: ConfigError as VllmServer.
    """
    own = {"method": "draft_model", "model": models.draft, "num_speculative_tokens": length} if length else None
    return Method(DRAFT_MODEL if length else PLAIN, length, ending.enter_context(models.start_server(own)))
