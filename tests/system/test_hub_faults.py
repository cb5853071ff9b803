"""The hub is killed, stopped and restarted in mid-stream, with eight streams open: no token changes.

How late tokens get is measured by `starspec bench faults`; timings do not belong in tests.

Real processes, real sockets, the openai client. The model is SmolLM2 in fp32, where equality is exact by design; where
no head needs the whole of it, its first layers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from safetensors.torch import load_file, save_file

from starspec.harness.servers import StarProcesses
from starspec.models.loading.demo_model import demo_head_folder

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
NUM_TOKENS = 20
NUM_BEGUN = 2  # pieces of each stream before something happens to the hub
MAX_ANSWERS = 8  # until drafts of a hub that has come are accepted


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
    pairs = zip(PROMPTS, streams, strict=False)
    await asyncio.gather(*(answer(client, prompt, stream, speculative) for prompt, stream in pairs))


async def until(condition, timeout_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


async def count_accepted(url: str) -> float:
    """Draft tokens accepted so far, over all targets."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{url}/metrics")).text.splitlines()
    name = "starspec_spec_decode_num_accepted_tokens_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


NUM_LAYERS = 6  # of 30


@pytest.fixture(scope="module")
def first_layers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 without most of its layers. It says little of sense, in less than half the time."""
    folder = tmp_path_factory.mktemp("models") / "first-layers"
    shutil.copytree(smollm2, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((smollm2 / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": NUM_LAYERS}))
    cut_off = tuple(f"model.layers.{layer}." for layer in range(NUM_LAYERS, config["num_hidden_layers"]))
    tensors = load_file(smollm2 / "model.safetensors").items()
    kept = {name: tensor for name, tensor in tensors if not name.startswith(cut_off)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


FIXED = {"length": {"policy": "fixed"}}  # each round drafts, whether or not it pays on these cores
TREE = ("--speculative-config", json.dumps({"num_steps": 4, "eagle_topk": 3, "num_draft_tokens": 13, **FIXED}))


async def test_killing_stopping_and_restarting_the_hub_changes_no_token(first_layers: Path) -> None:
    model, shape = str(first_layers), ("--dtype", "float32", "--max-model-len", "512", *TREE)
    draft_options = (
        "--draft-quantization",
        "int4",
        "--dtype",
        "float32",
        "--max-num-seqs",
        "16",
        "--max-model-len",
        "512",
    )
    with StarProcesses(model, model, draft_options=draft_options, target_options=shape) as star:
        await check_star(star)


async def test_the_same_of_a_hub_with_an_eagle_head(smollm2: Path) -> None:
    """The head that ships with the model: about half of what it proposes is accepted, the rest is rolled back.

    `test_head_faults.py` kills hubs that propose chains, too.
    """
    shape = ("--dtype", "float32", "--max-model-len", "512", *TREE)
    draft_options = (
        "--target",
        str(smollm2),
        "--spec-method",
        "eagle3",
        "--dtype",
        "float32",
        "--max-num-seqs",
        "3",
        "--max-model-len",
        "512",
    )
    with StarProcesses(
        str(smollm2), str(demo_head_folder()), draft_options=draft_options, target_options=shape
    ) as star:
        await check_star(star, num_streams=4, away_s=3.0)


async def check_star(star: StarProcesses, num_streams: int = len(PROMPTS), away_s: float = 10.0) -> None:
    """Every stream says what plain decoding says, whatever happens to the hub; accepted drafts come back with it."""
    async with AsyncOpenAI(base_url=f"{star.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        plain = [Stream() for _ in range(num_streams)]
        await answer_all(client, plain, speculative=False)

        async def has_begun() -> bool:
            return all(len(stream.moments) >= NUM_BEGUN for stream in streams)

        async def ask_until_drafts_are_accepted() -> None:
            """Soon, but on a busy machine not always within one answer."""
            before = await count_accepted(star.url)
            for _ in range(MAX_ANSWERS):
                again = [Stream() for _ in range(num_streams)]
                await answer_all(client, again)
                assert [stream.text for stream in again] == [stream.text for stream in plain]
                if await count_accepted(star.url) > before:
                    return
            pytest.fail(f"no draft was accepted in {MAX_ANSWERS} answers")

        await ask_until_drafts_are_accepted()

        # kill -9, then a new hub on the same port
        streams = [Stream() for _ in range(num_streams)]
        running = asyncio.create_task(answer_all(client, streams))
        await until(has_begun)
        star.hub.end(signal.SIGKILL)
        await asyncio.to_thread(star.restart_hub)
        await running
        assert [stream.text for stream in streams] == [stream.text for stream in plain]
        await ask_until_drafts_are_accepted()  # speculation is back with the hub

        # SIGSTOP for a while, then SIGCONT
        streams = [Stream() for _ in range(num_streams)]
        running = asyncio.create_task(answer_all(client, streams))
        await until(has_begun)
        star.hub.send(signal.SIGSTOP)
        await asyncio.wait({running}, timeout=away_s)
        star.hub.send(signal.SIGCONT)
        await running
        assert [stream.text for stream in streams] == [stream.text for stream in plain]
