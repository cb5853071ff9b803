"""What the hub keeps of one target besides its sequences: its rounds, its rate limit, its closed tags."""

from __future__ import annotations

from starspec.hub.committed import DraftLimits
from starspec.hub.law_timer import LawTimer
from starspec.hub.round import MadeProposal, SkippedRequest, VerifiedProposal
from starspec.hub.sequence import DraftSequence
from starspec.ids import Tag, TargetId
from starspec.policy.capacity import Demand, demand_of
from starspec.policy.estimators import DecayedMean
from starspec.policy.law_turns import WEIGHT, LawTurns
from starspec.policy.peer_limits import Allowance
from starspec.policy.run_ahead import AheadChoice
from starspec.stats import HubTargetStats, Mean
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
        law_timer: of all its sequences.
        rate_limit: of its draft tokens; None = no limit.
        objective_s: its rounds are to be no longer than this; None = any.
        trace: also gets every round, if given. A vLLM server has no other trace.
    """

    def __init__(
        self,
        target_id: TargetId,
        limits: DraftLimits,
        ahead_choice: AheadChoice,
        law_timer: LawTimer,
        rate_limit: Allowance | None = None,
        objective_s: float | None = None,
        trace: Tracer | None = None,
    ) -> None:
        self.target_id = target_id
        self.limits = limits
        self.ahead_choice = ahead_choice  # of the sequence that ended last: the next one continues from there
        self.law_timer = law_timer
        self.law_turns = LawTurns()
        self.law_s = DecayedMean(WEIGHT)  # of a draft step
        self.plain_tokens_per_s = 0.0  # as the target reports it; 0 = not reported
        self.num_tags = 0  # with a sequence
        self.num_held_tokens = 0  # committed tokens of these sequences
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
            tag, tokens, prefill = made.key.tag, made.num_draft_tokens, int(made.has_prefill)
            args: dict[str, str | float] = {"tag": tag, "tokens": tokens, "prefill": prefill}
            self._slice("proposal", made.arrived_s, made.made_s, queue_ms=made.queue_s * 1e3, **args)

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

    def begin_sequence(self, num_tokens: int) -> AheadChoice:
        """One more tag has a sequence, of so many tokens.

        Returns: what it knows of running ahead from the sequences before it.
        """
        self.num_tags += 1
        self.num_held_tokens += num_tokens
        return self.ahead_choice.for_another()

    def add_tokens(self, num_tokens: int) -> None:
        """A sequence of it has committed so many tokens more."""
        self.num_held_tokens += num_tokens

    def end_sequence(self, sequence: DraftSequence) -> None:
        """Keep what outlives a sequence that is dropped: its tag's protocol state, and how it ran ahead."""
        self.num_tags -= 1
        self.num_held_tokens -= len(sequence.token_ids)
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
