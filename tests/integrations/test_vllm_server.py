"""A real hub, real vLLM servers and a starspec target, asked over HTTP: `make test-vllm`.

VLLM_PYTHON names the interpreter of an environment with vLLM and this source tree; without it these tests are skipped.
VLLM_RECEIPT names a file for what they found.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, counted, until
from openai import AsyncOpenAI
from scipy import stats

from starspec.bench.vllm.methods import NEAR_TIE, VllmAnswer, ask_all, partings
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.vllm import examine_vllm
from starspec.harness.datasets import hash_prompts, own_prompts, prompt_token_ids, spread
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import write_report
from starspec.harness.servers import VllmServer
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.output_files import why_no_file

PYTHON = os.environ.get("VLLM_PYTHON", "")
RECEIPT = os.environ.get("VLLM_RECEIPT", "")
NUM_TOKENS = 32
NUM_DRAWS = 1024  # answers of each server whose first two tokens are counted
FALSE_ALARM = 1e-4
HUB_RETURNS_S = 120.0  # it loads its model beside three busy servers
PREEMPTS_S = 240.0

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.model,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON is not set"),
]


@pytest.fixture(scope="module")
def fleet(smollm2: Path) -> Iterator[Fleet]:
    why = why_no_file(Path(RECEIPT)) if RECEIPT else None
    assert why is None, f"VLLM_RECEIPT: {why}"  # now, not after all tests
    with Fleet(PYTHON, str(smollm2)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def receipt(smollm2: Path, fleet: Fleet) -> Iterator[dict[str, Any]]:
    """What the tests found; saved if a file is wanted, of those that passed."""
    found: dict[str, Any] = {"vllm_version": fleet.wide.status().version}
    yield found
    if RECEIPT:
        write_report({"provenance": collect_provenance({"model": str(smollm2)}), "found": found}, Path(RECEIPT))


def text_of(num_sentences: int) -> str:
    return ("What should a beginner know about repairing a bicycle? " * num_sentences).strip()


def prompts_of(smollm2: Path, num: int) -> list[list[int]]:
    tokenizer = load_tokenizer(str(smollm2))
    return [prompt_token_ids(tokenizer, prompt) for prompt in spread(own_prompts(), num)]


async def greedy(url: str, prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    return [each.token_ids for each in (await ask_all(url, prompts, num_tokens=NUM_TOKENS, batch_size=1)).answers]


async def drafting(fleet: Fleet) -> None:
    """Return once the hub's drafts reach both servers."""
    for name, server in (("tight", fleet.tight), ("wide", fleet.wide)):
        before = counted(server.url, "spec_decode_num_drafts")

        async def has_drafts(url: str = server.url, before: float = before) -> bool:
            await ask_all(url, [[100, 200, 300]], num_tokens=24, batch_size=1)
            return counted(url, "spec_decode_num_drafts") > before

        def seen(name: str = name, server: VllmServer = server) -> str:
            return f"no draft reached '{name}'\n{fleet.last_words()}\n{server.output()}"

        await until(has_drafts, HUB_RETURNS_S, seen)


async def nothing_left(fleet: Fleet) -> bool:
    return await fleet.num_tags() == 0


async def test_greedy_answers_are_those_without_drafts_whatever_the_hub_does(
    fleet: Fleet, smollm2: Path, receipt: dict[str, Any]
) -> None:
    """fp32, where two tokens are never as likely."""
    url, prompts = fleet.tight.url, prompts_of(smollm2, 6)
    await drafting(fleet)
    before = counted(url, "spec_decode_num_accepted_tokens")
    with_drafts = await greedy(url, prompts)
    num_accepted = counted(url, "spec_decode_num_accepted_tokens") - before
    assert num_accepted > NUM_TOKENS  # the draft is the target itself
    await until(lambda: nothing_left(fleet), 2.0)

    fleet.hub.end(signal.SIGKILL)
    await asyncio.sleep(1.0)
    before = counted(url, "spec_decode_num_draft_tokens")
    assert await greedy(url, prompts) == with_drafts
    assert counted(url, "spec_decode_num_draft_tokens") == before

    fleet.start_hub()
    await drafting(fleet)
    assert await greedy(url, prompts) == with_drafts
    receipt["fp32_greedy"] = {"prompts": len(prompts), "accepted_draft_tokens": num_accepted, "identical": len(prompts)}


async def test_in_bf16_answers_differ_at_near_ties_alone(fleet: Fleet, smollm2: Path, receipt: dict[str, Any]) -> None:
    prompts = prompts_of(smollm2, 24)
    assert len(prompts) == 24
    await drafting(fleet)
    plain = (await ask_all(fleet.plain.url, prompts, num_tokens=NUM_TOKENS, batch_size=1, with_likeliest=True)).answers
    found = (await ask_all(fleet.wide.url, prompts, num_tokens=NUM_TOKENS, batch_size=1)).answers
    parted = partings(plain, found)
    assert all(each.is_near_tie for each in parted), parted
    assert len(parted) < 12  # or these would not be the same model
    receipt["bf16_greedy"] = {
        "prompts": len(prompts),
        "prompts_sha256": hash_prompts(spread(own_prompts(), 24)),
        "tokens_each": NUM_TOKENS,
        "identical": len(prompts) - len(parted),
        "near_tie_bound_nats": NEAR_TIE,
        "near_ties": parted,
    }


async def test_the_doctor_tells_what_a_plain_server_would_gain(
    fleet: Fleet, smollm2: Path, receipt: dict[str, Any]
) -> None:
    """Its draft is the target itself."""
    model, draft = ModelConfig(model=str(smollm2), num_threads=1), SpeculativeConfig(model=str(smollm2))
    plan = {"max_tokens": NUM_TOKENS, "max_draft_tokens": 2, "link_s": 0.0}
    found = await asyncio.to_thread(examine_vllm, fleet.plain.url, model, draft, own_prompts()[:3], **plan)
    assert found.is_usable
    greedy, warm = found.prospects
    assert greedy.num_positions > NUM_TOKENS
    assert greedy.first_choice_rate > 0.9  # all but near-ties, of bf16 and of two implementations
    assert warm.first_choice_rate < greedy.first_choice_rate
    receipt["doctor"] = [
        {"sampling": each.sampling, "positions": each.num_positions, "first_choice_rate": each.first_choice_rate}
        for each in found.prospects
    ]


async def test_at_temperature_the_distribution_is_unchanged(fleet: Fleet, receipt: dict[str, Any]) -> None:
    """Counts of the first two tokens; the second is drawn by vLLM's rejection sampler, against the hub's proposal."""
    await drafting(fleet)
    prompt = [504, 1075, 338, 260, 2240, 314]  # five words
    before = counted(fleet.wide.url, "spec_decode_num_drafts")

    async def draws(url: str) -> list[VllmAnswer]:
        sampling = {"temperature": 0.7}
        return (await ask_all(url, [prompt] * NUM_DRAWS, num_tokens=2, batch_size=8, sampling=sampling)).answers

    plain, drafted = await draws(fleet.plain.url), await draws(fleet.wide.url)
    num_drafts = counted(fleet.wide.url, "spec_decode_num_drafts") - before
    assert num_drafts > NUM_DRAWS / 4
    p_values = []
    for token in (0, 1):
        counts = [Counter(each.token_ids[token] for each in answers) for answers in (plain, drafted)]
        common = [each for each, num in (counts[0] + counts[1]).items() if num >= 10]
        table = [[count[each] for each in common] for count in counts]
        others = [NUM_DRAWS - sum(row) for row in table]
        cells = [[*row, rest] if sum(others) else row for row, rest in zip(table, others, strict=True)]
        assert len(common) > 3, "this prompt says nothing of the distribution"
        p_values.append(float(stats.chi2_contingency(cells).pvalue))
    assert min(p_values) > FALSE_ALARM
    receipt["sampled"] = {
        "temperature": 0.7,
        "draws_each": NUM_DRAWS,
        "drafts_verified": num_drafts,
        "chi_square_p": {"first token": p_values[0], "second token": p_values[1]},
        "false_alarm_rate": FALSE_ALARM,
    }


class Streams:
    """Sixteen streams at a time over all servers that the hub drafts for, some broken off by their clients."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.num_ended = self.num_broken_off = 0

    async def run(self, is_over: asyncio.Event) -> None:
        """Ask until the event; those under way are the last. Raises: whatever a client would see."""
        lengths = (1, 12, 60, 165)  # sentences of nine words: up to 1,500 tokens
        async with asyncio.TaskGroup() as group:
            for number in range(16):
                url = (self._fleet.tight.url, self._fleet.wide.url, self._fleet.gateway_url)[number % 3]
                num_sentences, num_tokens = lengths[number % 4], NUM_TOKENS
                if url == self._fleet.tight.url:  # a long prompt leaves blocks for another, but not for both answers
                    num_sentences, num_tokens = (165 if number == 3 else 30), 4 * NUM_TOKENS
                prompt = "Hi" if number < 3 else text_of(num_sentences)
                group.create_task(self._keep_asking(url, prompt, num_tokens, number, is_over))

    async def _keep_asking(self, url: str, prompt: str, num_tokens: int, number: int, is_over: asyncio.Event) -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
            model = (await client.models.list()).data[0].id
            while not is_over.is_set():
                stream = await client.completions.create(
                    model=model, prompt=prompt, max_tokens=num_tokens, temperature=0.7, stream=True,
                    stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
                )  # fmt: skip
                num_pieces, usage = 0, None
                async for piece in stream:
                    num_pieces, usage = num_pieces + 1, piece.usage
                    if number % 5 == 4 and num_pieces == 3:
                        await stream.close()
                        self.num_broken_off += 1
                        break
                else:
                    assert usage is not None
                    assert usage.completion_tokens == num_tokens  # in few pieces, where a busy server joins them
                    self.num_ended += 1


async def test_a_fleet_of_two_vllm_servers_and_a_target_outlives_whatever_befalls_its_hub(
    fleet: Fleet, smollm2: Path, receipt: dict[str, Any]
) -> None:
    """Killed, started again, stopped for ten seconds, replaced by another draft: no error, no hang, no tag left."""
    await drafting(fleet)
    preempted = counted(fleet.tight.url, "num_preemptions")
    streams, is_over = Streams(fleet), asyncio.Event()
    running = asyncio.create_task(streams.run(is_over))

    async def is_whole() -> bool:
        assert not running.done(), f"{running.exception()!r}\n{fleet.last_words()}"
        return await fleet.num_targets() == 3

    await asyncio.sleep(5.0)
    await until(is_whole, 30.0, fleet.last_words)  # a question may not be answered in time: every core has a queue

    fleet.hub.end(signal.SIGKILL)
    fleet.start_hub()
    await until(is_whole, HUB_RETURNS_S, fleet.last_words)
    await drafting(fleet)

    fleet.hub.send(signal.SIGSTOP)
    await asyncio.sleep(10.0)
    fleet.hub.send(signal.SIGCONT)
    await until(is_whole, 30.0, fleet.last_words)
    await drafting(fleet)

    fleet.hub.end(signal.SIGTERM)
    fleet.start_hub("--draft", str(smollm2), "--draft-quantization", "int8")  # another draft, on the same port
    await until(is_whole, HUB_RETURNS_S, fleet.last_words)
    await drafting(fleet)

    async def has_preempted() -> bool:
        assert not running.done(), f"{running.exception()!r}\n{fleet.last_words()}"
        return counted(fleet.tight.url, "num_preemptions") > preempted

    await until(has_preempted, PREEMPTS_S)
    is_over.set()
    await running
    await until(lambda: nothing_left(fleet), 2.0)
    assert streams.num_broken_off > 0
    await drafting(fleet)  # when the servers have time for it, too
    receipt["fleet"] = {
        "streams": 16,
        "answers_ended": streams.num_ended,
        "answers_broken_off": streams.num_broken_off,
        "preemptions": counted(fleet.tight.url, "num_preemptions") - preempted,
        "errors": 0,
    }
