"""What the hub keeps of its targets besides their sequences: rounds, rate limits, closed tags, admission."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

from starspec.config import HubConfig
from starspec.errors import OurBug
from starspec.hub.buffer import RequestBuffer
from starspec.hub.committed import DraftLimits
from starspec.hub.round import MadeProposal, SkippedRequest, VerifiedProposal
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId, Tag, TargetId
from starspec.policy.admission import PAUSE_S, REVIEW_S, AdmissionControl, Load, count_max
from starspec.policy.capacity import Demand, demand_of, num_full, typical
from starspec.policy.draft_batch import TagKey
from starspec.policy.fairness import HeldTag, tag_to_drop, target_to_take_from
from starspec.policy.peer_limits import MAX_HELD_TOKENS, Allowance, rate_limit
from starspec.policy.run_ahead import AheadChoice
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats, HubTargetStats, Mean
from starspec.tracing import Tracer
from starspec.wire.session import Role, TagSession

MAX_PAST_TAGS = 1024


class TargetState:
    """One target, as long as its link with the hub lasts.

    A tag's protocol state outlives the tag's sequence for a while. So a late message of a closed tag is known to be
    late, and does not open the tag again.

    Args:
        limits: of its sequences.
        ahead_choice: of its first sequence.
        rate_limit: of its draft tokens; None = no limit.
        objective_s: its rounds are to be no longer than this; None = any.
        trace: also gets every round, if given. A vLLM server has no other trace.
    """

    def __init__(
        self,
        target_id: TargetId,
        limits: DraftLimits,
        ahead_choice: AheadChoice,
        rate_limit: Allowance | None = None,
        objective_s: float | None = None,
        trace: Tracer | None = None,
    ) -> None:
        self.target_id = target_id
        self.limits = limits
        self.ahead_choice = ahead_choice  # of the sequence that ended last: the next one continues from there
        self.plain_tokens_per_s = 0.0  # as the target reports it; 0 = not reported
        self.num_tags = 0  # with a sequence
        self.stats = HubTargetStats()
        self._rate_limit = rate_limit
        self._reserved: dict[Tag, int] = {}  # draft tokens of proposals that are owed, within the rate limit
        self._objective_s = objective_s
        self._trace = trace
        self._steps, self._tokens = Mean(), Mean()  # of a round
        self._sequences = Mean()  # at once, while there are any
        self._past: dict[Tag, TagSession] = {}  # of tags without a sequence; the newest comes last

    @property
    def is_behind(self) -> bool:
        """Whether its rounds are longer than its latency objective, if it has one."""
        return self._objective_s is not None and self.stats.round.value > self._objective_s

    @property
    def has_rate_limit(self) -> bool:
        return self._rate_limit is not None

    def may_draft(self, now: float) -> bool:
        """Whether its rate limit, if it has one, allows another proposal besides those that are reserved."""
        return self._rate_limit is None or self._rate_limit.has_units(now, sum(self._reserved.values()))

    def reserve(self, tag: Tag, num_draft_tokens: int) -> None:
        """Count the draft tokens of an owed proposal against the rate limit; 0 = none is owed, or not any more."""
        self._reserved.pop(tag, None)
        if num_draft_tokens and self._rate_limit is not None:
            self._reserved[tag] = num_draft_tokens

    def add_proposal(self, made: MadeProposal) -> None:
        """A proposal of this target was made."""
        self.reserve(made.key.tag, 0)
        if made.has_service:
            self.stats.queue.add(made.queue_s)
        self.stats.num_proposals += 1
        self.stats.num_draft_tokens += made.num_draft_tokens
        if self._rate_limit is not None:
            self._rate_limit.take(made.num_draft_tokens, made.made_s)
        if made.round_s is not None:
            self.stats.round.add(made.round_s)
        if made.num_draft_tokens and not made.has_prefill:
            # with more targets the hub would not run ahead, and these draft steps would not be spared
            self._steps.add(made.num_steps + made.num_spared)
        if self._trace:
            tag, tokens, queue_ms = made.key.tag, made.num_draft_tokens, made.queue_s * 1e3
            self._slice("proposal", made.arrived_s, made.made_s, tag=tag, tokens=tokens, queue_ms=queue_ms)

    def add_verdict(self, tag: Tag, judged: VerifiedProposal | SkippedRequest | None, now: float) -> None:
        """A verdict of this target came. Args: judged: what it answers, as `DraftRound.judge` found out."""
        match judged:
            case VerifiedProposal(num_tokens, proposed_s):
                self.stats.return_time.add(now - proposed_s)
                self._tokens.add(num_tokens)
                self.stats.num_verdicts += 1
                self.stats.num_accepted_tokens += num_tokens - 1
                self._slice("verdict", proposed_s, now, tag=tag, emitted=num_tokens)
            case SkippedRequest(began_s):
                self.stats.round.add(now - began_s)

    def note_plain_speed(self, tokens_per_s: float) -> None:
        """The target has reported how fast it decodes without drafts; 0 = it does not know."""
        self.plain_tokens_per_s = tokens_per_s

    def note_sequences(self, num_sequences: int) -> None:
        """The target has so many sequences now, at least one."""
        self._sequences.add(num_sequences)

    @property
    def return_s(self) -> float | None:
        """Z: seconds from a proposal to its verdict; None until the first."""
        return_time = self.stats.return_time
        return return_time.value if return_time.count else None

    def demand(self) -> Demand | None:
        """What this target asks of the hub; None if too little is known."""
        return_time = self.stats.return_time
        measured = Demand(
            num_sequences=self._sequences.value,
            num_steps=self._steps.value,
            return_s=return_time.value,
            num_tokens=self._tokens.value,
            plain_tokens_per_s=self.plain_tokens_per_s,
        )
        return demand_of(measured, min(return_time.count, self._steps.count))

    def session(self, tag: Tag) -> TagSession:
        """The protocol state of a tag without a sequence; a new one, kept from now on, if the tag is unknown."""
        session = self._past.get(tag)
        if session is None:
            session = TagSession(Role.HUB, tag)
            self._keep(session)
        return session

    def begin_sequence(self) -> AheadChoice:
        """One more tag has a sequence. Returns: what it knows of running ahead from the sequences before it."""
        self.num_tags += 1
        return self.ahead_choice.for_another()

    def end_sequence(self, sequence: DraftSequence) -> None:
        """Keep what outlives a sequence that is dropped: its tag's protocol state, and how it ran ahead."""
        self.num_tags -= 1
        self._keep(sequence.session)
        self.ahead_choice = sequence.round.ahead_choice
        self.reserve(sequence.key.tag, 0)

    def _keep(self, session: TagSession) -> None:
        """Effects: forgets the oldest session, beyond MAX_PAST_TAGS."""
        self._past.pop(session.tag, None)
        self._past[session.tag] = session
        if len(self._past) > MAX_PAST_TAGS:
            del self._past[next(iter(self._past))]

    def _slice(self, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        if self._trace:
            self._trace.slice(f"target {self.target_id}", name, start_s, end_s, **args)


class ConnectedTargets:
    """All targets of a hub: what they ask of it together, and which of them are admitted.

    Args:
        config: admission, rate limits, latency objectives.
        sequences: of all targets; the hub changes this mapping.
        buffer: knows what draft steps cost.
        trace: as for `TargetState`.
    """

    def __init__(
        self,
        config: HubConfig,
        sequences: Mapping[TagKey, DraftSequence],
        buffer: RequestBuffer,
        trace: Tracer | None = None,
    ) -> None:
        self._config = config
        # one for each name, not for each link: a target cannot raise its limit by connecting again
        self._rate_limits = {TargetId(name): rate_limit(rate) for name, rate in config.rate_limits.items()}
        self._links: dict[LinkId, TargetState] = {}
        self._admission = None if config.admission == "off" else AdmissionControl(config.admission)
        self._sequences = sequences
        self._buffer = buffer
        self._trace = trace
        self._num_max = 0  # as counted last: counting takes a millisecond or two
        self._counted_s = float("-inf")

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, link_id: LinkId) -> bool:
        return link_id in self._links

    def __getitem__(self, link_id: LinkId) -> TargetState:
        return self._links[link_id]

    def join(self, link_id: LinkId, target_id: TargetId, limits: DraftLimits) -> None:
        """A target connects. Raises: OurBug if the link exists."""
        if link_id in self._links:
            raise OurBug(f"link {link_id} of target {target_id} joins twice")
        objective_ms = self._config.slo_round_ms.get(target_id)
        self._links[link_id] = TargetState(
            target_id,
            limits,
            AheadChoice(self._config.run_ahead),
            self._rate_limits.get(target_id),
            None if objective_ms is None else objective_ms / 1e3,
            self._trace,
        )

    def leave(self, link_id: LinkId) -> None:
        """A target is gone. Idempotent."""
        self._links.pop(link_id, None)
        if self._admission is not None:
            self._admission.leave(link_id)

    def ask_admission(self, link_id: LinkId, budget: DraftBudget, now: float) -> bool:
        """Whether the target is admitted. One that is not asks again with every tag that is to get draft tokens.

        Effects: the target may be admitted.
        """
        if self._admission is None or self._admission.is_admitted(link_id):
            return True
        return bool(budget.num_draft_tokens) and self._admission.ask(link_id, self._load(now), now)

    def tag_to_drop(self, link_id: LinkId, num_tokens: int | None = None) -> TagKey | None:
        """Whose place a target gets for another tag if all places are taken, as `policy/fairness.py` says.

        Args:
            num_tokens: of that tag, if it is memory for tokens that is taken.
        Returns: None if it gets none.
        """
        if num_tokens is None:
            largest = target_to_take_from({each: link.num_tags for each, link in self._links.items()}, link_id)
        else:
            largest = target_to_take_from(self._num_held_tokens(), link_id, num_tokens)
        if largest is None:
            return None
        theirs = [(key, each) for key, each in self._sequences.items() if key.link_id == largest]
        return tag_to_drop(HeldTag(key, each.round.request is not None, each.last_used_s) for key, each in theirs)

    def holds_too_much(self, num_tokens: int) -> bool:
        """Whether the hub would hold too many tokens with so many more."""
        return sum(self._num_held_tokens().values()) + num_tokens > MAX_HELD_TOKENS

    def _num_held_tokens(self) -> dict[LinkId, int]:
        held = dict.fromkeys(self._links, 0)
        for key, each in self._sequences.items():
            held[key.link_id] += len(each.token_ids)
        return held

    def is_served_freely(self, link_id: LinkId) -> bool:
        """Whether the target gets every proposal that it asks for: it is admitted and has no rate limit."""
        is_admitted = self._admission is None or self._admission.is_admitted(link_id)
        return is_admitted and not self._links[link_id].has_rate_limit

    def review(self, now: float) -> None:
        """Withdraw admission from targets, if a review is due and others need the hub more."""
        if self._admission is not None and self._admission.is_review_due(now):
            for link_id, num_tags in Counter(key.link_id for key in self._sequences).items():
                self._links[link_id].note_sequences(num_tags)
            self._admission.review(self._load(now), now)

    def report(self, stats: HubStats, now: float) -> None:
        """Compute how many targets the hub can serve. Effects: `stats`."""
        load = self._load(now)
        demands = [demand for link_id, demand in load.demands.items() if link_id in load.busy]
        stats.num_full = 0
        if demands and load.cost is not None:
            one = typical(demands)
            service_s = one.num_steps * load.cost.alone_s
            stats.num_full = num_full(service_s, one.return_s) if service_s else 0
        if now - self._counted_s >= REVIEW_S:
            self._num_max, self._counted_s = count_max(demands, load), now
        stats.num_max = self._num_max
        if self._admission is not None:
            stats.num_admitted = self._admission.num_admitted

    def target_stats(self) -> dict[TargetId, HubTargetStats]:
        """Copies of each target's statistics, by name; the newest link counts if several have the same name."""
        num_tags = Counter(key.link_id for key in self._sequences)
        return {
            link.target_id: replace(deepcopy(link.stats), num_tags=num_tags[link_id])
            for link_id, link in self._links.items()
        }

    def _load(self, now: float) -> Load:
        demands = {link_id: link.demand() for link_id, link in self._links.items()}
        return Load(
            {link_id: demand for link_id, demand in demands.items() if demand is not None},
            {link_id: link.plain_tokens_per_s for link_id, link in self._links.items()},
            frozenset(key.link_id for key, each in self._sequences.items() if each.round.is_asking(now - PAUSE_S)),
            self._buffer.scheduler.step_cost,
            self._buffer.scheduler.max_sequences,
            frozenset(key.link_id for key in self._sequences),
            self._buffer.num_rows,
        )
