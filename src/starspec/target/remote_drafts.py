"""Proposals from a hub, and what happens when they do not come.

A round waits for proposals at most until a deadline; a hub that says nothing at all by then is *lost*: rounds go on
without waiting until it is heard again, and then every running tag is opened anew from its token ids.
So a hub can make a target faster, never stop it, and never change a token.

A tag whose `Open` is late is not waited for again, and is no silence: the hub has a prompt to read, of this tag or of
others. Rounds go on, and the tag joins them when its first proposal comes: that one is old by then, and is answered
with one verdict on all that was committed meanwhile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

from torch import Tensor

from starspec.config import SampleMethod
from starspec.errors import PeerProtocolError
from starspec.ids import RequestId, Tag
from starspec.length.policy import LengthPolicy
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.stats import Mean, TargetStats
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.target.drafts import NgramDrafts, draft_budget
from starspec.target.plain_speed import PlainSpeed
from starspec.target.sequence import Emitted, Sequence, SequenceState
from starspec.target.told_features import ToldFeatures, WantedFeatures
from starspec.wire.hub_liveness import HubLiveness
from starspec.wire.messages import (
    Close,
    HubToTarget,
    Open,
    Ping,
    Proposal,
    Reopen,
    TargetToHub,
    TreeShape,
    Verdict,
)
from starspec.wire.session import Role, TagSession
from starspec.wire.transport import TargetTransport

MIN_DEADLINE_S = 0.050
MAX_GAP_S = 0.250  # a client may always wait so long for a token; only rounds of more than half of it may take longer
GAP_SHARE = 0.8  # of the longest gap: the rest is for what happens between two rounds
FIRST_DEADLINE_S = 1.0  # before any round has been measured
PING_INTERVAL_S = 0.5  # also what a lost hub is found by
MAX_MISSES = 3  # late proposals in a row before a tag is left alone for a while
PAUSE_ROUNDS = 16


@dataclass(slots=True)
class _SequenceTag:
    """One sequence's tag at the hub."""

    sequence: Sequence
    session: TagSession
    features: ToldFeatures
    proposal: Proposal | None = None
    asked_s: float = 0.0  # when the awaited proposal was asked for
    is_awaited: bool = False
    is_opening: bool = False  # `Open` is not answered yet: the hub may have a long prompt to read
    untold: list[int] = field(default_factory=list)  # committed since that Open; the hub hears of it once it answers
    num_misses: int = 0  # in a row
    num_pause_rounds: int = 0


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
        self._fixed_deadline_s = deadline_s
        self._method = method
        self._deadline_s = FIRST_DEADLINE_S if deadline_s is None else deadline_s
        self._tags: dict[Tag, _SequenceTag] = {}
        self._by_request: dict[RequestId, Tag] = {}
        self._tag_numbers = itertools.count(1)
        self._ping_numbers = itertools.count(1)
        self._next_ping_s = 0.0
        self._hub = HubLiveness(clock())
        self._num_sequences = 0  # of the next round: those that the last one left, and those opened since
        self._num_connects = 0
        self._ask_again_s = 0.0  # a hub that had no room for a tag asked to hear of no other before
        self._plain_speed = PlainSpeed()
        self._is_plain_round = False  # nobody has a draft in the round that runs
        self._feature_terms = WantedFeatures()  # of the hub found last: it may come back
        self._is_waiting = False  # in `_await`: what arrives now has just arrived
        self._round, self._verify = Mean(), Mean()  # seconds of recent rounds

    @property
    def is_connected(self) -> bool:
        return not self._hub.is_lost

    @property
    def num_tags(self) -> int:
        return len(self._tags)

    # ---------------------------------------------------------------- the round's calls

    def open(self, sequence: Sequence) -> None:
        if self._fallback is not None:
            self._fallback.open(sequence)
        sequence.stats.num_spec_tokens = self._wanted(sequence, num_sequences=1).num_steps
        self._num_sequences += 1
        if sequence.spec.num_draft_tokens == 0:
            return
        tag = Tag(next(self._tag_numbers))
        state = _SequenceTag(sequence, TagSession(Role.TARGET, tag), ToldFeatures(self._feature_terms))
        self._tags[tag] = state
        self._by_request[sequence.request_id] = tag
        if self._may_open:
            self._transport.send(self._open(state))

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._feature_terms.layers

    def read(self, sequence: Sequence, start: int, features: Tensor) -> None:
        state = self._state(sequence)
        if state is not None:
            state.features.add(start, features)
            if state.session.is_held and not self._hub.is_lost:
                self._transport.send(state.features.frames(state.session.tag, len(sequence.token_ids)))

    def collect(self, batch: Rows[Sequence]) -> list[DraftTree]:
        self.poll()
        trees = [EMPTY_TREE] * len(batch) if self._is_to_be_measured else self._collect(batch)
        self._is_plain_round = not any(tree.num_draft_tokens for tree in trees)
        return trees

    def _collect(self, batch: Rows[Sequence]) -> list[DraftTree]:
        states = [self._state(sequence) for sequence in batch]
        awaited = [state for state in states if state is not None and state.is_awaited]
        self._await(awaited)
        return [self._tree(sequence, state, len(batch)) for sequence, state in zip(batch, states, strict=True)]

    def report(self, batch: Rows[Sequence], emitted: Rows[Emitted]) -> None:
        messages: list[TargetToHub] = []
        self._num_sequences = sum(added.finish is None for added in emitted)
        for sequence, added in zip(batch, emitted, strict=True):
            state = self._state(sequence)
            if state is None:
                continue
            if added.finish is not None:
                messages.extend(self._forget(state))
                continue
            if added.features is not None:
                state.features.add(len(sequence.token_ids) - 1 - len(added.token_ids), added.features)
            if state.is_opening:
                state.untold += added.token_ids
            elif state.session.is_held:
                messages += self._verdict(state, added.token_ids)
            elif self._may_open:
                messages += self._open(state)
        if self._fallback is not None:
            self._fallback.report(batch, emitted)
        self._transport.send(messages)

    def close(self, sequence: Sequence) -> None:
        if self._fallback is not None:
            self._fallback.close(sequence)
        state = self._state(sequence)
        if state is not None:
            self._transport.send(self._forget(state))

    def note_round(self, round_s: float, verify_s: float) -> None:
        """Set the next deadline so that even a round that waits in vain ends within two recent rounds, or MAX_GAP_S."""
        self._round.add(round_s)
        self._verify.add(verify_s)
        if self._is_plain_round:
            self._plain_speed.add_round(verify_s, self._clock())
            self._stats.plain_tokens_per_s = self._plain_speed.tokens_per_s
        if self._fixed_deadline_s is None:
            longest_s = GAP_SHARE * max(MAX_GAP_S, 2.0 * self._round.value)
            self._deadline_s = max(MIN_DEADLINE_S, longest_s - self._verify.value)

    def poll(self) -> None:
        for message in self._transport.receive(0.0):
            self._handle(message)
        self._notice_connection()
        now = self._clock()
        self._stats.degraded_s = self._hub.lost_s(now)
        if self._transport.is_connected and now >= self._next_ping_s:
            self._next_ping_s = now + PING_INTERVAL_S
            self._transport.send([Ping(next(self._ping_numbers), self._plain_speed.tokens_per_s)])

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
        return is_wanted and not self._hub.is_lost and self._plain_speed.is_due(self._clock())

    # ---------------------------------------------------------------- waiting

    def _await(self, awaited: list[_SequenceTag]) -> None:
        """Receive until every awaited proposal is here, or the deadline passes, or the hub is lost."""
        is_heard = self._receive_until(self._clock() + self._deadline_s, awaited)
        late = [state for state in awaited if state.is_awaited]
        is_given_up = self._hub.has_fallen_silent(not is_heard and any(not state.is_opening for state in late))
        if not late:
            return
        self._stats.num_late_rounds += 1
        for state in late:
            self._miss(state)
        if is_given_up and not self._hub.is_lost:
            self._lose()

    def _receive_until(self, deadline_s: float, awaited: list[_SequenceTag]) -> bool:
        """Returns: whether anything was heard."""
        is_heard = False
        self._is_waiting = True
        while not self._hub.is_lost and any(state.is_awaited for state in awaited):
            left_s = deadline_s - self._clock()
            if left_s <= 0:
                break
            messages = self._transport.receive(left_s)
            is_heard |= bool(messages)
            for message in messages:
                self._handle(message)
            self._notice_connection()
        self._is_waiting = False
        return is_heard

    def _miss(self, state: _SequenceTag) -> None:
        if state.is_opening:
            state.is_awaited = False  # rounds go on; the tag joins when the hub has read its prompt
            return
        state.num_misses += 1
        if state.num_misses >= MAX_MISSES:  # alive but too slow for this tag: stop paying the deadline for it
            state.num_pause_rounds = PAUSE_ROUNDS
            state.num_misses = 0

    def _notice_connection(self) -> None:
        """A session that ended took every tag with it; one that began can have them all."""
        if not self._transport.is_connected:
            if not self._hub.is_lost:
                self._lose()
        elif self._transport.num_connects != self._num_connects:
            self._num_connects = self._transport.num_connects
            if not self._hub.is_lost:
                self._lose()
            self._find()

    def _lose(self) -> None:
        """The hub is silent or gone: wait for nothing until it is heard again."""
        self._hub.lose(self._clock())
        for state in self._tags.values():
            self._let_go(state)

    def _let_go(self, state: _SequenceTag) -> None:
        state.session.lose()
        state.proposal, state.is_awaited, state.is_opening = None, False, False

    def _find(self) -> None:
        """The hub is heard (again): open every tag from its token ids."""
        self._hub.find(self._clock())
        self._stats.num_reconnects = self._hub.num_found - 1
        self._take_terms()
        self._ask_again_s = 0.0
        for state in self._tags.values():
            self._transport.send(self._open(state))

    def _take_terms(self) -> None:
        """Which features this hub reads. Those that were kept for one that read others are of no use."""
        welcome = self._transport.welcome
        if welcome is None or WantedFeatures.of(welcome) == self._feature_terms:
            return
        self._feature_terms = WantedFeatures.of(welcome)
        for state in self._tags.values():
            state.features = ToldFeatures(self._feature_terms)

    # ---------------------------------------------------------------- messages

    def _handle(self, message: HubToTarget) -> None:
        if self._hub.is_lost:
            if self._hub.may_be_found(self._clock()):
                self._find()
            return
        if not isinstance(message, Proposal | Reopen):
            return  # Pong is a word, no more; Goodbye ends in a disconnection
        state = self._tags.get(message.tag)
        if state is None or not self._is_fresh(state, message):
            self._stats.num_stale_messages += 1
        elif isinstance(message, Reopen):
            self._transport.send(self._open(state))
        elif message.retry_after_s:
            self._let_go(state)
            self._ask_again_s = self._clock() + message.retry_after_s
            self._stats.num_declined += 1
        elif state.untold:
            untold, state.untold, state.is_opening = state.untold, [], False
            self._transport.send(self._verdict(state, untold))
        else:
            self._take(state, message)

    def _is_fresh(self, state: _SequenceTag, message: Proposal | Reopen) -> bool:
        """Whether the message fits the tag as it is. One that breaks the protocol costs this round its draft."""
        try:
            return state.session.receive(message) is not None
        except PeerProtocolError:
            return False

    def _take(self, state: _SequenceTag, proposal: Proposal) -> None:
        state.proposal, state.is_awaited, state.num_misses = proposal, False, 0
        state.is_opening = False
        if self._is_waiting:  # else it has lain there for a while
            round_trip_s = self._clock() - state.asked_s
            self._stats.t_c.add(max(0.0, round_trip_s - proposal.queue_s - proposal.service_s))

    def _wanted(self, sequence: Sequence, num_sequences: int) -> DraftBudget:
        """What to ask for; a hub never gives more nodes than it said in its Welcome."""
        welcome = self._transport.welcome
        budget = draft_budget(sequence, self._policy, num_sequences)
        if welcome is None:
            return budget
        return budget.limited(num_draft_tokens=welcome.max_draft_tokens, num_steps=budget.num_steps)

    def _open(self, state: _SequenceTag) -> list[TargetToHub]:
        sequence = state.sequence
        wanted = self._wanted(sequence, self._num_sequences) if self._is_draftable(state) else NO_DRAFT
        message = Open(
            tag=state.session.tag,
            epoch=state.session.next_epoch,
            token_ids=list(sequence.token_ids),
            prompt_len=sequence.prompt_len,
            law=sequence.law,
            num_draft_tokens=wanted.num_draft_tokens,
            shape=TreeShape.of(wanted),
            method=self._method,
        )
        state.session.send(message)
        self._ask(state, wanted)
        state.is_opening, state.untold = state.is_awaited, []
        state.features.forget_what_was_told()
        return [message, *state.features.frames(message.tag, len(message.token_ids))]

    def _verdict(self, state: _SequenceTag, token_ids: list[int]) -> list[TargetToHub]:
        is_asked = not state.num_pause_rounds and self._is_draftable(state)
        wanted = self._wanted(state.sequence, self._num_sequences) if is_asked else NO_DRAFT
        state.num_pause_rounds = max(0, state.num_pause_rounds - 1)
        message = Verdict(
            tag=state.session.tag,
            epoch=state.session.next_epoch,
            base_len=state.session.prefix_len,
            token_ids=token_ids,
            num_draft_tokens=wanted.num_draft_tokens,
            shape=TreeShape.of(wanted),
        )
        state.session.send(message)
        self._ask(state, wanted)
        features = state.features.frames(message.tag, len(state.sequence.token_ids))
        early = [each for each in features if each.start < message.base_len]
        return [*early, message, *features[len(early) :]]  # none of tokens that the hub has not heard of

    def _is_draftable(self, state: _SequenceTag) -> bool:
        """Whether the hub has, or soon gets, all that it needs to draft behind the committed tokens."""
        num_wanted = len(state.sequence.token_ids) - 1  # of the last token there are no features yet
        is_read = state.sequence.state is not SequenceState.PREFILLING
        return not self.feature_layers or (num_wanted > 0 and (not is_read or state.features.reach(num_wanted)))

    def _ask(self, state: _SequenceTag, wanted: DraftBudget) -> None:
        state.proposal = None
        state.is_awaited = wanted.num_draft_tokens > 0
        state.asked_s = self._clock()

    def _forget(self, state: _SequenceTag) -> list[TargetToHub]:
        """Drop the tag; returns the message that tells the hub, if it was ever told of the tag.

        A hub that fell silent may hold it still, so it is told even while nothing is expected of it.
        """
        del self._tags[state.session.tag]
        del self._by_request[state.sequence.request_id]
        if state.session.epoch == 0:
            return []
        return [state.session.send(Close(tag=state.session.tag, epoch=state.session.next_epoch))]

    def _state(self, sequence: Sequence) -> _SequenceTag | None:
        tag = self._by_request.get(sequence.request_id)
        return None if tag is None else self._tags[tag]

    def _tree(self, sequence: Sequence, state: _SequenceTag | None, num_sequences: int) -> DraftTree:
        if state is not None and state.proposal is not None:
            return state.proposal.tree
        if self._fallback is not None and sequence.spec.num_draft_tokens != 0:
            return self._fallback.propose(sequence, num_sequences)
        return EMPTY_TREE
