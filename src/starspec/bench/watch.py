"""`starspec bench watch`: whether open dashboards slow generation.

A real star answers all the time. Dashboards are opened and closed in turns, so that each interval with them has one
without beside it. The gateway alone serves them. What counts is the processor time that this adds to the star's: where
all cores are busy, generation is slower by so much, and other processes of the machine change it little. Answers are
decoded plainly, so that all tokens cost about the same; their speed is told, too, and says less on a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from starspec.bench.faults import Clients, by_target, draft_options
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.servers import StarProcesses
from starspec.harness.table import Block, Column, Table
from starspec.local_star import check_drafts

NUM_TARGETS: Final = 1
NUM_TOKENS: Final = 128  # of an answer
SETTLING_S: Final = 0.5  # after dashboards were opened or closed
TIMEOUT_S: Final = 60.0
MAX_SLOWER: Final = 1.01
RATIO: Final = "star_cpu_watched_vs_not"
COST: Final = "cpu_per_token_watched_vs_not"
SPEED: Final = "tokens_per_s_watched_vs_not"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """How much to measure."""

    num_dashboards: int = 16
    num_streams: int = 2  # of answers
    num_pairs: int = 10
    interval_s: float = 4.0

    @property
    def num_turns(self) -> int:
        """How often `measure_watch` advances: at its start, and before each pair."""
        return 1 + self.num_pairs


QUICK = WatchPlan(num_pairs=2, interval_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRow:
    """One interval."""

    pair: int
    num_dashboards: int
    num_frames: int  # that they got
    num_tokens: int
    tokens_per_s: float
    star_cpu: float  # processor seconds of hub, targets and gateway, a second
    gateway_cpu: float  # of these, the gateway's
    reader_cpu: float  # of this process, which reads answers and dashboards on the same machine

    @property
    def cpu_per_token(self) -> float:
        """Processor seconds of the star."""
        return self.star_cpu / self.tokens_per_s


class Dashboards:
    """Dashboards that are open. They read what they are sent, and do nothing with it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.num_frames = 0

    @asynccontextmanager
    async def opened(self, num: int) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT_S) as http:
            watching = [asyncio.create_task(self._watch(http)) for _ in range(num)]
            try:
                yield
            finally:
                for each in watching:
                    each.cancel()
                await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, http: httpx.AsyncClient) -> None:
        async with http.stream("GET", "/dashboard/events") as response:
            async for chunk in response.raise_for_status().aiter_raw():
                self.num_frames += chunk.count(b"\n\n")


def measure_watch(models: ModelPair, prompts: Sequence[str], plan: WatchPlan, advance: Callable[[str], None]) -> Report:
    """Start a star, and measure it with and without dashboards.

    Raises: as check_drafts; PeerLost if the star does not come up; httpx.HTTPError if a stream breaks.
    """
    check_drafts(models.target_config(), models.speculative())
    advance("starting the star")
    shape = ("--dtype", models.dtype, "--max-model-len", "512")
    options = {"draft_options": (*shape, *draft_options(models)), "target_options": shape}
    with StarProcesses(models.target, models.draft, NUM_TARGETS, **options) as star:
        rows = asyncio.run(_measure(star, prompts[: plan.num_streams], plan, advance))
    notes = {"num_targets": NUM_TARGETS, "num_streams": plan.num_streams, "interval_s": plan.interval_s}
    return Report(collect_provenance(models.names), rows, watch_ratios(rows), notes)


async def _measure(
    star: StarProcesses, prompts: Sequence[str], plan: WatchPlan, advance: Callable[[str], None]
) -> list[WatchRow]:
    rows, is_over = list[WatchRow](), asyncio.Event()
    async with Clients(star.url, prompts, NUM_TOKENS) as clients:
        asking = asyncio.create_task(clients.keep_asking(is_over, speculative=False))
        for pair in range(plan.num_pairs):
            advance(f"pair {pair + 1}")
            both = (0, plan.num_dashboards)
            for num in both if pair % 2 else both[::-1]:
                rows.append(await _interval(star, clients, pair, num, plan.interval_s))
        is_over.set()
        await asking
    return rows


async def _interval(star: StarProcesses, clients: Clients, pair: int, num: int, interval_s: float) -> WatchRow:
    dashboards = Dashboards(star.url)
    async with dashboards.opened(num):
        await asyncio.sleep(SETTLING_S)
        num_frames, before, started_s = dashboards.num_frames, await _spent(star, clients), time.monotonic()
        await asyncio.sleep(interval_s)
        after, seconds = await _spent(star, clients), time.monotonic() - started_s
        num_frames = dashboards.num_frames - num_frames
    spent = (later - earlier for earlier, later in zip(before, after, strict=True))
    num_tokens, star_s, gateway_s, reader_s = spent
    return WatchRow(
        pair=pair,
        num_dashboards=num,
        num_frames=num_frames,
        num_tokens=int(num_tokens),
        tokens_per_s=round(num_tokens / seconds, 2),
        star_cpu=round(star_s / seconds, 5),
        gateway_cpu=round(gateway_s / seconds, 5),
        reader_cpu=round(reader_s / seconds, 5),
    )


async def _spent(star: StarProcesses, clients: Clients) -> tuple[float, float, float, float]:
    """Tokens so far, and processor seconds of the star, of its gateway and of this process."""
    gateway_s = cpu_s(star.gateway.process.pid)
    others_s = sum(cpu_s(each.process.pid) for each in (star.hub, *star.targets))
    tokens = await by_target(clients, "generation_tokens_total")
    return sum(tokens.values()), gateway_s + others_s, gateway_s, time.process_time()


def cpu_s(pid: int) -> float:
    """Processor seconds of a process's threads so far, as Linux counts them in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def watch_ratios(rows: Sequence[WatchRow]) -> dict[str, float]:
    """With dashboards over without: the median over pairs."""
    pairs = [[row for row in rows if row.pair == pair] for pair in sorted({row.pair for row in rows})]
    ordered = [sorted(each, key=lambda row: row.num_dashboards) for each in pairs]
    added = [(watched.gateway_cpu - alone.gateway_cpu) / alone.star_cpu for alone, watched in ordered]
    speeds = [watched.tokens_per_s / alone.tokens_per_s for alone, watched in ordered]
    costs = [watched.cpu_per_token / alone.cpu_per_token for alone, watched in ordered]
    return {RATIO: round(1.0 + median(added), 5), COST: round(median(costs), 4), SPEED: round(median(speeds), 4)}


def mistakes_of(report: Report) -> list[str]:
    """A sentence if dashboards slow generation by more than 1%."""
    slower = report.ratios[RATIO]
    return [f"with dashboards the star takes {slower:.3f} times the processor time"] if slower > MAX_SLOWER else []


COLUMNS = (
    Column("pair", "pair"),
    Column("dashboards", "num_dashboards"),
    Column("frames", "num_frames"),
    Column("tokens", "num_tokens"),
    Column("tokens/s", "tokens_per_s", ".1f"),
    Column("cpu ms/token", lambda row: 1e3 * row.cpu_per_token, ".2f"),
    Column("star, of a core", "star_cpu", ".1%"),
    Column("gateway, of a core", "gateway_cpu", ".2%"),
    Column("readers, of a core", "reader_cpu", ".2%"),
)


def blocks(report: Report) -> list[Block]:
    """What people read."""
    slower = f"with dashboards the star's processor time is {report.ratios[RATIO]:.4f} of that without"
    rest = f"for each token {report.ratios[COST]:.2f}; tokens/s {report.ratios[SPEED]:.2f}"
    return [Table("a star with dashboards and without", COLUMNS, report.rows, section="pair"), slower, rest]
