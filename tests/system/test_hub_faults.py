"""The hub is killed, stopped and restarted in mid-stream, with eight streams open: no token changes.

How late tokens get is measured by `starspec bench faults`; timings do not belong in tests.

Real processes, real sockets, the openai client. The model is SmolLM2 in fp32, where equality is exact by design.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from starspec.bench.faults.star_processes import StarProcesses

pytestmark = [pytest.mark.system, pytest.mark.model]

PROMPTS = [
    "Write a short story about a lighthouse keeper who collects old radios.",
    "Explain how bread rises, step by step.",
    "List ten animals that live in the desert and one fact about each.",
    "What should a beginner know about repairing a bicycle?",
    "Describe the water cycle for a child.",
    "Write a letter to a friend who has moved to another town.",
    "How does a bill become a law?",
    "Give me a recipe for a vegetable soup and explain each step.",
]
NUM_TOKENS = 48


@dataclass
class Stream:
    """One answer as its client saw it."""

    text: str = ""
    moments: list[float] = field(default_factory=list)  # arrival of each piece


async def answer(client: AsyncOpenAI, prompt: str, stream: Stream, speculative: bool = True, seed: int = 1) -> None:
    pieces = await client.chat.completions.create(
        model=(await client.models.list()).data[0].id,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=NUM_TOKENS,
        temperature=0.7,
        seed=seed,
        stream=True,
        extra_body={"speculative": speculative, "ignore_eos": True},
    )
    async for piece in pieces:
        if piece.choices and piece.choices[0].delta.content:
            stream.text += piece.choices[0].delta.content
            stream.moments.append(time.monotonic())


async def answer_all(client: AsyncOpenAI, streams: list[Stream], speculative: bool = True) -> None:
    pairs = zip(PROMPTS, streams, strict=True)
    await asyncio.gather(*(answer(client, prompt, stream, speculative) for prompt, stream in pairs))


async def until(condition, timeout_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


async def accepted(url: str) -> float:
    """Draft tokens accepted so far, over all targets."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{url}/metrics")).text.splitlines()
    name = "starspec_spec_decode_num_accepted_tokens_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


CHAIN = ("--spec-tokens", "4")
TREE = ("--speculative-config", '{"num_steps": 4, "eagle_topk": 3, "num_draft_tokens": 13}')


@pytest.mark.parametrize("drafts", [CHAIN, TREE], ids=["chain", "tree"])
async def test_killing_stopping_and_restarting_the_hub_changes_no_token(smollm2: Path, drafts: tuple[str, ...]) -> None:
    shape = ("--dtype", "float32", "--max-model-len", "512", *drafts)
    draft_options = ("--draft-quantization", "int4", "--max-num-seqs", "16", "--max-model-len", "512")
    models = (str(smollm2), str(smollm2))
    with StarProcesses(*models, draft_options=draft_options, target_options=shape) as star:
        client = AsyncOpenAI(base_url=f"{star.url}/v1", api_key="none", max_retries=0, timeout=120)
        plain = [Stream() for _ in PROMPTS]
        await answer_all(client, plain, speculative=False)

        async def has_begun() -> bool:
            return all(len(stream.moments) >= 4 for stream in streams)

        # kill -9, then a new hub on the same port
        streams = [Stream() for _ in PROMPTS]
        running = asyncio.create_task(answer_all(client, streams))
        await until(has_begun)
        star.hub.end(signal.SIGKILL)
        await asyncio.to_thread(star.restart_hub)
        before = await accepted(star.url)
        if not running.done():
            await asyncio.wait({running})
        await running
        assert [stream.text for stream in streams] == [stream.text for stream in plain]

        # speculation is back with the hub
        again = [Stream() for _ in PROMPTS]
        running = asyncio.create_task(answer_all(client, again))

        async def is_back() -> bool:
            return await accepted(star.url) > before

        await until(is_back)
        await running
        assert [stream.text for stream in again] == [stream.text for stream in plain]

        # SIGSTOP for a while, then SIGCONT
        streams = [Stream() for _ in PROMPTS]
        running = asyncio.create_task(answer_all(client, streams))
        await until(has_begun)
        star.hub.send(signal.SIGSTOP)
        await asyncio.wait({running}, timeout=10.0)
        star.hub.send(signal.SIGCONT)
        await running
        assert [stream.text for stream in streams] == [stream.text for stream in plain]
        await client.close()
