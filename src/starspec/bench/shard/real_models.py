"""`starspec bench shard --target --draft`: a real model in stages behind a lab's links, beside the one that is not cut.

Each stage has a core. The draft, the target's engine and the lab are beside the coordinator, on the same cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import mean
from typing import Final, NamedTuple

from starspec.bench.shard.model_plan import ModelPlan
from starspec.bench.shard.model_processes import Group, answer_group, run_model_stage, run_whole
from starspec.bench.shard.real_pipe import PATIENCE_S
from starspec.bench.star.processes import run_hub
from starspec.config import HubConfig, ModelConfig, PipeConfig, RemoteConfig, SpeculativeConfig, TargetConfig
from starspec.config.lab import LabLink, LinkShape
from starspec.config.stages import InFlight
from starspec.engine.build import make_drafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.harness.children import BenchProcess
from starspec.harness.compare import first_difference, share_before
from starspec.harness.datasets import Prompt, check_fit, hash_prompts, prompt_token_ids, spread
from starspec.harness.decode import Advance, Job
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report, Spread
from starspec.harness.star import await_hub
from starspec.harness.table import Block, Column, Table, ratio_lines, share
from starspec.lab import LabThread
from starspec.local_star import check_drafts
from starspec.models.loading.load import max_len_of
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec
from starspec.stages.open import open_stages
from starspec.stats import PipeStats, TargetStats
from starspec.wire.transports.waiting import Waiting

WARM_TOKENS: Final = 8
WHOLE, PLAIN, SYNCHRONOUS, IN_FLIGHT = "not cut", "plain", "synchronous", "in flight"


class Mode(NamedTuple):
    """A way to decode with stages."""

    name: str
    has_drafts: bool
    in_flight: InFlight


MODES: Final = (Mode(PLAIN, False, 1), Mode(SYNCHRONOUS, True, 1), Mode(IN_FLIGHT, True, "auto"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One way to decode behind one delay, with so many streams."""

    mode: str
    num_cores: int  # that compute for the target at a time, if one stream is decoded
    delay_ms: float | None  # None: no link
    num_streams: int
    num_answers: int
    tokens_per_s: Spread  # of groups of prompts
    vs_plain: float | None  # of the same delay and streams
    num_same: int  # answers with the tokens of the model that is not cut
    share_same: float  # of tokens before the first that differs
    traversals_per_token: float | None
    bytes_per_token: float | None  # on all links, prompts included
    vs_hidden: float | None  # all bytes over those of hidden states
    stale_share: float | None  # windows that stood on refused tokens
    fill: float | None  # share of the time in which the slowest stage computes


class _Measured(NamedTuple):
    groups: list[Group]
    stats: TargetStats | None = None

    @property
    def speeds(self) -> Spread:
        return Spread.of([each.tokens_per_s for each in self.groups])


Key = tuple[str, float | None, int]
"""Mode with its cores, delay, streams."""


class _Bench:
    """What all measurements share."""

    def __init__(self, models: ModelPair, prompts: Sequence[Prompt], plan: ModelPlan) -> None:
        self.models, self.plan = models, plan
        self.tokenizer = load_tokenizer(models.target)
        check_drafts(self.model(), models.speculative(max_model_len=self.model().max_model_len), self.tokenizer)
        self.prompts = spread(prompts, plan.num_asked)
        check_fit(self.prompts, self.model())
        self._asked = [tuple(prompt_token_ids(self.tokenizer, each)) for each in self.prompts]

    def model(self, num_threads: int = 1) -> ModelConfig:
        longest = min(self.models.max_model_len, max_len_of(self.models.target) or self.models.max_model_len)
        config = self.models.target_config(max(self.plan.streams))
        return replace(config, num_threads=num_threads, max_model_len=longest)

    def draft(self) -> ModelConfig:
        return replace(self.model(), model=self.models.draft, quantization=self.models.quantization)

    def groups(self, num_prompts: int, num_streams: int, max_tokens: int) -> list[list[Job]]:
        """The first prompts, in groups that are answered at once. No answer ends before it has all its tokens."""
        sampling = SamplingSpec(temperature=0.0)
        jobs = [
            Job(prompt.name, token_ids, sampling, max_tokens)
            for prompt, token_ids in zip(self.prompts[:num_prompts], self._asked, strict=False)
        ]
        return [jobs[start : start + num_streams] for start in range(0, len(jobs), num_streams)]


def measure_models(models: ModelPair, prompts: Sequence[Prompt], plan: ModelPlan, advance: Advance) -> Report:
    """Decode with the model that is not cut, on one core and on as many as stages; then with stages in all modes.

    Raises: as check_drafts and check_fit; PeerLost if a process dies or hangs.
    """
    bench = _Bench(models, prompts, plan)
    found: dict[Key, _Measured] = {}
    num_ways = len(plan.streams) * (2 + len(MODES) * len(plan.delays_ms) * plan.num_repeats)
    advance("the model that is not cut", num_ways)
    for num_threads in (plan.num_stages, 1):
        _measure_whole(bench, num_threads, found, advance)
    advance("loading stages and draft", None)
    with ExitStack() as stack:
        stages, hub = _start(bench, stack)
        for delay_ms in plan.delays_ms:
            _measure_delay(bench, stages, hub, delay_ms, found, advance)
    rows = [_row(key, measured, found, plan) for key, measured in found.items()]
    notes: dict[str, object] = {
        "draft_quantization": models.quantization,
        "prompts": hash_prompts(bench.prompts),
        "plan": plan,
    }
    return Report(collect_provenance(models.names), rows, ratios_of(rows), notes)


def _whole(num_cores: int) -> str:
    return f"{WHOLE}, 1 core" if num_cores == 1 else f"{WHOLE}, {num_cores} cores"


def _measure_whole(bench: _Bench, num_threads: int, found: dict[Key, _Measured], advance: Advance) -> None:
    """All prompts on as many cores as stages have; on one core, as many as plain decoding in stages answers."""
    plan, is_reference = bench.plan, num_threads == bench.plan.num_stages
    with BenchProcess(run_whole, bench.model(num_threads)) as whole:
        whole.receive()

        def answer(groups: Sequence[Sequence[Job]]) -> list[Group]:
            found_groups = []
            for each in groups:
                whole.send(each)
                found_groups.append(whole.receive())
            return found_groups

        answer(bench.groups(1, 1, WARM_TOKENS))
        for num_streams in plan.streams:
            advance(f"{_whole(num_threads)}, {num_streams} streams", None)
            num_prompts = plan.num_asked if is_reference else plan.num_plain_prompts(num_streams)
            groups = bench.groups(num_prompts, num_streams, plan.max_tokens)
            found[_whole(num_threads), None, num_streams] = _Measured(answer(groups))
        whole.send(None)


def _start(bench: _Bench, stack: ExitStack) -> tuple[list[str], str]:
    """Returns: the addresses of the stages, and of the hub."""
    num = bench.plan.num_stages
    stages = [
        stack.enter_context(BenchProcess(run_model_stage, place, f"{place + 1}/{num}", bench.model()))
        for place in range(num)
    ]
    hub = stack.enter_context(BenchProcess(run_hub, bench.draft(), HubConfig(port=0)))
    for each in stages:
        stack.callback(each.send, "stop")
    stack.callback(hub.send, None)
    return [each.receive() for each in stages], f"tcp://127.0.0.1:{hub.receive()}"


def _measure_delay(
    bench: _Bench, stages: Sequence[str], hub: str, delay_ms: float, found: dict[Key, _Measured], advance: Advance
) -> None:
    """All modes behind links of this delay, in turns."""
    plan, shape = bench.plan, LinkShape(delay_ms=delay_ms)
    links = [LabLink(name=address, to=address, shape=shape) for address in stages]
    with LabThread(*links) as lab:
        endpoints = [lab.endpoint(each) for each in stages]
        for num_streams in plan.streams:
            for _ in range(plan.num_repeats):
                for mode in MODES:
                    advance(f"{mode.name}, {delay_ms:g} ms, {num_streams} streams", None)
                    key = mode.name, delay_ms, num_streams
                    measured = _measure_mode(bench, endpoints, hub, mode, num_streams)
                    before = found.get(key, _Measured([]))
                    found[key] = _Measured(before.groups + measured.groups, measured.stats)


def _measure_mode(bench: _Bench, endpoints: Sequence[str], hub: str, mode: Mode, num_streams: int) -> _Measured:
    plan = bench.plan
    num_prompts = plan.num_asked if mode.has_drafts else plan.num_plain_prompts(num_streams)
    with _engine(bench, endpoints, hub if mode.has_drafts else None, mode.in_flight) as engine:
        for each in bench.groups(num_streams, num_streams, WARM_TOKENS):
            answer_group(engine, each)
        groups = [answer_group(engine, each) for each in bench.groups(num_prompts, num_streams, plan.max_tokens)]
        engine.stats.pipe = engine.verifier.pipe
        return _Measured(groups, engine.stats)


@contextmanager
def _engine(bench: _Bench, endpoints: Sequence[str], hub: str | None, in_flight: InFlight) -> Iterator[TargetEngine]:
    """A target over the stages, whose drafts are those of the hub."""
    pipe = PipeConfig(
        stages=tuple(endpoints),
        in_flight=in_flight,
        silence_s=PATIENCE_S,
        hidden_dtype=bench.plan.hidden_dtype,
    )
    config = TargetConfig(name="bench", max_num_seqs=max(bench.plan.streams), pipe=pipe)
    stats, waiting = TargetStats(), Waiting()
    verifier = open_stages(config, bench.model(), waiting).verifier
    speculative = None
    if hub is not None:
        num = bench.plan.num_draft_tokens
        speculative = SpeculativeConfig(num_speculative_tokens=num, remote=RemoteConfig(endpoint=hub))
    drafts = make_drafts(config, speculative, verifier.info, bench.tokenizer, stats, waiting)
    try:
        if isinstance(drafts, RemoteDrafts):
            await_hub(lambda: drafts.is_connected, drafts.poll)
        yield TargetEngine(verifier, bench.tokenizer, drafts, config, stats)
    finally:
        drafts.shutdown()
        verifier.close()


def _row(key: Key, measured: _Measured, found: dict[Key, _Measured], plan: ModelPlan) -> ModelRow:
    mode, delay_ms, num_streams = key
    truth = found[_whole(plan.num_stages), None, num_streams]
    expected = [answer for group in truth.groups for answer in group.answers]
    answers = [answer for group in measured.groups for answer in group.answers]
    per_pass = len(answers) // (1 if delay_ms is None else plan.num_repeats)
    pairs = [(answer, expected[index % per_pass]) for index, answer in enumerate(answers)]
    plain = found.get((PLAIN, delay_ms, num_streams))
    pipe, num_tokens = _pipe_of(measured)
    hidden = sum(each.num_hidden_bytes for each in pipe.stages) if pipe else 0
    num_stale = measured.stats.num_stale_windows if measured.stats else 0
    num_windows = num_stale + (measured.stats.acceptance.num_forwards if measured.stats else 0)
    return ModelRow(
        mode=mode,
        num_cores=plan.num_stages if mode == _whole(plan.num_stages) else 1,
        delay_ms=delay_ms,
        num_streams=num_streams,
        num_answers=len(answers),
        tokens_per_s=measured.speeds,
        vs_plain=None if plain is None or mode == PLAIN else measured.speeds.median / plain.speeds.median,
        num_same=sum(answer == right for answer, right in pairs),
        share_same=mean(share_before(first_difference(right, answer), right) for answer, right in pairs),
        traversals_per_token=pipe.num_traversals / num_tokens if pipe else None,
        bytes_per_token=pipe.num_bytes / num_tokens if pipe else None,
        vs_hidden=pipe.num_bytes / hidden if pipe and hidden else None,
        stale_share=num_stale / num_windows if pipe and num_windows else None,
        fill=pipe.fill.of_all if pipe else None,
    )


def _pipe_of(measured: _Measured) -> tuple[PipeStats | None, int]:
    if measured.stats is None:
        return None, 0
    return measured.stats.pipe, measured.stats.acceptance.num_emitted_tokens


def ratios_of(rows: Sequence[ModelRow]) -> dict[str, float]:
    """The figures to quote. `not_cut_vs_plain` of 0 ms is what stages and their wire cost."""
    speed = {(each.mode, each.delay_ms, each.num_streams): each.tokens_per_s.median for each in rows}
    ratios = {}
    for row in rows:
        if row.delay_ms is None or row.mode == PLAIN:
            continue
        where = f"{row.delay_ms:g}ms_{row.num_streams}"
        key = "sync" if row.mode == SYNCHRONOUS else "in_flight"
        ratios[f"{key}_vs_plain_{where}"] = row.tokens_per_s.median / speed[PLAIN, row.delay_ms, row.num_streams]
        if row.mode == IN_FLIGHT:
            synchronous = speed[SYNCHRONOUS, row.delay_ms, row.num_streams]
            ratios[f"in_flight_vs_sync_{where}"] = row.tokens_per_s.median / synchronous
    for row in rows:
        if row.mode == PLAIN and row.delay_ms == 0.0:
            ratios[f"not_cut_vs_plain_0ms_{row.num_streams}"] = (
                speed[_whole(1), None, row.num_streams] / row.tokens_per_s.median
            )
    return ratios


def mistakes_of(report: Report) -> list[str]:
    """Sentences about answers that differ, unless hidden states travel in 8 bits, which promises nothing."""
    if report.notes["plan"].hidden_dtype != "model":
        return []
    return [
        f"{row.mode}, {row.delay_ms:g} ms, {row.num_streams} streams: {row.num_answers - row.num_same} of "
        f"{row.num_answers} answers differ from those of the model that is not cut"
        for row in report.rows
        if row.delay_ms is not None and row.num_same < row.num_answers
    ]


COLUMNS: Final = (
    Column("delay, ms", "delay_ms", "g"),
    Column("streams", "num_streams"),
    Column("decoding", "mode", is_text=True),
    Column("tokens/s", "tokens_per_s.median", ".2f"),
    Column("lowest", "tokens_per_s.lowest", ".2f"),
    Column("highest", "tokens_per_s.highest", ".2f"),
    Column("x plain", "vs_plain", ".2f"),
    Column("same", share("num_same", "num_answers")),
    Column("tokens same", "share_same", ".1%"),
    Column("traversals", "traversals_per_token", ".2f"),
    Column("bytes", "bytes_per_token", ".0f"),
    Column("x hidden", "vs_hidden", ".2f"),
    Column("stale", "stale_share", ".0%"),
    Column("fill", "fill", ".0%"),
)
TITLE: Final = (
    "a stage and a core each, behind links of this delay one way; draft and target beside each other, on the same "
    "cores; tokens/s with prompts: median of groups of prompts; traversals and bytes of each token, bytes "
    "over those of hidden states alone"
)


def blocks(report: Report) -> list[Block]:
    """What people read."""
    lines = ratio_lines(report.ratios)
    if report.notes["plan"].hidden_dtype != "model":
        lines.append(f"hidden states in {report.notes['plan'].hidden_dtype}: not exact, so tokens may differ")
    return [Table(TITLE, COLUMNS, report.rows, section="delay_ms"), *lines]
