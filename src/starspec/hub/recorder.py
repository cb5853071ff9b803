"""Records what happened when, and computes the hub's statistics: StarSD's t_s, S, T_wait, T_idle, R_q and the load."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from starspec.hub.round import MadeProposal
from starspec.ids import LinkId
from starspec.policy.draft_batch import DraftStep
from starspec.policy.fairness import jains_index
from starspec.stats import HubStats
from starspec.tracing import Tracer

WINDOW_S = 5.0  # load, R_q and fairness are those of so many seconds
SLOT_S = 0.25  # draft tokens of each target are counted in slots of this length
DRAFT_TRACK, IDLE_TRACK = "draft", "idle"


class _Span(NamedTuple):
    start_s: float
    end_s: float

    def seconds_since(self, since_s: float) -> float:
        return max(0.0, self.end_s - max(self.start_s, since_s))


class _Window:
    """Spans of the last WINDOW_S seconds. No span begins before the one before it has ended.

    The sum of their seconds is kept up to date, so that a look is cheap: the hub looks ten times a second.
    """

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque()
        self._seconds = 0.0

    def add(self, span: _Span) -> None:
        self._spans.append(span)
        self._seconds += span.end_s - span.start_s
        self._forget(span.end_s - WINDOW_S)

    def count(self, since_s: float) -> int:
        """Spans that have ended since then. Later calls may only ask about the same time or a later one."""
        self._forget(since_s)
        return len(self._spans)

    def seconds(self, since_s: float) -> float:
        """Seconds of all spans since then. Later calls may only ask about the same time or a later one."""
        self._forget(since_s)
        if not self._spans:
            return 0.0
        return max(0.0, self._seconds - max(0.0, since_s - self._spans[0].start_s))

    def _forget(self, since_s: float) -> None:
        while self._spans and self._spans[0].end_s <= since_s:
            gone = self._spans.popleft()
            self._seconds = self._seconds - (gone.end_s - gone.start_s) if self._spans else 0.0


class _Proposed(NamedTuple):
    """Draft tokens that targets got within one slot of time."""

    start_s: float
    num_tokens: Counter[LinkId]


class StatsRecorder:
    """Counts draft steps, idle gaps and proposals. All times come from the caller, in seconds of one clock.

    Args:
        stats: is kept up to date; `load`, `proposals_per_s`, `fairness` and the idle times by `refresh` only.
        started_s: the time now.
        trace: also gets every draft step and every idle gap, if given.
    """

    def __init__(self, stats: HubStats, started_s: float, trace: Tracer | None = None) -> None:
        self._stats = stats
        self._started_s = started_s
        self._trace = trace
        self._busy, self._idle = _Window(), _Window()
        self._proposed = _Window()  # instants
        self._slots: deque[_Proposed] = deque()
        self._idle_s = 0.0  # of gaps that have ended
        self._idle_since_s: float | None = None

    def add_step(self, start_s: float, end_s: float, draft_step: DraftStep) -> None:
        """Count one draft step that targets wait for. A draft step with prefill is not a sample of t_s."""
        self._stats.busy_s += end_s - start_s
        self._stats.num_draft_steps += 1
        self._stats.num_evictions += len(draft_step.evicted)
        self._stats.num_prompt_tokens += draft_step.num_prompt_tokens
        self._stats.sequences_per_step.add(len(draft_step.sequences))
        if not draft_step.has_prefill:
            self._stats.t_s.add(end_s - start_s)
        self._busy.add(_Span(start_s, end_s))
        if self._trace:
            num_tokens = draft_step.num_tokens
            name = "prefill" if draft_step.has_prefill else "draft step"
            self._trace.slice(DRAFT_TRACK, name, start_s, end_s, sequences=len(draft_step.sequences), tokens=num_tokens)

    def add_step_ahead(self, start_s: float, end_s: float, num_sequences: int, num_nodes: int) -> None:
        """Count one draft step that ran ahead; without a node if it was aborted."""
        self._stats.ahead_s += end_s - start_s
        self._stats.num_ahead_nodes += num_nodes
        self._busy.add(_Span(start_s, end_s))
        if self._trace:
            name = "run ahead" if num_nodes else "given up"
            self._trace.slice(DRAFT_TRACK, name, start_s, end_s, sequences=num_sequences, tokens=num_nodes)

    def add_wasted(self, num_nodes: int) -> None:
        """Count nodes that were drafted ahead and turned out to be useless."""
        self._stats.num_wasted_nodes += num_nodes

    def add_hit_or_miss(self, *, is_hit: bool) -> None:
        """Count one verdict that asks for a proposal; a hit if the proposal was ready when it came."""
        self._stats.num_outcomes += 1
        self._stats.num_hits += is_hit

    def add_proposal(self, made: MadeProposal) -> None:
        """Count one proposal. One without draft tokens is not in R_q."""
        self._stats.num_proposals += 1
        self._stats.num_draft_tokens += made.num_draft_tokens
        if made.has_service:
            self._stats.queue.add(made.queue_s)
            if not made.has_prefill:  # with prefill they took longer than S(d) = d t_s
                self._stats.service.add(made.service_s)
        if not made.num_draft_tokens:
            return
        self._proposed.add(_Span(made.made_s, made.made_s))
        self._add_to_slot(made.made_s, made.key.link_id, made.num_draft_tokens)
        if not made.has_prefill:
            self._stats.saved_s += made.num_spared * self._stats.t_s.value

    def mark(self, now: float, is_idle: bool) -> None:
        """Note whether the hub is idle from now on: tags are open, and there is nothing to draft."""
        if is_idle and self._idle_since_s is None:
            self._idle_since_s = now
        elif not is_idle and self._idle_since_s is not None:
            gap = _Span(self._idle_since_s, now)
            self._idle_since_s = None
            if gap.end_s > gap.start_s:  # a request may have come while a draft step ran, before the gap began
                self._add_idle(gap)

    def refresh(
        self, now: float, weights: Mapping[LinkId, float] | None = None, waiting: Iterable[LinkId] = ()
    ) -> None:
        """Bring the statistics of the last seconds, and the idle time, up to now.

        Args:
            weights: of all targets; fairness compares their draft tokens per unit of weight.
            waiting: targets that count in fairness even if they got no draft tokens.
        """
        since_s = now - WINDOW_S
        open_gap = _Span(now if self._idle_since_s is None else self._idle_since_s, now)
        busy_s = self._busy.seconds(since_s)
        idle_s = self._idle.seconds(since_s) + open_gap.seconds_since(since_s)
        num_proposals = self._proposed.count(since_s)
        known_s = min(WINDOW_S, now - self._started_s)
        # may include a part after the gap's end: that end was not known when this was computed
        published_s = self._stats.idle_s
        self._stats.idle_s = max(published_s, self._idle_s + open_gap.seconds_since(0.0))
        self._stats.idle_per_request_s = idle_s / num_proposals if num_proposals else 0.0
        self._stats.load = busy_s / (busy_s + idle_s) if busy_s else 0.0
        self._stats.proposals_per_s = num_proposals / known_s if known_s > 0 else 0.0
        self._stats.fairness = self._fairness(since_s, weights or {}, waiting)

    def _fairness(self, since_s: float, weights: Mapping[LinkId, float], waiting: Iterable[LinkId]) -> float:
        got: Counter[LinkId] = Counter(dict.fromkeys(waiting, 0))
        for slot in self._slots:
            if slot.start_s > since_s:
                got.update(slot.num_tokens)
        return jains_index(got[target] / weight for target, weight in weights.items() if target in got)

    def _add_to_slot(self, now: float, target: LinkId, num_draft_tokens: int) -> None:
        if not self._slots or now >= self._slots[-1].start_s + SLOT_S:
            self._slots.append(_Proposed(now, Counter()))
            while self._slots[0].start_s <= now - WINDOW_S:
                self._slots.popleft()
        self._slots[-1].num_tokens[target] += num_draft_tokens

    def _add_idle(self, gap: _Span) -> None:
        self._idle_s += gap.end_s - gap.start_s
        self._idle.add(gap)
        if self._trace:
            self._trace.slice(IDLE_TRACK, "idle", gap.start_s, gap.end_s)
