"""Rejection sampling between real processes, with the hub killed in mid-stream: answers end, greedy ones are the same.

Sampled answers may differ from run to run, as proposals come or not; their distribution is tested in `tests/lossless`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable

import httpx
import pytest

from starspec.harness.servers import StarProcesses

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TARGET = "synthetic:vocab=256,step_ms=20,alpha=0.7"
DRAFT = "synthetic:vocab=256,step_ms=2,alpha=0.7,role=draft"
NUM_TOKENS = 160  # some seconds of a stream
NUM_STREAMS = 4
PATIENCE_S = 60.0


class Client:
    """Streams of one star's gateway, as their tokens' text."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def wait_for_target(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while (await self._http.get("/health")).status_code != httpx.codes.OK:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)

    async def stream(self, seed: int, pieces: list[str], options: dict[str, object]) -> None:
        model = (await self._http.get("/v1/models")).json()["data"][0]["id"]
        asked = {"model": model, "prompt": [seed, 1, 2], "max_tokens": NUM_TOKENS, "seed": seed, "stream": True}
        asked |= {"ignore_eos": True, **options}
        async with self._http.stream("POST", "/v1/completions", json=asked) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    pieces.append(choice["text"])
                    if choice["finish_reason"]:
                        pieces.append(f"<{choice['finish_reason']}>")

    async def num_accepted(self) -> float:
        """Draft tokens accepted so far."""
        lines = (await self._http.get("/metrics")).text.splitlines()
        name = "starspec_spec_decode_num_accepted_tokens_total{"
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def until(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


SHAPES = {
    "chain": {"num_speculative_tokens": 3},
    "tree": {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 9},
}
FIXED = {"length": {"policy": "fixed"}}  # each round drafts, whether or not it pays on these cores


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_killed_hub_ends_no_answer_and_changes_no_greedy_one(shape: str) -> None:
    words = json.dumps({**SHAPES[shape], **FIXED, "rejection_sample_method": "rejection"})
    with StarProcesses(TARGET, DRAFT, 1, target_options=("--speculative-config", words)) as star:
        async with httpx.AsyncClient(base_url=star.url, timeout=PATIENCE_S) as http:
            client = Client(http)
            await client.wait_for_target()
            plain: list[list[str]] = [[] for _ in range(NUM_STREAMS)]
            alone = {"temperature": 0.0, "speculative": False}
            await asyncio.gather(*(client.stream(seed, pieces, alone) for seed, pieces in enumerate(plain)))
            streams: list[list[str]] = [[] for _ in range(2 * NUM_STREAMS)]  # greedy ones, then sampled ones
            samplings = [{"temperature": 0.0}] * NUM_STREAMS
            samplings += [{"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.1}] * NUM_STREAMS
            asked = enumerate(zip(streams, samplings, strict=True))
            running = asyncio.gather(*(client.stream(each % NUM_STREAMS, *pair) for each, pair in asked))
            await until(lambda: all(len(pieces) > 8 for pieces in streams))
            assert await client.num_accepted() > 0
            star.hub.send(signal.SIGKILL)
            assert not running.done()
            await running
            assert all(pieces[-1] == "<length>" for pieces in streams)
        assert ["".join(pieces) for pieces in streams[:NUM_STREAMS]] == ["".join(pieces) for pieces in plain]
