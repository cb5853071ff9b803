"""One run of a method: its engine, what it took, and the peak memory of the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from starspec.bench.batch.plan import FAST, BatchMethod
from starspec.bench.batch.serving import DraftPrefill, FullRounds, Served, TargetPrefill, serve
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.errors import ConfigError
from starspec.harness.decode import Job, make_engine
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import Workbench
from starspec.models.packed import PackedRunner
from starspec.stats import BatchStats, TargetStats
from starspec.windows.batching import lay_out

CLEAR_REFS: Final = Path("/proc/self/clear_refs")
STATUS: Final = Path("/proc/self/status")
RESET_PEAK: Final = "5"  # see proc(5): reset the peak resident set to the current one


def reset_peak() -> None:
    """Reset the peak. Effects: VmHWM of the process, where the system allows it."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return


def peak_mib(without: int = 0) -> float | None:
    """The peak resident set since `reset_peak`, or since the start of the process where it cannot be reset.

    Args:
        without: bytes that do not count, because they were held all the time.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return round((kib[0] - without / 1024) / 1024, 1) if kib else None


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One run of a method over some requests."""

    served: Served
    stats: BatchStats  # of its rounds
    prefill_s: float  # prefill by the target, in this run or an earlier one
    draft_prefill_s: float  # prefill by the draft, with first proposals; 0 with arrivals, where rounds wait for it
    prefilled_before_s: float  # prefill time of both that earlier runs spent for this one
    # resident set of the process, with weights, without known prompts; None = unknown on this system
    peak_mib: float | None
    full_tokens_per_s: float  # of rounds with as many sequences as the batch holds, without prefill; 0 if none has

    @property
    def seconds(self) -> float:
        """The time that it would have taken without the earlier runs."""
        return self.served.seconds + self.prefilled_before_s

    @property
    def tokens_per_s(self) -> float:
        """With prefill; 0 if there are no tokens, as an engine that emits nothing is not fast."""
        return self.served.num_tokens / self.seconds if self.served.num_tokens else 0.0


def run_method(
    bench: Workbench,
    method: BatchMethod,
    drafts: Drafts,
    jobs: Sequence[Job],
    num_draft_tokens: int | None,
    arrivals_s: Sequence[float] | None = None,
    known: KnownPrompts | None = None,
) -> MethodRun:
    """Answer the jobs with a fresh engine.

    Args:
        drafts: plain methods ignore them.
        num_draft_tokens: K; None = as the drafts' length policy has it.
        arrivals_s: None = all requests are there at the start, and rounds wait for prefills; otherwise prefills run
            beside rounds.
        known: prompts that the target has prefilled; those of this run are added. None = it prefills all. A fast method
            always does, because its own prefill may give other bits. Known prompts do not count for the peak.
    """
    runner, known_here = bench.runner, known
    if method.name.endswith(FAST):
        if not isinstance(runner, PackedRunner):
            raise ConfigError(f"method '{method.name}' needs a model with weights")
        runner, known_here = runner.with_fast_numerics(), None
    stats, prefill = TargetStats(), TargetPrefill()
    drafts = NoDrafts() if method.is_plain else drafts
    draft_prefill = DraftPrefill(drafts, stats.batch)
    is_offline = arrivals_s is None
    laid_out = lay_out(runner, method.batching, stats.batch)
    saved_before_s = known_here.saved_s if known_here else 0.0
    engine = make_engine(
        known_here.prefilling_once(laid_out) if known_here else laid_out,
        bench.tokenizer,
        draft_prefill if is_offline else drafts,
        stats,
        batching=replace(method.batching, prompts="first" if is_offline else "beside"),
        max_num_seqs=method.batch_size,
        trace=prefill,
    )
    reset_peak()
    asked = [replace(job, num_draft_tokens=None if method.is_plain else num_draft_tokens) for job in jobs]
    full = FullRounds(stats, draft_prefill, method.batch_size)
    served = serve(engine, asked, arrivals_s, after_step=full.note_step)
    draft_prefill.charge_first_rounds()
    saved_s = known_here.saved_s - saved_before_s if known_here else 0.0
    peak = peak_mib(without=known.num_bytes if known else 0)
    return MethodRun(
        served,
        stats.batch,
        prefill.seconds + saved_s,
        draft_prefill.seconds,
        saved_s,
        peak,
        full_tokens_per_s=full.num_tokens / full.seconds if full.seconds else 0.0,
    )
