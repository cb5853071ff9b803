"""`starspec bench async --target --draft`: run-ahead on and off with real models; hub and target have one core each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from starspec.bench.star.async_pair import AHEAD
from starspec.bench.star.processes import Turn, attached
from starspec.bench.star.serving import ServedTurn, StarTargets, serve_turn
from starspec.bench.star.traces import draw_traces, trace_turn
from starspec.config import HubConfig, ModelConfig, RunAhead, SpeculativeConfig
from starspec.engine.engine import TargetEngine
from starspec.harness.datasets import Prompt, check_fit, hash_prompts, prompt_token_ids, spread
from starspec.harness.decode import Job, decode
from starspec.harness.figures import require_matplotlib
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table, ratio_lines
from starspec.local_star import check_drafts
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec

CHAIN_LENGTH: Final = 8  # of a chain that nobody waits for
SHOWN_S: Final = 1.5  # of each trace in the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPairPlan:
    """How much to measure. Settings take turns. Each turn decodes the same requests, one after the other."""

    num_prompts: int = 8
    max_tokens: int = 96  # of an answer
    num_repeats: int = 3
    lengths: tuple[int, ...] = (2, 3, 4)  # of chains that targets wait for, and of prepared outcomes

    @property
    def settings(self) -> list[tuple[RunAhead, int]]:
        off: list[tuple[RunAhead, int]] = [("off", length) for length in self.lengths]
        ahead: list[tuple[RunAhead, int]] = [(kind, each) for kind in ("outcomes", "auto") for each in self.lengths]
        return [*off, ("chain", CHAIN_LENGTH), *ahead]

    @property
    def num_turns(self) -> int:
        return self.num_repeats * len(self.settings)


QUICK = RealPairPlan(num_prompts=2, max_tokens=48, num_repeats=1, lengths=(3,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPairRow:
    """One setting: the median turn of the repeats."""

    run_ahead: str
    num_draft_tokens: int  # at most
    tokens_per_s: float  # prompts included
    tokens_per_round: float
    hit_rate: float
    load: float  # of the hub
    layer_ms: float  # t_s, a draft step; the name is that of receipts
    wait_ms: float  # the hub's response time, as a round waits for it
    t_wait_ms: float  # T_wait: of a request in the hub's buffer
    t_idle_ms: float  # T_idle between two requests
    link_ms: float  # t_c, a round


def measure_real_pair(
    target: ModelConfig,
    draft: ModelConfig,
    prompts: Sequence[Prompt],
    plan: RealPairPlan,
    advance: Callable[[str], None],
    traces: Path | None = None,
) -> Report:
    """Decode the same requests with each setting.

    Args:
        advance: called with what is about to be measured.
        traces: folder for a trace of one turn of each kind and a picture of them; None = no traces.
    Raises: as check_drafts and check_fit; PeerLost if a process dies or hangs; ConfigError if traces cannot be drawn;
        OutputError.
    """
    if traces is not None:
        require_matplotlib()
    check_drafts(target, SpeculativeConfig(model=draft.model, quantization=draft.quantization))
    chosen = spread(prompts, plan.num_prompts)
    check_fit(chosen, target)
    served: dict[tuple[RunAhead, int], list[ServedTurn]] = {setting: [] for setting in plan.settings}
    with StarTargets(1, target, partial(run_pair_target, prompts=chosen, max_tokens=plan.max_tokens)) as targets:
        for _ in range(plan.num_repeats):
            for setting, turns in served.items():
                advance(f"run-ahead {setting[0]}, {setting[1]} tokens")
                turns.append(serve_turn(draft, _hub(setting), targets, 1, _turn(setting)))
        rows = [_row(*setting, turns) for setting, turns in served.items()]
        if traces is not None:
            _trace(traces, rows, draft, targets, advance)
    models = {"target": target.model, "draft": draft.model}
    notes = {"draft_quantization": draft.quantization, "prompts": hash_prompts(chosen), "max_tokens": plan.max_tokens}
    return Report(collect_provenance(models), rows, _ratios(rows), notes)


def run_pair_target(
    parent: Connection, name: str, model: ModelConfig, *, prompts: Sequence[Prompt], max_tokens: int
) -> None:
    """Answer all prompts once in each turn. Messages are those of `run_target`. Raises: PeerLost."""
    runner, tokenizer = load_runner(model), load_tokenizer(model.model)
    jobs = [_job(tokenizer, prompt, runner.info.eos_token_ids, max_tokens) for prompt in prompts]
    parent.send(True)
    while (word := parent.recv()) is not None:
        endpoint, turn = word
        with attached(name, runner, tokenizer, endpoint, turn) as routed:
            parent.send(True)
            parent.recv()
            _answer(routed.engine, jobs[:1])  # warms both up
            parent.send(routed.measure(partial(_answer, routed.engine, jobs)))


def _answer(engine: TargetEngine, jobs: Sequence[Job]) -> int:
    """Returns: tokens emitted."""
    return sum(len(answer.token_ids) for answer in decode(engine, jobs, batch_size=1))


def _job(tokenizer: Any, prompt: Prompt, end_token_ids: Sequence[int], max_tokens: int) -> Job:
    sampling = SamplingSpec(temperature=0.0, end_token_ids=tuple(end_token_ids))
    return Job(prompt.name, tuple(prompt_token_ids(tokenizer, prompt)), sampling, max_tokens)


def _hub(setting: tuple[RunAhead, int]) -> HubConfig:
    return HubConfig(port=0, run_ahead=setting[0])


def _turn(setting: tuple[RunAhead, int]) -> Turn:
    return Turn(num_draft_tokens=setting[1], warm_up_s=0.0, seconds=0.0)


def _row(run_ahead: RunAhead, num_draft_tokens: int, turns: Sequence[ServedTurn]) -> RealPairRow:
    middle = sorted(turns, key=lambda each: each.tokens_per_s)[len(turns) // 2]
    return RealPairRow(
        run_ahead=run_ahead,
        num_draft_tokens=num_draft_tokens,
        tokens_per_s=middle.tokens_per_s,
        tokens_per_round=middle.tokens_per_round,
        hit_rate=middle.hub.hit_rate,
        load=middle.hub.load,
        layer_ms=middle.hub.t_s.value * 1e3,
        wait_ms=middle.wait_ms,
        t_wait_ms=middle.queue_ms,
        t_idle_ms=middle.idle_ms,
        link_ms=middle.link_ms,
    )


def _best(rows: Sequence[RealPairRow], run_ahead: str) -> RealPairRow:
    return max((row for row in rows if row.run_ahead == run_ahead), key=lambda row: row.tokens_per_s)


def _ratios(rows: Sequence[RealPairRow]) -> dict[str, float]:
    off = _best(rows, "off").tokens_per_s
    return {f"{kind}_vs_off": _best(rows, kind).tokens_per_s / off for kind in AHEAD}


def _trace(
    folder: Path, rows: Sequence[RealPairRow], draft: ModelConfig, targets: StarTargets, advance: Callable[[str], None]
) -> None:
    """Run one more turn of the best setting of each kind, and draw a picture of them, traces.png."""
    kinds: tuple[RunAhead, ...] = ("off", "chain", "outcomes")
    for kind in kinds:
        advance(f"a trace: run-ahead {kind}")
        setting = kind, _best(rows, kind).num_draft_tokens
        trace_turn(folder / f"{kind}.json", draft, _hub(setting), targets, 1, _turn(setting))
    draw_traces([(f"run-ahead {kind}", folder / f"{kind}.json") for kind in kinds], folder / "traces.png", SHOWN_S)


COLUMNS = (
    Column("run-ahead", "run_ahead"),
    Column("tokens", "num_draft_tokens"),
    Column("tokens/s", "tokens_per_s", ".2f"),
    Column("tokens a round", "tokens_per_round", ".2f"),
    Column("hits", "hit_rate", ".0%"),
    Column("load", "load", ".0%"),
    Column("t_s", "layer_ms", ".1f"),
    Column("response", "wait_ms", ".1f"),
    Column("T_wait", "t_wait_ms", ".2f"),
    Column("T_idle", "t_idle_ms", ".1f"),
    Column("t_c", "link_ms", ".1f"),
)
TITLE = (
    "one target and one hub, a core each; in milliseconds: t_s = a draft step, response = of the hub, a round, "
    "T_wait = of a request in the hub's buffer, T_idle = between two requests, t_c a round"
)


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each setting."""
    return [Table(TITLE, COLUMNS, report.rows), *ratio_lines(report.ratios)]
