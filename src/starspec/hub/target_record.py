"""What the hub keeps of one target besides its sequences: its rounds, and how far the tags had come that it lost."""

from __future__ import annotations

from starspec.hub.sequence import DraftLimits
from starspec.ids import Tag, TargetId
from starspec.policy.capacity import Demand
from starspec.policy.rate_limit import TokenBucket
from starspec.policy.run_ahead import AheadChoice
from starspec.stats import HubTargetStats, Mean
from starspec.wire.session import Role, TagSession

MAX_PAST_TAGS = 1024
MIN_ROUNDS = 5  # until then nothing is known of a target's rounds


class TargetRecord:
    """One target, as long as its sequence with the hub lasts.

    A link outlives its draft sequence for a while: a late message of a closed tag is then known to be late, and
    does not open the tag again.

    Args:
        limits: of its sequences.
        ahead: of its first sequence.
        bucket: what it may have drafted; None = all that it asks for.
        objective_s: the longest rounds that it is to have; None = any.
    """

    def __init__(
        self,
        target_id: TargetId,
        limits: DraftLimits,
        ahead: AheadChoice,
        bucket: TokenBucket | None = None,
        objective_s: float | None = None,
    ) -> None:
        self.target_id = target_id
        self.limits = limits  # of its sequences
        self.ahead_choice = ahead  # of the sequence that ended last: its next one goes on from there
        self.plain_tokens_per_s = 0.0  # as it says; 0 = it has not said
        self.stats = HubTargetStats()
        self._bucket = bucket
        self._owed: dict[Tag, int] = {}  # draft tokens of proposals that were asked for within the rate
        self._objective_s = objective_s
        self._steps, self._tokens = Mean(), Mean()  # of a round
        self._sequences = Mean()  # at once, while there are any
        self._past: dict[Tag, TagSession] = {}  # remembered last comes last

    @property
    def track(self) -> str:
        """Of a trace, where its rounds are shown."""
        return f"target {self.target_id}"

    @property
    def is_behind(self) -> bool:
        """Whether its rounds are longer than its latency objective, if it has one."""
        return self._objective_s is not None and self.stats.round.value > self._objective_s

    @property
    def is_limited(self) -> bool:
        """Whether it has a rate limit."""
        return self._bucket is not None

    def may_draft(self, now: float) -> bool:
        """Whether its rate limit, if it has one, leaves it a proposal, those that are owed counted."""
        return self._bucket is None or self._bucket.has_some(now, sum(self._owed.values()))

    def owe(self, tag: Tag, num_draft_tokens: int) -> None:
        """A proposal of at most so many is going to be made; 0 = none, or not any more."""
        self._owed.pop(tag, None)
        if num_draft_tokens and self._bucket is not None:
            self._owed[tag] = num_draft_tokens

    def add_proposal(self, num_draft_tokens: int) -> None:
        """One was made."""
        self.stats.num_proposals += 1
        self.stats.num_draft_tokens += num_draft_tokens
        if self._bucket is not None:
            self._bucket.take(num_draft_tokens)

    def add_wait(self, queue_s: float) -> None:
        """A request waited so long for its first draft step."""
        self.stats.queue.add(queue_s)

    def add_steps(self, num_steps: int) -> None:
        """A proposal was made of so many draft steps, none of them with a prompt."""
        self._steps.add(num_steps)

    def add_round(self, seconds: float) -> None:
        """From a proposal, or a verdict that did without, to the sequence's next one of either kind."""
        self.stats.round.add(seconds)

    def add_verdict(self, num_tokens: int, return_s: float) -> None:
        """The verdict on a proposal came after so long, with so many tokens."""
        self.stats.return_time.add(return_s)
        self._tokens.add(num_tokens)
        self.stats.num_verdicts += 1
        self.stats.num_accepted_tokens += num_tokens - 1

    def note_sequences(self, num_sequences: int) -> None:
        """At this moment it has so many, at least one."""
        self._sequences.add(num_sequences)

    @property
    def return_s(self) -> float | None:
        """Z: from a proposal to its verdict; None until the first."""
        return_time = self.stats.return_time
        return return_time.value if return_time.count else None

    def demand(self) -> Demand | None:
        """What this target asks for; None if too little is known.

        A target that has not said how fast it is without drafts is supposed to take Z for a token.
        """
        return_time = self.stats.return_time
        if min(return_time.count, self._steps.count) < MIN_ROUNDS or not return_time.value:
            return None
        return Demand(
            num_sequences=max(1.0, self._sequences.value),
            num_steps=self._steps.value,
            return_s=return_time.value,
            num_tokens=self._tokens.value,
            plain_tokens_per_s=self.plain_tokens_per_s or 1.0 / return_time.value,
        )

    def recall(self, tag: Tag) -> TagSession:
        """The link of a tag that has no sequence; a fresh one, remembered from now on, if the tag is unknown."""
        session = self._past.get(tag)
        if session is None:
            session = TagSession(Role.HUB, tag)
            self.remember(session)
        return session

    def remember(self, session: TagSession) -> None:
        """Keep a link for `recall`. Effects: forgets the one remembered longest ago, beyond MAX_PAST_TAGS."""
        self._past.pop(session.tag, None)
        self._past[session.tag] = session
        if len(self._past) > MAX_PAST_TAGS:
            del self._past[next(iter(self._past))]
