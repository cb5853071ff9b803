"""Every metric of a target or a hub: its name, its help text, and where its value comes from.

Names have vLLM's suffixes if the meaning is the same. The others are StarSD's decomposition of time, as `stats.py`
defines it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from starspec.stats import HubTargetStats, PipeStats, StageStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus

S = TypeVar("S", TargetStatus, HubStatus, HubTargetStats, StageStats)


class Quantity(NamedTuple, Generic[S]):
    """One metric."""

    name: str  # without prefix and, for counters, without `_total`
    meaning: str
    read: Callable[[S], float]


Target = Quantity[TargetStatus]
Hub = Quantity[HubStatus]
HubTarget = Quantity[HubTargetStats]
Stage = Quantity[StageStats]

TARGET_COUNTERS: Final[tuple[Target, ...]] = (
    Target("spec_decode_num_drafts", "Proposals verified.", lambda t: t.stats.acceptance.num_drafts),
    Target(
        "spec_decode_num_draft_tokens",
        "Draft tokens verified; the root is not counted.",
        lambda t: t.stats.acceptance.num_draft_tokens,
    ),
    Target(
        "spec_decode_num_accepted_tokens",
        "Draft tokens accepted, without the target's own token after them.",
        lambda t: t.stats.acceptance.num_accepted_tokens,
    ),
    Target(
        "relaxed_tokens",
        "Draft tokens that only relaxed verification accepted; 0 unless requests ask for it.",
        lambda t: t.stats.acceptance.num_relaxed_tokens,
    ),
    Target("generation_tokens", "Tokens emitted.", lambda t: t.stats.acceptance.num_emitted_tokens),
    Target(
        "target_forwards",
        "Sequences times target forwards: emitted tokens over this is the block efficiency.",
        lambda t: t.stats.acceptance.num_forwards,
    ),
    Target("rounds", "Rounds.", lambda t: t.stats.num_rounds),
    Target(
        "realigned_rounds",
        "Rounds whose padded rows had to be realigned.",
        lambda t: t.stats.batch.num_realigned_rounds,
    ),
    Target("draft_seconds", "Rounds: waiting for proposals and sending verdicts.", lambda t: t.stats.batch.draft_s),
    Target("verify_seconds", "Rounds: forwards, verification, outputs.", lambda t: t.stats.batch.verify_s),
    Target(
        "realign_seconds", "Rounds: padding, and moving keys and values to realign.", lambda t: t.stats.batch.realign_s
    ),
    Target("copy_seconds", "Rounds: moving keys and values without realignment.", lambda t: t.stats.batch.copy_s),
    Target("schedule_seconds", "Rounds: choosing their sequences.", lambda t: t.stats.batch.schedule_s),
    Target(
        "grouping_wait_seconds",
        "Seconds in which a sequence was ready and not in a round, summed over sequences.",
        lambda t: t.stats.batch.grouping_wait_s,
    ),
    Target("grammar_tokens", "Tokens of answers with a grammar.", lambda t: t.stats.grammars.num_tokens),
    Target(
        "grammar_forced_tokens",
        "Of these, tokens verified as drafts because the grammar forces them.",
        lambda t: t.stats.grammars.num_forced_tokens,
    ),
    Target("grammar_seconds", "Masks, steps through grammars, looks at drafts.", lambda t: t.stats.grammars.spent_s),
    Target("late_rounds", "Rounds that started without an expected proposal.", lambda t: t.stats.num_late_rounds),
    Target("stale_messages", "Stale messages of the hub.", lambda t: t.stats.num_stale_messages),
    Target("declined_tags", "Times that the hub had no room for a tag.", lambda t: t.stats.num_declined),
    Target("reconnects", "Times that a lost hub was connected again.", lambda t: t.stats.num_reconnects),
    Target("degraded_seconds", "Seconds without a usable hub, while one was configured.", lambda t: t.stats.degraded_s),
    Target("requests_finished", "Requests that ended by stop or length.", lambda t: t.stats.num_finished),
    Target("requests_aborted", "Requests that were aborted.", lambda t: t.stats.num_aborted),
    Target("requests_rejected", "Requests that were rejected.", lambda t: t.stats.num_rejected),
    Target(
        "frames_rejected",
        "Frames of gateways that broke the protocol, or were too many.",
        lambda t: t.stats.num_frames_rejected,
    ),
    Target("messages_dropped", "Messages to gateways that are gone or do not read.", lambda t: t.stats.num_dropped),
)

TARGET_GAUGES: Final[tuple[Target, ...]] = (
    Target("num_requests_running", "Requests with a cache row.", lambda t: t.num_running),
    Target("num_requests_waiting", "Requests without a cache row.", lambda t: t.num_waiting),
    Target("cache_rows", "Cache rows in all.", lambda t: t.num_rows),
    Target("cache_rows_free", "Cache rows not leased.", lambda t: t.num_free_rows),
    Target("draft_connected", "1 while the hub is connected.", lambda t: float(t.is_draft_connected)),
    Target("acceptance_length", "Tokens of a round with a draft.", lambda t: t.stats.acceptance.acceptance_length),
    Target("acceptance_rate", "Accepted / drafted tokens.", lambda t: t.stats.acceptance.acceptance_rate),
    Target("block_efficiency", "Tokens emitted per forward.", lambda t: t.stats.acceptance.block_efficiency),
    Target("t_v_seconds", "t_v: one forward and its verification.", lambda t: t.stats.t_v.value),
    Target("t_c_seconds", "t_c: a round trip without the hub's queue and service time.", lambda t: t.stats.t_c.value),
    Target("return_time_seconds", "Z = t_c + t_v.", lambda t: t.stats.return_time_s),
    Target("wait_seconds", "The hub's response time, as a round waits for it.", lambda t: t.stats.wait.value),
    Target(
        "round_seconds",
        "One round: wait and verify, without prefill.",
        lambda t: t.stats.round.value,
    ),
    Target("rounds_per_second", "R_p = 1 / round_seconds.", lambda t: t.stats.rounds_per_s),
    Target("tokens_per_second", "O_i: tokens emitted over the last seconds.", lambda t: t.stats.tokens_per_s),
    Target(
        "plain_tokens_per_second",
        "Speed of one sequence without drafts; 0 = not measured.",
        lambda t: t.stats.plain_tokens_per_s,
    ),
)

HUB_COUNTERS: Final[tuple[Hub, ...]] = (
    Hub("hub_busy_seconds", "Seconds of drafting.", lambda h: h.stats.busy_s),
    Hub("hub_ahead_seconds", "Seconds of drafting ahead of verdicts.", lambda h: h.stats.ahead_s),
    Hub("hub_idle_seconds", "Seconds with tags open and nothing to draft.", lambda h: h.stats.idle_s),
    Hub("hub_draft_steps", "Draft steps: batched draft forwards.", lambda h: h.stats.num_draft_steps),
    Hub(
        "hub_declined_tags", "Times that a tag was declined because there was no room.", lambda h: h.stats.num_declined
    ),
    Hub(
        "hub_rationed_requests", "Requests that a rate limit left without draft tokens.", lambda h: h.stats.num_rationed
    ),
    Hub(
        "hub_cut_proposals",
        "Proposals cut short since the target's laws took more than its share of the time.",
        lambda h: h.stats.num_cut,
    ),
    Hub("hub_evictions", "Cache rows taken from one tag for another.", lambda h: h.stats.num_evictions),
    Hub("hub_prompt_tokens", "Tokens prefilled, including repeated prefills.", lambda h: h.stats.num_prompt_tokens),
    Hub(
        "hub_shared_tokens", "Tokens not prefilled, because another row had them.", lambda h: h.stats.num_shared_tokens
    ),
    Hub("hub_proposals", "Proposals sent.", lambda h: h.stats.num_proposals),
    Hub("hub_draft_tokens", "Tokens of those proposals.", lambda h: h.stats.num_draft_tokens),
    Hub("hub_ahead_nodes", "Nodes forwarded ahead of verdicts.", lambda h: h.stats.num_ahead_nodes),
    Hub(
        "hub_wasted_nodes",
        "Ahead nodes that a verdict made useless, or that were lost.",
        lambda h: h.stats.num_wasted_nodes,
    ),
    Hub("hub_saved_seconds", "Draft seconds saved by proposals that were ready.", lambda h: h.stats.saved_s),
    Hub("hub_outcomes", "Verdicts that asked for a proposal.", lambda h: h.stats.num_outcomes),
    Hub("hub_hits", "Verdicts whose proposal was ready when they came.", lambda h: h.stats.num_hits),
    Hub("hub_frames_rejected", "Frames that broke the protocol.", lambda h: h.stats.num_frames_rejected),
    Hub("hub_handshakes_refused", "Handshakes of targets that were refused.", lambda h: h.stats.num_refused),
    Hub("hub_messages_dropped", "Messages to targets that are gone or do not read.", lambda h: h.stats.num_dropped),
    Hub("hub_leases_expired", "Targets silent for longer than their lease.", lambda h: h.stats.num_leases_expired),
)

HUB_GAUGES: Final[tuple[Hub, ...]] = (
    Hub("hub_targets", "Targets connected.", lambda h: h.stats.num_targets),
    Hub("hub_tags", "Tags held.", lambda h: h.stats.num_tags),
    Hub("hub_waiting", "Length of the global request buffer.", lambda h: h.stats.num_waiting),
    Hub("hub_t_s_seconds", "t_s: one draft step.", lambda h: h.stats.t_s.value),
    Hub("hub_service_seconds", "S(d) = d t_s: first draft step to proposal.", lambda h: h.stats.service.value),
    Hub("hub_queue_seconds", "T_wait: arrival of a request to its first draft step.", lambda h: h.stats.queue.value),
    Hub(
        "hub_idle_per_request_seconds",
        "T_idle between two requests, as in StarSD's table 1, over the last seconds.",
        lambda h: h.stats.idle_per_request_s,
    ),
    Hub(
        "hub_idle_per_iteration_seconds",
        "T_idle of equation 9: of an iteration, which serves every tag once.",
        lambda h: h.stats.idle_per_iteration_s,
    ),
    Hub("hub_sequences_per_step", "Sequences grown by one draft step.", lambda h: h.stats.sequences_per_step.value),
    Hub("hub_max_batch", "Sequences of a draft step, at most; 0 = all that wait.", lambda h: h.stats.max_batch),
    Hub("hub_load", "Busy / (busy + idle) over the last seconds.", lambda h: h.stats.load),
    Hub("hub_proposals_per_second", "R_q: proposals over the last seconds.", lambda h: h.stats.proposals_per_s),
    Hub("hub_rows_leased", "Cache rows that hold a tag.", lambda h: h.stats.num_rows_leased),
    Hub("hub_rows_free", "Cache rows that hold none.", lambda h: h.stats.num_rows_free),
    Hub("hub_row_fill", "Share of the leased rows that tokens take; the rest is unused.", lambda h: h.stats.row_fill),
    Hub("hub_admitted", "Targets that are admitted, if admission is on.", lambda h: h.stats.num_admitted),
    Hub("hub_n_full", "N_full: targets that leave a hub no idle time; 0 = not known.", lambda h: h.stats.num_full),
    Hub(
        "hub_n_max",
        "N_max: targets that can all gain, and have rows; 0 = not known. Only --admission n_max enforces it, and lets "
        "targets measure their plain speed; else a plain token is taken to last as long as a proposal is away.",
        lambda h: h.stats.num_max,
    ),
    Hub("hub_fairness", "Jain's index over targets' draft tokens of the last seconds.", lambda h: h.stats.fairness),
)

# What the hub knows of each target. Other targets than vLLM servers also report their own statistics.
HUB_TARGET_COUNTERS: Final[tuple[HubTarget, ...]] = (
    HubTarget("hub_target_proposals", "Proposals sent to the target.", lambda s: s.num_proposals),
    HubTarget("hub_target_draft_tokens", "Tokens of those proposals.", lambda s: s.num_draft_tokens),
    HubTarget("hub_target_verdicts", "Proposals that the target has verified.", lambda s: s.num_verdicts),
    HubTarget("hub_target_accepted_tokens", "Draft tokens that it accepted.", lambda s: s.num_accepted_tokens),
)

HUB_TARGET_GAUGES: Final[tuple[HubTarget, ...]] = (
    HubTarget("hub_target_tags", "Tags held for the target.", lambda s: s.num_tags),
    HubTarget("hub_target_acceptance_length", "Tokens of its rounds with a draft.", lambda s: s.acceptance_length),
    HubTarget(
        "hub_target_queue_seconds",
        "T_wait: arrival of its requests to their first draft steps.",
        lambda s: s.queue.value,
    ),
    HubTarget("hub_target_return_seconds", "Z: a proposal to its verdict.", lambda s: s.return_time.value),
    HubTarget(
        "hub_target_round_seconds",
        "One proposal of a tag, or verdict without one, to the next.",
        lambda s: s.round.value,
    ),
)


def _per_token(stats: TargetStats, number: float) -> float:
    """Over the tokens emitted; 0 before any."""
    num_tokens = stats.acceptance.num_emitted_tokens
    return number / num_tokens if num_tokens else 0.0


def _pipe(status: TargetStatus) -> PipeStats:
    return status.stats.pipe or PipeStats()


# Of targets in stages only.
PIPE_COUNTERS: Final[tuple[Target, ...]] = (
    Target("pipe_traversals", "Traversals of the stages that landed.", lambda t: _pipe(t).num_traversals),
    Target("pipe_bytes", "Bytes of traversals and their answers, on all links.", lambda t: _pipe(t).num_bytes),
    Target(
        "pipe_ahead_windows",
        "Windows launched before the ones on which they stand had landed.",
        lambda t: t.stats.num_ahead_windows,
    ),
    Target(
        "pipe_stale_windows",
        "Of these, windows that stood on refused tokens.",
        lambda t: t.stats.num_stale_windows,
    ),
    Target("pipe_losses", "Times that a stage was lost.", lambda t: _pipe(t).num_losses),
)
PIPE_GAUGES: Final[tuple[Target, ...]] = (
    Target("pipe_depth", "Traversals that should be in flight; 0: stages are missing.", lambda t: _pipe(t).depth),
    Target("pipe_in_flight", "Traversals in flight.", lambda t: _pipe(t).num_in_flight),
    Target(
        "pipe_fill",
        "Share of the time, while something is in flight, in which the slowest stage computes.",
        lambda t: _pipe(t).fill.value,
    ),
    Target(
        "pipe_traversals_per_token",
        "Traversals for each token emitted, those of prompts included.",
        lambda t: _per_token(t.stats, _pipe(t).num_traversals),
    ),
    Target(
        "pipe_bytes_per_token",
        "Bytes on all links for each token emitted, those of prompts included.",
        lambda t: _per_token(t.stats, _pipe(t).num_bytes),
    ),
)

# Of each stage, by its place: a spare that takes a place goes on with its sums.
STAGE_COUNTERS: Final[tuple[Stage, ...]] = (
    Stage("stage_compute_seconds", "Seconds in which the stage computed.", lambda s: s.compute_s),
    Stage("stage_wait_seconds", "Seconds in which traversals lay at the stage before.", lambda s: s.wait_s),
    Stage("stage_bytes", "Bytes of traversals that came to the stage.", lambda s: s.num_bytes),
    Stage("stage_hidden_bytes", "Of these, hidden states.", lambda s: s.num_hidden_bytes),
)
STAGE_GAUGES: Final[tuple[Stage, ...]] = (
    Stage("stage_attached", "1 while the stage is attached.", lambda s: float(s.is_attached)),
)
