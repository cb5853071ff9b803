"""Proposals from a hub, and what happens when they do not come.

A round waits for proposals at most until a deadline. A hub that says nothing at all by then is pinged, and *lost* if it
does not answer that either: rounds go on without waiting until it is heard again, and then every running tag is opened
anew from its token ids. So a hub can make a target faster, never stop it, and never change a token; but under rejection
sampling, which believes what it says of its law, it can bend that of the tokens.

A late proposal is waited for once. Rounds go on, and say nothing of its tag, until it comes; if it says what they have
committed meanwhile, its rest is verified, else one verdict tells the hub all of it. A tag, or a hub, that keeps coming
too late is left alone for a while; the first proposal of a tag is no such case, for a prompt has to be read.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from torch import Tensor

from starspec.client.connection import HubConnection
from starspec.config import SampleMethod
from starspec.engine.drafts import NgramDrafts, draft_budget
from starspec.engine.feature_outbox import FeatureOutbox, FeatureRequest
from starspec.engine.hub_tag import HubTag
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.ids import RequestKey, Tag
from starspec.policy.deadline import Deadline
from starspec.policy.length.fixed import LengthPolicy
from starspec.policy.plain_speed import PlainSpeed
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import TargetStats
from starspec.wire.messages import Proposal, Reopen, TargetToHub
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()

ASK_AGAIN_S: Final = 1.0  # of a hub without room, if it does not answer: the sequence asked about may have ended


class RemoteDrafts:
    """Proposals from a hub, over any transport.

    Args:
        fallback: proposes for sequences that the hub has nothing for; None = those rounds are plain.
        deadline_s: longest wait of a round; None = follows recent rounds.
        method: how proposals are verified; with "rejection" the hub is asked to draw, and to say from what.
    """

    def __init__(
        self,
        transport: TargetTransport,
        policy: LengthPolicy,
        stats: TargetStats,
        clock: Callable[[], float] = time.monotonic,
        *,
        fallback: NgramDrafts | None = None,
        deadline_s: float | None = None,
        method: SampleMethod = "coupled",
    ) -> None:
        self._transport = transport
        self._policy = policy
        self._stats = stats
        self._clock = clock
        self._fallback = fallback
        self._method = method
        self._deadline = Deadline(deadline_s)
        self._tags: dict[Tag, HubTag] = {}
        self._by_request: dict[RequestKey, Tag] = {}
        self._tag_numbers = itertools.count(1)
        self._hub = HubConnection(transport, self, clock)
        self._num_sequences = 0  # of the next round: those that were ready after the last one, and those opened since
        self._is_declined = False  # the hub had no room for the last tag that it was told of
        self._ask_again_s = 0.0  # then: it asked to hear of no other before
        self._plain_speed = PlainSpeed()
        self._num_in_round = 0  # sequences of the round that runs ...
        self._is_plain_round = False  # ... of which nobody has a draft
        self._feature_terms = FeatureRequest()  # of the hub found last: it may come back

    @property
    def is_connected(self) -> bool:
        return not self._hub.is_lost

    @property
    def num_tags(self) -> int:
        return len(self._tags)

    # ---------------------------------------------------------------- the round's calls

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        if self._fallback is not None:
            self._fallback.open(sequences)
        self._num_sequences += len(sequences)
        for sequence in sequences:
            sequence.stats.num_spec_tokens = self._wanted(sequence, num_sequences=1).num_steps
        for state in [self._new_tag(each) for each in sequences if each.spec.num_draft_tokens != 0]:  # all count
            if self._may_open:
                self._transport.send(self._open(state))

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._feature_terms.layers

    def read(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        state = self._state(sequence)
        if state is not None:
            state.features.add(start, features)
            if state.session.is_held and not self._hub.is_lost:
                self._transport.send(state.features.frames(state.session.tag, len(sequence.token_ids)))

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        self.poll()
        self._num_in_round = len(batch)
        trees = [EMPTY_TREE] * len(batch) if self._is_to_be_measured else self._collect(batch)
        self._is_plain_round = not any(tree.num_draft_tokens for tree in trees)
        return trees

    def _collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        states = [self._state(sequence) for sequence in batch]
        for state in filter(None, states):
            state.settle_if_obsolete()
        awaited = [state for state in states if state is not None and state.is_awaited]
        num_steps = max((state.session.wanted.num_steps for state in awaited), default=0)
        late = self._hub.wait(awaited, self._tags.values(), self._deadline.seconds(num_steps))
        self._stats.num_late_rounds += bool(late)
        return [self._tree(sequence, state, len(batch)) for sequence, state in zip(batch, states, strict=True)]

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        messages: list[TargetToHub] = []
        now = self._clock()
        if self._hub.patience.is_pausing:
            self._hub.patience.pass_step(now)
        self._num_sequences = self._num_ready(batch)
        for sequence, added in zip(batch, emitted, strict=True):
            state = self._state(sequence)
            if state is None:
                continue
            if added.finish is not None:
                messages.extend(self._forget(state))
                continue
            if added.features is not None:
                state.features.add(len(sequence.token_ids) - 1 - len(added.token_ids), added.features)
            messages += self._tell(state, added.token_ids, now)
        if self._fallback is not None:
            self._fallback.report(batch, emitted)
        self._transport.send(messages)

    def close(self, sequence: TargetSequence) -> None:
        if self._fallback is not None:
            self._fallback.close(sequence)
        state = self._state(sequence)
        if state is not None:
            self._transport.send(self._forget(state))

    def note_round(self, round_s: float, verify_s: float) -> None:
        self._deadline.note_round(round_s, verify_s)
        if self._is_plain_round:
            self._plain_speed.add_round(verify_s, self._num_in_round, self._clock())
        self._stats.plain_tokens_per_s = self._plain_speed.tokens_per_s(self._num_in_round)
        self._hub.plain_tokens_per_s = self._stats.plain_tokens_per_s

    def poll(self) -> None:
        self._hub.receive(0.0)
        self._stats.degraded_s = self._hub.lost_s
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        self._transport.close()

    @property
    def _may_open(self) -> bool:
        """Whether the hub may be told of tags that it does not hold."""
        return not self._hub.is_lost and self._clock() >= self._ask_again_s

    @property
    def _is_to_be_measured(self) -> bool:
        """Whether a round without drafts is due: the hub wants to know what this target can do without it."""
        welcome = self._transport.welcome
        is_wanted = welcome is not None and welcome.is_plain_speed_wanted
        return is_wanted and not self._hub.is_lost and self._plain_speed.is_due(self._num_in_round, self._clock())

    # ---------------------------------------------------------------- what is heard

    def lose(self) -> None:
        """As HubListener."""
        for state in self._tags.values():
            state.let_go()
            state.forget_delays()

    def find(self) -> None:
        """As HubListener: open every tag from its token ids."""
        self._stats.num_reconnects = self._hub.num_found - 1
        self._take_terms()
        self._accept()
        for state in self._tags.values():
            self._transport.send(self._open(state))

    def _take_terms(self) -> None:
        """Which features this hub reads. Those that were kept for one that read others are of no use."""
        welcome = self._transport.welcome
        if welcome is None or FeatureRequest.of(welcome) == self._feature_terms:
            return
        self._feature_terms = FeatureRequest.of(welcome)
        for state in self._tags.values():
            state.features = FeatureOutbox(self._feature_terms)

    def take(self, message: Proposal | Reopen) -> None:
        """As HubListener."""
        state = self._tags.get(message.tag)
        if state is None or not state.session.take_if_sound(message):
            self._stats.num_stale_messages += 1
            if state is not None and state.session.is_answered_by(message):
                state.refuse(self._clock())
            return
        if isinstance(message, Reopen):
            state.let_go()  # it may be opened only later, and is waited for no longer
            if self._may_open:
                self._transport.send(self._open(state))
            return
        if message.retry_after_s:
            state.let_go()
            self._is_declined, self._ask_again_s = True, self._clock() + message.retry_after_s
            self._stats.num_declined += 1
            return
        if state.is_opening:
            self._accept()
        if state.take(message, self._clock()):
            self._note_answer(state, message)
        else:
            self._transport.send(self._verdict(state))

    def _accept(self) -> None:
        """The hub has room, as far as is known."""
        self._is_declined, self._ask_again_s = False, 0.0

    def _note_answer(self, state: HubTag, proposal: Proposal) -> None:
        self._hub.patience.note_in_time()
        if self._hub.is_waiting:  # else it has lain there for a while
            round_trip_s = self._clock() - state.asked_s
            self._stats.t_c.add(max(0.0, round_trip_s - proposal.queue_s - proposal.service_s))

    # ---------------------------------------------------------------- what is told

    def _num_ready(self, batch: Sequence[TargetSequence]) -> int:
        """Sequences that the next round may be of: of this one's batch, and of those who were not in it."""
        ready = [*batch, *(state.sequence for state in self._tags.values())]
        return len({each.key for each in ready if each.state is SequenceState.RUNNING})

    def _wanted(self, sequence: TargetSequence, num_sequences: int) -> DraftBudget:
        """What to ask for; a hub never gives more nodes than it said in its Welcome."""
        welcome = self._transport.welcome
        budget = draft_budget(sequence, self._policy, num_sequences)
        if welcome is None:
            return budget
        return budget.limited(num_draft_tokens=welcome.max_draft_tokens)

    def _new_tag(self, sequence: TargetSequence) -> HubTag:
        tag = Tag(next(self._tag_numbers))
        state = HubTag(sequence, TagSession(Role.TARGET, tag), FeatureOutbox(self._feature_terms))
        self._tags[tag] = state
        self._by_request[sequence.key] = tag
        return state

    def _open(self, state: HubTag) -> list[TargetToHub]:
        """Returns: what tells the hub of the tag; nothing while no draft is wanted of it, or if it is too long.

        A hub reads a prompt for rounds to come, so those count whose own prompts are being read.
        """
        now = self._clock()
        wanted = self._wanted(state.sequence, max(self._num_sequences, len(self._tags)))
        if state.is_too_long or not wanted.num_draft_tokens:
            return []
        messages = state.open(wanted, self._method, now)
        if state.is_too_long:
            num_tokens, request_id = len(state.sequence.token_ids), state.sequence.request_id
            log.warning("a sequence is too long to be told to the hub", request=request_id, num_tokens=num_tokens)
            return []
        if self._is_declined:  # one asks for all
            self._ask_again_s = now + ASK_AGAIN_S
        if self._is_declined or self._hub.patience.is_pausing:  # rounds do not wait to hear no again, or nothing
            state.is_awaited = False
        return messages

    def _tell(self, state: HubTag, token_ids: list[int], now: float) -> list[TargetToHub]:
        """Returns: what tells the hub of a round's tokens, as far as it can be told now."""
        if state.is_unanswered and state.reading.is_overdue(now):
            state.let_go()  # what was told, or its answer, may have been lost
        if state.session.is_held:
            state.untold += token_ids
            return [] if state.is_unanswered else self._verdict(state)
        if state.patience.is_pausing:
            state.patience.pass_step(now)
            return []
        return self._open(state) if self._may_open else []

    def _verdict(self, state: HubTag) -> list[TargetToHub]:
        wanted = NO_DRAFT if self._hub.patience.is_pausing else self._wanted(state.sequence, self._num_sequences)
        return state.verdict(wanted, self._clock())

    def _forget(self, state: HubTag) -> list[TargetToHub]:
        """Drop the tag. Returns: what tells the hub."""
        del self._tags[state.session.tag]
        del self._by_request[state.sequence.key]
        return state.close()

    def _state(self, sequence: TargetSequence) -> HubTag | None:
        tag = self._by_request.get(sequence.key)
        return None if tag is None else self._tags[tag]

    def _tree(self, sequence: TargetSequence, state: HubTag | None, num_sequences: int) -> DraftTree:
        if state is not None and state.draft != EMPTY_TREE:
            return state.draft
        if self._fallback is not None and sequence.spec.num_draft_tokens != 0:
            return self._fallback.propose(sequence, num_sequences)
        return EMPTY_TREE
