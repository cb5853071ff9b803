"""`starspec bench faults`: kill, restart and stop the hub of a real star while clients stream answers."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

from starspec.errors import PeerLost
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.servers import StarProcesses
from starspec.harness.table import Block, Column, Table, share
from starspec.local_star import check_drafts

DONE = "[DONE]"
TIMEOUT_S = 60.0


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


@dataclass(slots=True)
class Stream:
    """One answer as its client saw it."""

    text: str = ""
    moments_s: list[float] = field(default_factory=list)  # time.monotonic of each piece

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """The longest time between two pieces, where the later one came in `start_s .. end_s`; 0 if there is none."""
        pairs = zip(self.moments_s, self.moments_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if start_s <= later <= end_s), default=0.0)


class Clients:
    """One client for each prompt. An async context manager.

    Args:
        url: of the gateway, without a path.
        num_tokens: of each answer. The end-of-sequence token is ignored, so that streams last.
    """

    def __init__(self, url: str, prompts: Sequence[str], num_tokens: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)
        self._model = ""
        self._prompts = prompts
        self._num_tokens = num_tokens

    async def __aenter__(self) -> Clients:
        models = await self._http.get("/v1/models")
        self._model = models.raise_for_status().json()["data"][0]["id"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answers(self) -> list[str]:
        """Decode one answer to each prompt plainly, all at once. Raises: httpx.HTTPError."""
        streams = [Stream() for _ in self._prompts]
        pairs = zip(self._prompts, streams, strict=True)
        await asyncio.gather(*(self._ask(prompt, stream, speculative=False) for prompt, stream in pairs))
        return [stream.text for stream in streams]

    async def keep_asking(self, until: asyncio.Event, *, speculative: bool = True) -> list[list[Stream]]:
        """Stream answers to each prompt, one after the other. After the event no new answer begins.

        Returns: [prompt][answer]. Raises: httpx.HTTPError.
        """
        return await asyncio.gather(*(self._keep_asking(prompt, until, speculative) for prompt in self._prompts))

    async def metrics(self) -> list[str]:
        """Lines of the gateway's /metrics. Raises: httpx.HTTPError."""
        return (await self._http.get("/metrics")).text.splitlines()

    async def _keep_asking(self, prompt: str, until: asyncio.Event, speculative: bool) -> list[Stream]:
        streams = []
        while not until.is_set():
            streams.append(Stream())
            await self._ask(prompt, streams[-1], speculative=speculative)
        return streams

    async def _ask(self, prompt: str, stream: Stream, *, speculative: bool) -> None:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._num_tokens,
            "temperature": 0.7,
            "seed": 1,
            "stream": True,
            "ignore_eos": True,
            "speculative": speculative,
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                response.raise_for_status()
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data in (line, DONE):
                    continue
                text = "".join(choice.text for choice in msgspec.json.decode(data, type=_Chunk).choices)
                if text:
                    stream.text += text
                    stream.moments_s.append(time.monotonic())


NUM_TARGETS = 2
NUM_STREAMS = 8
MAX_MODEL_LEN = 512
MAX_GAP_S = 0.250  # a client may wait so long for a token, even if rounds are short
WINDOW_S = 1.5
LOOK_S = 0.02  # between two requests of /metrics
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How much to measure."""

    num_tokens: int = 128  # of each answer
    calm_s: float = 2.0  # before a fault
    away_s: float = 10.0  # how long the hub is stopped
    num_repeats: int = 3

    @property
    def num_turns(self) -> int:
        """How often `measure_faults` advances: at its start, before plain decoding, and before each fault."""
        return 2 + 2 * self.num_repeats


QUICK = FaultPlan(num_tokens=64, calm_s=1.0, away_s=5.0, num_repeats=1)  # half the answer, so half the calm


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One fault."""

    fault: str
    num_answers: int
    num_identical: int  # to plain decoding of the same target
    round_ms: float  # before the fault, of the target with the longer rounds
    calm_gap_ms: float  # longest time between two pieces of one stream before the fault, for comparison
    gap_ms: float  # the same in WINDOW_S from the fault, while no new prompt is prefilled
    outage_gap_ms: float  # the same until the hub serves again, while new prompts are prefilled and the hub loads
    max_gap_ms: float  # the bound: max(250 ms, 2 rounds)
    back_s: float  # from the hub's return until every target has accepted draft tokens again


def draft_options(models: ModelPair) -> tuple[str, ...]:
    """More arguments of the hub's command line. An EAGLE head needs the target's embedding."""
    borrowed = ("--target", models.target) if models.has_head else ()
    return ("--draft-quantization", models.quantization, "--spec-method", models.method, *borrowed)


def measure_faults(
    models: ModelPair, prompts: Sequence[str], plan: FaultPlan, advance: Callable[[str], None]
) -> Report:
    """Start a star, open NUM_STREAMS streams, and kill and stop its hub.

    Args:
        advance: called with the name of the next step, `plan.num_turns` times.
    Raises: as check_drafts; PeerLost if the star does not come up or does not recover; httpx.HTTPError if a stream
        breaks.
    """
    check_drafts(models.target_config(), models.speculative())
    advance("starting the star")
    shape = ("--dtype", models.dtype, "--max-model-len", str(MAX_MODEL_LEN))
    with StarProcesses(
        models.target,
        models.draft,
        NUM_TARGETS,
        draft_options=(*shape, *draft_options(models)),
        target_options=shape,
    ) as star:
        rows = asyncio.run(_hurt(star, prompts[:NUM_STREAMS], plan, advance))
    notes = {"num_targets": NUM_TARGETS, "num_streams": NUM_STREAMS, "temperature": 0.7, "threads_a_process": 1}
    return Report(collect_provenance(models.names), rows, fault_ratios(rows), notes)


def fault_ratios(rows: Sequence[FaultRow]) -> dict[str, float]:
    """The largest gap over its bound, of all rows."""
    return {"longest_gap_vs_max": round(max(row.gap_ms / row.max_gap_ms for row in rows), 3)}


async def _hurt(
    star: StarProcesses, prompts: Sequence[str], plan: FaultPlan, advance: Callable[[str], None]
) -> list[FaultRow]:
    rows = []
    async with Clients(star.url, prompts, plan.num_tokens) as clients:
        advance("plain decoding")
        plain = await clients.answers()
        for _ in range(plan.num_repeats):
            for fault in (_Killed(star), _Stopped(star, plan.away_s)):
                advance(fault.name)
                rows.append(await _measure(fault, clients, plain, plan))
    return rows


class _Killed:
    """kill -9, then a new hub on the same port, which takes time to load."""

    name = "kill -9 and restart"

    def __init__(self, star: StarProcesses) -> None:
        self._star = star

    async def hurt(self) -> None:
        self._star.hub.end(signal.SIGKILL)
        await asyncio.sleep(2.0)

    async def heal(self) -> None:
        await asyncio.to_thread(self._star.restart_hub)


class _Stopped:
    """SIGSTOP, and SIGCONT later: connections stay open, and nobody answers."""

    def __init__(self, star: StarProcesses, away_s: float) -> None:
        self.name = f"SIGSTOP for {away_s:g} s"
        self._star = star
        self._away_s = away_s

    async def hurt(self) -> None:
        self._star.hub.send(signal.SIGSTOP)
        await asyncio.sleep(self._away_s)

    async def heal(self) -> None:
        self._star.hub.send(signal.SIGCONT)


async def _measure(fault: _Killed | _Stopped, clients: Clients, plain: Sequence[str], plan: FaultPlan) -> FaultRow:
    is_over = asyncio.Event()
    before = await _accepted(clients)
    asking = asyncio.create_task(clients.keep_asking(is_over))
    await _until_drafted(clients, before)
    calm_at_s = time.monotonic()
    await asyncio.sleep(plan.calm_s)
    round_s = max((await by_target(clients, "round_seconds")).values())
    hurt_at_s = time.monotonic()
    await fault.hurt()
    await fault.heal()
    healed_at_s = time.monotonic()
    await _until_drafted(clients, await _accepted(clients))
    back_s = time.monotonic() - healed_at_s
    is_over.set()
    answers = await asking
    streams = [stream for each in answers for stream in each]
    return FaultRow(
        fault=fault.name,
        num_answers=len(streams),
        num_identical=sum(stream.text == text for each, text in zip(answers, plain, strict=True) for stream in each),
        round_ms=round(round_s * 1e3, 1),
        calm_gap_ms=_longest_gap_ms(streams, calm_at_s, hurt_at_s),
        gap_ms=_longest_gap_ms(streams, hurt_at_s, hurt_at_s + WINDOW_S),
        outage_gap_ms=_longest_gap_ms(streams, hurt_at_s, healed_at_s),
        max_gap_ms=round(max(MAX_GAP_S, 2 * round_s) * 1e3, 1),
        back_s=round(back_s, 2),
    )


def _longest_gap_ms(streams: Sequence[Stream], start_s: float, end_s: float) -> float:
    return round(max(stream.longest_gap_s(start_s, end_s) for stream in streams) * 1e3, 1)


async def _until_drafted(clients: Clients, accepted: dict[str, float]) -> None:
    """Wait until every target has accepted more draft tokens. Raises: PeerLost after PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        now = await _accepted(clients)
        if len(now) == NUM_TARGETS and all(now[target] > accepted.get(target, 0.0) for target in now):
            return
        if time.monotonic() > deadline_s:
            raise PeerLost(f"not every target speculates again after {PATIENCE_S:.0f} s: {accepted} before, {now} now")
        await asyncio.sleep(LOOK_S)


async def _accepted(clients: Clients) -> dict[str, float]:
    return await by_target(clients, "spec_decode_num_accepted_tokens_total")


async def by_target(clients: Clients, name: str) -> dict[str, float]:
    """A metric of each target, by the target's name."""
    found = {}
    for line in await clients.metrics():
        if line.startswith(f"starspec_{name}{{") and (target := re.search(r'target="([^"]+)"', line)):
            found[target[1]] = float(line.split()[-1])
    return found


def mistakes_of(report: Report) -> list[str]:
    """A sentence if a fault changed tokens."""
    has_changed = any(row.num_identical < row.num_answers for row in report.rows)
    return ["a fault of the hub changed tokens"] if has_changed else []


COLUMNS = (
    Column("fault of the hub", "fault"),
    Column("identical", share("num_identical", "num_answers")),
    Column("round ms", "round_ms", ".0f"),
    Column("gap before", "calm_gap_ms", ".0f"),
    Column("gap after", "gap_ms", ".0f"),
    Column("may be", "max_gap_ms", ".0f"),
    Column("gap of whole outage", "outage_gap_ms", ".0f"),
    Column("back after s", "back_s", ".2f"),
)
TITLE = "longest gaps between two pieces of one stream, milliseconds; after = in 1.5 s from the fault"


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each fault."""
    too_long = "a stream waited longer after a fault than is promised; see the calm before it for what others cost"
    is_too_long = report.ratios["longest_gap_vs_max"] > 1.0
    return [Table(TITLE, COLUMNS, report.rows), *([too_long] if is_too_long else [])]
