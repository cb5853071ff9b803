"""A hub, vLLM servers and a starspec target, all of them real processes on SmolLM2.

tight   vLLM, fp32, a key-value cache of few blocks, so that requests are preempted; drafts by the hub
wide    vLLM, bf16, room for sixteen; drafts by the hub
plain   as wide, without speculation
target   a starspec target behind a gateway; drafts by the hub
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import httpx

from starspec.errors import LinkError
from starspec.gateway.hub_status import HubStatusClient
from starspec.harness.servers import StarspecServer, VllmServer, free_port, on_shared_cores
from starspec.stats import HubStats

NUM_DRAFT_TOKENS = 4
STAR = {
    "method": "custom_class",
    "model": "starspec.integrations.vllm.StarProposer",
    "num_speculative_tokens": NUM_DRAFT_TOKENS,
}
SHAPE = ("--enforce-eager", "--max-model-len", "2048", "--max-num-batched-tokens", "256", "--block-size", "32")
BLOCKS = ("--num-gpu-blocks-override", "66", "--no-enable-prefix-caching")  # one row needs 64, and shares none
TIGHT = ("--dtype", "float32", "--max-num-seqs", "8", *BLOCKS)
WIDE = ("--dtype", "bfloat16", "--max-num-seqs", "16")
KV = ("--kv-cache-memory-bytes", "400000000")


class Fleet:
    """A context manager; entering it waits until all serve, leaving it ends all."""

    def __init__(self, python: str, model: str) -> None:
        self._model = model
        self._ending = ExitStack()
        self._hub_port = free_port()
        self.hub_endpoint = f"tcp://127.0.0.1:{self._hub_port}"
        self.start_hub()
        # each step drafts, whether or not drafts pay that cost as much as the target's own tokens
        environ = {"STARSPEC_HUB": self.hub_endpoint, "STARSPEC_FALLBACK": "none", "STARSPEC_ADAPTIVE": "false"}
        self.tight = self._vllm(python, TIGHT, STAR, environ | {"STARSPEC_NAME": "tight"})
        # eight prompts at once have their drafts before the next step, however slow the machine is
        patient = {"STARSPEC_NAME": "wide", "STARSPEC_DEADLINE_MS": "5000"}
        self.wide = self._vllm(python, WIDE, STAR, environ | patient)
        self.plain = self._vllm(python, WIDE, None, {})
        words = ("--name", "routed", "--port", "0", "--hub", self.hub_endpoint, "--max-model-len", "2048")
        self.routed = self._server("target", "--target", model, *words)

    def start_hub(self, *words: str) -> None:
        """On the port of the one before, which is gone. Returns before it serves."""
        port = ("--port", str(self._hub_port))
        draft = words or ("--draft", self._model, "--draft-quantization", "int4")
        self.hub = self._server("draft", *draft, *port, "--num-threads", "1")

    async def hub_stats(self) -> HubStats:
        asker = HubStatusClient(self.hub_endpoint)
        try:
            return (await asker()).stats
        finally:
            asker.close()

    def last_words(self) -> str:
        """The ends of what our own processes have printed, and whether they live, for a test that failed."""
        ours = (self.hub, self.routed, self.gateway)
        return "\n".join(f"{each.arguments[0]} {each.process.poll()}: {each.output()[-2000:]}" for each in ours)

    async def num_tags(self) -> int:
        return (await self.hub_stats()).num_tags

    async def num_targets(self) -> int:
        """That the hub knows; -1 while it cannot be asked."""
        try:
            return (await self.hub_stats()).num_targets
        except LinkError:
            return -1

    def __enter__(self) -> Self:
        try:
            endpoint = self.routed.wait_ready()
            self.gateway = self._server("gateway", "--target", self._model, "--port", "0", "--endpoint", endpoint)
            self.gateway_url = self.gateway.wait_ready().removesuffix("/v1")
            for server in (self.tight, self.wide, self.plain):
                server.wait_ready()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def _server(self, *words: str) -> StarspecServer:
        server = StarspecServer(*words)
        self._ending.callback(server.end)
        return server

    def _vllm(self, python: str, shape: Any, speculative: Any, environ: dict[str, str]) -> VllmServer:
        options, environ = [*SHAPE, *KV, *shape], on_shared_cores(1) | environ
        server = VllmServer(python, self._model, speculative=speculative, options=options, environ=environ)
        self._ending.callback(server.end)
        return server


async def until(
    condition: Callable[[], Awaitable[bool]], timeout_s: float, seen: Callable[[], str] = lambda: "nothing"
) -> None:
    """Args: seen: what else is known when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, f"{condition} is not so after {timeout_s:g} s; seen: {seen()}"
        await asyncio.sleep(0.1)


def counted(url: str, name: str) -> float:
    """One of vLLM's counters, since its start."""
    lines = httpx.get(f"{url}/metrics").text
    return sum(float(each) for each in re.findall(rf"^vllm:{name}_total\{{.*\}} (\S+)", lines, re.MULTILINE))
