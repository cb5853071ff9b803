"""The statistics of requests, targets and hubs, which `/metrics`, tables and status messages carry.

They define each quantity of StarSD's time decomposition (section 3, eqs. 2-12; appendix C.1) once. Times are seconds.
Means are exponentially weighted over recent rounds, so that tables and decisions follow the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

HubState = Literal["connecting", "connected", "lost"]  # as a target sees it; connecting: not found yet

# What a peer may tell: numbers that can be added up, divided and written as JSON.
Amount = Annotated[float, Meta(ge=-1e15, le=1e15)]
Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]

LEAST_S = 1e-9  # a round that takes less was not measured
SMOOTHING = 0.1  # weight of the newest round in a mean
FIRST = 1.0 / SMOOTHING  # the first rounds have equal weights


@dataclass(slots=True)
class Mean:
    """An exponentially weighted mean. The first value counts in full."""

    value: Amount = 0.0  # the weighted mean
    count: Number = 0  # number of values
    total: Amount = 0.0  # sum of all values

    @property
    def of_all(self) -> float:
        """The mean with equal weights; 0 before the first value."""
        return self.total / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        count = self.count = self.count + 1
        self.total += value
        self.value += (value - self.value) * (SMOOTHING if count > FIRST else 1.0 / count)


@dataclass(slots=True, kw_only=True)
class AcceptanceStats:
    """Counts of verified proposals, their draft tokens and the tokens that were accepted."""

    num_drafts: Number = 0  # proposals with at least one token that were verified
    num_draft_tokens: Number = 0  # nodes of those proposals, without the root
    num_accepted_tokens: Number = 0  # without the target's own token after them
    num_accepted_tokens_per_pos: list[Number] = field(default_factory=list)  # [depth - 1] -> accepted at that depth
    num_forwards: Number = 0  # sequences times target forwards, with or without a draft
    num_emitted_tokens: Number = 0
    num_relaxed_tokens: Number = 0  # accepted draft tokens that only relaxed verification accepts

    def add_round(self, num_draft_tokens: int, num_accepted: int, num_emitted: int, num_relaxed: int = 0) -> None:
        """Count one sequence's part of one target forward.

        Args:
            num_draft_tokens: nodes verified, 0 for a plain round.
            num_accepted: accepted draft tokens.
            num_emitted: tokens that reach the client, after truncation at eos, stop or max_tokens.
            num_relaxed: of those, draft tokens that only relaxed verification accepts.
        """
        self.num_forwards += 1
        self.num_relaxed_tokens += num_relaxed
        self.num_emitted_tokens += num_emitted
        if num_draft_tokens == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for depth in range(num_accepted):
            self.num_accepted_tokens_per_pos[depth] += 1

    def add(self, other: AcceptanceStats) -> None:
        """Add the counts of another object."""
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        self.num_forwards += other.num_forwards
        self.num_emitted_tokens += other.num_emitted_tokens
        self.num_relaxed_tokens += other.num_relaxed_tokens
        _add_counts(self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 before any draft."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens of a round with a draft, including the target's own token; 1 before any draft."""
        return 1.0 + (self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0)

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target forward; 0 before any forward."""
        return self.num_emitted_tokens / self.num_forwards if self.num_forwards else 0.0


@dataclass(slots=True, kw_only=True)
class RequestStats:
    """The statistics of one request, from which vLLM's `metrics` object is made."""

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    acceptance_histogram: list[Number] = field(default_factory=list)  # [accepted tokens] -> speculative rounds
    num_spec_tokens: Number = 0  # steps of the longest draft that was wanted
    num_prediction_tokens: Number = 0  # draft tokens from the text that the client predicted ...
    num_accepted_prediction_tokens: Number = 0  # ... and how many of them were accepted
    is_lossless: bool = True  # its acceptance rule keeps the target's tokens, or their distribution
    queue_s: Amount = 0.0  # arrival to cache row
    time_to_first_token_s: Amount = 0.0  # arrival to first token
    generation_s: Amount = 0.0  # first token to last token

    def add_round(self, num_draft_tokens: int, num_accepted: int, num_emitted: int, num_relaxed: int = 0) -> None:
        """As AcceptanceStats.add_round, and counts the histogram."""
        self.acceptance.add_round(num_draft_tokens, num_accepted, num_emitted, num_relaxed)
        if num_draft_tokens:
            missing = num_accepted + 1 - len(self.acceptance_histogram)
            self.acceptance_histogram.extend([0] * missing)
            self.acceptance_histogram[num_accepted] += 1

    @classmethod
    def sum_of(cls, several: Sequence[RequestStats]) -> RequestStats:
        """The sum of several answers: counts and generation times are added, waits are the longest."""
        total = cls(
            num_spec_tokens=max((each.num_spec_tokens for each in several), default=0),
            is_lossless=all(each.is_lossless for each in several),
        )
        for each in several:
            total.acceptance.add(each.acceptance)
            _add_counts(total.acceptance_histogram, each.acceptance_histogram)
            total.num_prediction_tokens += each.num_prediction_tokens
            total.num_accepted_prediction_tokens += each.num_accepted_prediction_tokens
            total.queue_s = max(total.queue_s, each.queue_s)
            total.time_to_first_token_s = max(total.time_to_first_token_s, each.time_to_first_token_s)
            total.generation_s += each.generation_s
        return total


@dataclass(slots=True, kw_only=True)
class BatchStats:
    """What rounds spent their time on, as sums: the columns of "Batch Speculative Decoding Done Right", table 2.

    Prefill is not included. A ragged batch has no realignment, copies or grouping, so these stay 0.
    """

    num_rounds: Number = 0  # verify calls
    num_sequence_rounds: Number = 0  # sequences in them, added up
    num_realigned_rounds: Number = 0  # sequences of different lengths had to be aligned to one right edge
    draft_s: Amount = 0.0  # sending verdicts and waiting for proposals; with a hub on this thread, also drafting
    verify_s: Amount = 0.0  # forwards, verification and outputs
    realign_pad_s: Amount = 0.0  # tokens, positions and masks of realigned rectangles: c_pad
    realign_kv_s: Amount = 0.0  # keys and values that moved for realignment: c_kv
    copy_s: Amount = 0.0  # keys and values that moved for other reasons: concatenation, growth
    schedule_s: Amount = 0.0  # choosing the sequences of each step
    grouping_wait_s: Amount = 0.0  # seconds in which a sequence was ready and not in a round, summed over sequences
    longest_wait_rounds: Number = 0  # consecutive rounds that passed over one sequence, at most

    @property
    def realign_s(self) -> float:
        """c_overhead = c_pad + c_kv (section 3.2)."""
        return self.realign_pad_s + self.realign_kv_s

    @property
    def moved_s(self) -> float:
        """Moving keys and values, with and without realignment."""
        return self.realign_s + self.copy_s

    @property
    def overhead_s(self) -> float:
        """Everything but drafting and verification."""
        return self.moved_s + self.schedule_s

    @property
    def total_s(self) -> float:
        """All rounds, without prefill."""
        return self.draft_s + self.verify_s + self.overhead_s

    @property
    def grouping_rate(self) -> float:
        """Rounds that needed no realignment / rounds; 1 before any."""
        return 1.0 - self.num_realigned_rounds / self.num_rounds if self.num_rounds else 1.0


@dataclass(slots=True, kw_only=True)
class LengthStats:
    """The draft lengths that a target's policy chose, and why they were not longer."""

    num_by_length: list[Number] = field(default_factory=list)  # [steps] -> choices
    num_by_reason: dict[str, Number] = field(default_factory=dict)  # as `policy/length/snapshot.py` lists them
    recent: Mean = field(default_factory=Mean)  # steps of the last choices

    def add(self, num_steps: int, reason: str) -> None:
        """A length was chosen for one sequence."""
        self.num_by_length.extend([0] * (num_steps + 1 - len(self.num_by_length)))
        self.num_by_length[num_steps] += 1
        self.num_by_reason[reason] = self.num_by_reason.get(reason, 0) + 1
        self.recent.add(num_steps)


@dataclass(slots=True, kw_only=True)
class GrammarStats:
    """What grammars cost a target, and what they force."""

    num_tokens: Number = 0  # emitted by answers that have a grammar
    num_forced_tokens: Number = 0  # of these, tokens that were verified as drafts because the grammar forced them
    spent_s: Amount = 0.0  # processor time of masks, steps through grammars, and looks at drafts

    def add_round(self, num_tokens: int, num_forced_tokens: int, spent_s: float) -> None:
        """Count one sequence's part of one round."""
        self.num_tokens += num_tokens
        self.num_forced_tokens += num_forced_tokens
        self.spent_s += spent_s


@dataclass(slots=True, kw_only=True)
class StageStats:
    """One stage of a target, or a spare, as the target knows it."""

    endpoint: str
    layers: str = ""  # START:END; "" = not known yet
    index: Number | None = None  # its place among the stages; None = it is a spare
    is_attached: bool = False
    is_fit: bool = True  # False: a spare that can take no place; the target's log says why
    num_traversals: Number = 0  # that landed; a spare that takes a place goes on with its sums
    compute_s: Amount = 0.0
    wait_s: Amount = 0.0  # traversals lay there before they were computed
    num_bytes: Number = 0  # of traversals, as they arrived there
    num_hidden_bytes: Number = 0  # of these, hidden states

    @property
    def state(self) -> str:
        """For people."""
        if self.index is None and not self.is_fit:
            return "spare, unfit"
        if self.index is None:
            return "spare" if self.is_attached else "spare, away"
        return "attached" if self.is_attached else "lost"


@dataclass(slots=True, kw_only=True)
class PipeStats:
    """The stages of a target that is cut."""

    stages: list[StageStats] = field(default_factory=list)  # in the order of their layers, spares last
    depth: Number = 0  # traversals that should be in flight; 0 = the stages are being attached
    num_in_flight: Number = 0
    num_traversals: Number = 0  # that landed
    num_landing_bytes: Number = 0  # of the last stage's answers
    num_losses: Number = 0  # times that a stage was lost
    fill: Mean = field(default_factory=Mean)  # share of the time, with something in flight, that the slowest computes

    @property
    def num_bytes(self) -> int:
        """Of traversals and their answers, on all links."""
        return self.num_landing_bytes + sum(each.num_bytes for each in self.stages)


@dataclass(slots=True, kw_only=True)
class TargetStats:
    """A target's side of StarSD's decomposition."""

    acceptance: AcceptanceStats = field(default_factory=AcceptanceStats)
    t_v: Mean = field(default_factory=Mean)  # one forward and its verification
    t_c: Mean = field(default_factory=Mean)  # round trip without the hub's queue and service time
    wait: Mean = field(default_factory=Mean)  # the hub's response time, as a round waits for it: t_c, T_wait and S
    round: Mean = field(default_factory=Mean)  # wait and verify: 1 / R_p while no prompt is prefilled between rounds
    batch: BatchStats = field(default_factory=BatchStats)
    lengths: LengthStats = field(default_factory=LengthStats)
    grammars: GrammarStats = field(default_factory=GrammarStats)
    pipe: PipeStats | None = None  # of a target in stages
    num_rounds: Number = 0
    num_ahead_windows: Number = 0  # launched before the window of the same sequence on which they stand had landed
    num_stale_windows: Number = 0  # of those, landed without tokens, since what they stand on was refused
    num_late_rounds: Number = 0  # rounds that started without an expected proposal
    num_stale_messages: Number = 0  # dropped by epoch
    num_declined: Number = 0  # times that the hub had no room for a tag
    plain_tokens_per_s: Amount = 0.0  # of one sequence, measured without drafts; 0 = not measured
    num_reconnects: Number = 0  # times that a lost hub was connected again
    degraded_s: Amount = 0.0  # seconds without a usable hub, while one was configured
    tokens_per_s: Amount = 0.0  # O_i over the last seconds
    num_finished: Number = 0
    num_aborted: Number = 0
    num_rejected: Number = 0
    num_frames_rejected: Number = 0  # frames of gateways that broke the protocol, or were too many
    num_dropped: Number = 0  # messages to gateways that are gone or do not read

    @property
    def return_time_s(self) -> float:
        """Z = t_c + t_v (eq. 6)."""
        return self.t_c.value + self.t_v.value

    @property
    def rounds_per_s(self) -> float:
        """R_p (appendix C.1)."""
        return 1.0 / self.round.value if self.round.value > LEAST_S else 0.0


@dataclass(slots=True, kw_only=True)
class HubStats:
    """The hub's side of StarSD's decomposition."""

    num_targets: Number = 0
    num_tags: Number = 0
    num_waiting: Number = 0  # length of the global request buffer
    t_s: Mean = field(default_factory=Mean)  # one draft step (one batched forward)
    service: Mean = field(default_factory=Mean)  # S(d) = d t_s (eq. 5): first draft step to proposal
    queue: Mean = field(default_factory=Mean)  # T_wait (section 5.2): arrival to first draft step
    max_batch: Number = 0  # sequences in the next draft step, at most; 0 = all that wait
    sequences_per_step: Mean = field(default_factory=Mean)
    busy_s: Amount = 0.0  # total seconds of drafting for waiting requests
    ahead_s: Amount = 0.0  # total seconds of drafting ahead of verdicts, while no request waited
    idle_s: Amount = 0.0  # total seconds with tags open and nothing to draft
    idle_per_request_s: Amount = 0.0  # T_idle as in table 1: of these, between two requests; over the last seconds
    num_evictions: Number = 0  # rows taken from one tag for another; the hub keeps the token ids of the first
    num_rows_leased: Number = 0  # of the cache
    num_rows_free: Number = 0
    row_fill: Amount = 0.0  # share of the leased rows that tokens fill; the rest is fragmentation
    num_prompt_tokens: Number = 0  # prefilled: prompts, and tokens of tags that had lost their rows
    num_shared_tokens: Number = 0  # not prefilled, because they were in a row already
    num_draft_steps: Number = 0
    num_proposals: Number = 0
    num_draft_tokens: Number = 0
    num_ahead_nodes: Number = 0  # forwarded ahead of verdicts
    num_wasted_nodes: Number = 0  # of these, those that the next verdict made useless, or that were lost before it
    saved_s: Amount = 0.0  # by running ahead: t_s for each draft step of a proposal that was ready when asked for
    num_outcomes: Number = 0  # verdicts that asked for a proposal that might be ready
    num_hits: Number = 0  # of these, those whose proposal was ready
    num_frames_rejected: Number = 0  # multiparts that broke the protocol
    num_leases_expired: Number = 0
    num_refused: Number = 0  # handshakes
    num_dropped: Number = 0  # messages to targets that are gone or do not read
    load: Amount = 0.0  # draft time / (draft time + idle time) over the last seconds; other time is in neither
    proposals_per_s: Amount = 0.0  # R_q over the last seconds
    num_admitted: Number = 0  # targets that are admitted, if admission is on
    num_full: Number = 0  # N_full (eq. 12); 0 = not known
    num_max: Number = 0  # N_max (section 4.2), whether admission enforces it or not; 0 = not known
    num_declined: Number = 0  # times that a tag was declined because there was no room
    num_rationed: Number = 0  # requests that got an empty proposal because of a rate limit
    num_cut: Number = 0  # proposals cut short since the target's laws took more than its share of the hub's time
    fairness: Amount = 1.0  # Jain's index over targets' draft tokens of the last seconds, by weight

    @property
    def hit_rate(self) -> float:
        """The share of verdicts that asked for a proposal and found it ready."""
        return self.num_hits / self.num_outcomes if self.num_outcomes else 0.0

    @property
    def idle_per_iteration_s(self) -> float:
        """T_idle as in eq. 9: of an iteration, which serves every tag once."""
        return self.idle_per_request_s * self.num_tags


@dataclass(slots=True, kw_only=True)
class HubTargetStats:
    """A hub's statistics of one target. A vLLM server has no others."""

    num_tags: Number = 0
    num_proposals: Number = 0
    num_draft_tokens: Number = 0  # of those proposals
    num_verdicts: Number = 0  # on proposals with at least one token
    num_accepted_tokens: Number = 0  # draft tokens of those that were accepted
    queue: Mean = field(default_factory=Mean)  # T_wait: arrival of a request to its first draft step
    return_time: Mean = field(default_factory=Mean)  # Z = t_c + t_v (eq. 6): a proposal to its verdict
    round: Mean = field(default_factory=Mean)  # one proposal of a sequence, or verdict without one, to the next

    @property
    def acceptance_length(self) -> float:
        """Tokens of a round with a draft, including the target's own token; 1 before any."""
        return 1.0 + (self.num_accepted_tokens / self.num_verdicts if self.num_verdicts else 0.0)


def _add_counts(counts: list[int], others: list[int]) -> None:
    counts.extend([0] * (len(others) - len(counts)))
    for index, number in enumerate(others):
        counts[index] += number
