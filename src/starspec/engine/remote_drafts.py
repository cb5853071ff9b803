"""Proposals from a hub, and what happens if they do not come.

A round waits for proposals until a deadline. A hub that sends nothing before the deadline is pinged, and it is *lost*
if it does not answer the ping either. Rounds then go on without waiting. When a message of the hub arrives again, each
running tag is opened anew from its token ids. So a hub can slow generation, but it can neither stop it nor change a
token. Under rejection sampling there is one exception: the target believes the probabilities that the hub states, so a
hub that states false ones can change the distribution of the tokens. Relaxed requests are the other exception: there a
hub has a say in tokens, within the bounds of `speculation/relaxed.py`.

The target waits once for a late proposal. Then its rounds go on without drafts, and send nothing more about the tag
until the proposal comes. If the proposal begins with the tokens that were committed meanwhile, the rest of it is
verified. Otherwise one verdict sends all of these tokens to the hub. If a tag, or a whole hub, is late again and again,
the target asks it for nothing for a while. The first proposal of a tag may be late, since the hub has to prefill the
prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from starspec.client.charging import Charging
from starspec.client.connection import HubConnection
from starspec.client.tag import HubTag
from starspec.config import SampleMethod
from starspec.engine.draft_lengths import DraftLengths
from starspec.engine.drafts import NgramDrafts
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.engine.sequence_at_hub import SequenceAtHub, SequencesAtHub, SequenceTokens
from starspec.ids import RequestKey
from starspec.policy.deadline import NoStallDeadline, Round
from starspec.policy.hub_account import HubAccount
from starspec.policy.hub_cost import HubCost, RoundGain
from starspec.policy.length.costs import Costs
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.acceptance import RULES, AcceptanceRule
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import HubState, TargetStats
from starspec.wire.messages import Proposal, Reopen, TargetToHub
from starspec.wire.transports.base import TargetTransport


class RemoteDrafts:
    """Proposals from a hub, over any transport.

    Args:
        fallback: proposes for a sequence when the hub has no proposal for it; None = such a sequence gets no draft.
        deadline_s: longest wait of a round; None = follows recent rounds.
        method: how proposals are verified; with "rejection" the hub is asked to draw, and to state its probabilities.
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
        self._stats = stats
        self._clock = clock
        self._fallback = fallback
        self._method = method
        self._deadline = NoStallDeadline(deadline_s)
        self._at_hub = SequencesAtHub()
        self._num_sequences = 0  # in the next round: those that were ready after the last round, and those opened since
        # an operator who sets the longest wait says by it what a hub may cost
        account = HubAccount() if deadline_s is None else None
        self._cost = HubCost(account)
        self._charging = Charging(account, clock, self._at_hub)
        self._hub = HubConnection(transport, self._deadline, self, clock, account)
        costs = Costs() if fallback is None else fallback.lengths.costs  # the target's steps are the same for both
        self._lengths = DraftLengths(policy, costs, lambda: self._hub.record.lessons, stats.lengths, clock)
        self._round: Round | None = None  # the drafts that this round waited for; None = they show no usual cost
        self._drafted: dict[RequestKey, int] = {}  # sequences in a round with a draft of the hub: steps requested
        self._gain = RoundGain(0, has_drafts=False)  # of the round that was reported last

    @property
    def is_connected(self) -> bool:
        return not self._hub.is_lost

    @property
    def hub_state(self) -> HubState:
        return self._hub.state

    @property
    def hub_state_s(self) -> float:
        return self._hub.state_s

    @property
    def rule(self) -> AcceptanceRule:
        return RULES[self._method]

    @property
    def num_tags(self) -> int:
        return len(self._at_hub)

    # ---------------------------------------------------------------- the round's calls

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        if self._fallback is not None:
            self._fallback.open(sequences)
        self._num_sequences += len(sequences)
        with self._charging:
            opened = [self._new_tag(each) for each in sequences if each.spec.num_draft_tokens != 0]
            self._ask_first(opened)  # after all are there: they all count

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._at_hub.feature_request.layers

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        at_hub = self._at_hub.by_request.get(sequence.key)
        if at_hub is None:
            return
        with self._charging:
            at_hub.add_features(start, features)
            if at_hub.tag.session.is_held and not self._hub.is_lost:
                self._hub.send(at_hub.frames())

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        with self._charging:
            trees = self._collect(batch)
        self._weigh(batch, trees)
        return trees

    def _collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        held = [self._at_hub.by_request.get(sequence.key) for sequence in batch]
        for at_hub in filter(None, held):
            at_hub.stop_if_undraftable()
        asked = [at_hub.tag for at_hub in held if at_hub is not None and at_hub.tag.is_awaited]
        self._round, is_prefilling = None, self._hub.is_prefilling
        self._poll()
        if self._is_plain_round_due(len(batch)):
            return [EMPTY_TREE] * len(batch)
        waited = self._hub.wait(asked)
        self._stats.num_late_rounds += bool(waited.late)
        self._round = None if is_prefilling else waited.round
        trees = [EMPTY_TREE if at_hub is None else at_hub.tag.draft() for at_hub in held]
        self._drafted |= {
            at_hub.sequence.key: at_hub.tag.num_left
            for at_hub, tree in zip(held, trees, strict=True)
            if at_hub is not None and tree != EMPTY_TREE
        }
        return trees if self._fallback is None else self._fallback.fill(batch, trees)

    def _weigh(self, batch: Sequence[TargetSequence], trees: Sequence[DraftTree]) -> None:
        """Learn what the hub has cost since the last round: messages, the wait, and what a hub on this thread did."""
        lessons, hub_s = self._hub.record.lessons, self._charging.take()
        if self._round is not None:
            lessons.note_round(self._round._replace(seconds=hub_s))
        pairs = zip(batch, trees, strict=True)
        lengths = [tree.num_draft_tokens for each, tree in pairs if each.key in self._drafted]
        lessons.weigh_round(hub_s, lengths, is_prefilling=self._hub.is_prefilling)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        self._gain = self._gain_of(batch, emitted)
        self._num_sequences = self._num_ready(batch)
        with self._charging:
            self._report(batch, emitted)
        for sequence in batch:
            self._drafted.pop(sequence.key, None)
        if self._fallback is not None:
            self._fallback.report(batch, emitted)

    def _gain_of(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> RoundGain:
        """What the round that is reported had of the hub. Others may have begun since."""
        by_hub = [added for each, added in zip(batch, emitted, strict=True) if each.key in self._drafted]
        num_draft_tokens = sum(each.num_draft_tokens for each in emitted)
        return RoundGain(
            len(batch),
            has_drafts=num_draft_tokens > 0,
            drafted_share=sum(each.num_draft_tokens for each in by_hub) / max(1, num_draft_tokens),
            num_gained=sum(len(each.token_ids) - 1 for each in by_hub) / max(1, len(batch)),
        )

    def _report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        messages: list[TargetToHub] = []
        self._hub.end_paused_step()
        running = [each for each, added in zip(batch, emitted, strict=True) if added.finish is None]
        for sequence, added in zip(batch, emitted, strict=True):
            if sequence.key in self._at_hub.by_request:
                self._lengths.learn(sequence, added, self._drafted.get(sequence.key, 0))
        budgets = self._budgets_of(running)
        for sequence, added in zip(batch, emitted, strict=True):
            at_hub = self._at_hub.by_request.get(sequence.key)
            if at_hub is None:
                continue
            if added.finish is not None:
                messages += self._close(at_hub)
                continue
            if added.features is not None:
                at_hub.add_features(len(sequence.token_ids) - 1 - len(added.token_ids), added.features)
            if at_hub in budgets:
                tell = self._verdict if at_hub.tag.session.is_held else self._open
                messages += tell(at_hub, budgets[at_hub])
        self._hub.send(messages)

    def _budgets_of(self, sequences: Sequence[TargetSequence]) -> dict[SequenceAtHub, DraftBudget]:
        """The round's choice of lengths, for all sequences about which the hub may be told something now."""
        known = [self._at_hub.by_request.get(each.key) for each in sequences]
        asking = [at_hub for at_hub in known if at_hub is not None and at_hub.tag.end_step(self._clock())]
        if not self._hub.may_open:
            asking = [each for each in asking if each.tag.session.is_held]
        return self._chosen(asking)

    def close(self, sequence: TargetSequence) -> None:
        if self._fallback is not None:
            self._fallback.close(sequence)
        self._drafted.pop(sequence.key, None)
        at_hub = self._at_hub.by_request.get(sequence.key)
        if at_hub is not None:
            self._hub.send(self._close(at_hub))

    def note_round(self, round_s: float, verify_s: float, num_tokens: int) -> None:
        self._deadline.note_round(round_s, verify_s)
        self._lengths.end_round(num_tokens, verify_s)
        self._cost.end_round(verify_s, self._gain, self._clock())
        self._stats.plain_tokens_per_s = self._cost.plain_tokens_per_s(self._gain.num_sequences)
        self._hub.note_plain_speed(self._stats.plain_tokens_per_s)

    def poll(self) -> None:
        with self._charging:
            self._poll()

    def _poll(self) -> None:
        self._hub.receive(0.0)
        self._stats.degraded_s = self._hub.lost_s
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        self._transport.close()

    def _is_plain_round_due(self, num_sequences: int) -> bool:
        """Whether the next round should have no drafts, to measure the plain speed, if the hub or the account asks."""
        welcome = self._transport.welcome
        is_wanted = welcome is not None and welcome.is_plain_speed_wanted
        return self._cost.is_plain_round_due(
            num_sequences, self._clock(), is_hub_lost=self._hub.is_lost, is_speed_wanted=is_wanted
        )

    # ---------------------------------------------------------------- messages from the hub

    def found(self) -> None:
        """As HubListener: open each tag from its token ids, unless the target rests. It opens them after the rest."""
        self._stats.num_reconnects = self._hub.num_found - 1
        self._at_hub.find_hub(self._transport.welcome)
        self._ask_first(list(self._at_hub.by_tag.values()))

    def dropped(self, tag: HubTag | None) -> None:  # noqa: ARG002 (of the interface)
        """As HubListener."""
        self._stats.num_stale_messages += 1

    def reopened(self, tag: HubTag, answer: Reopen) -> None:  # noqa: ARG002 (of the interface)
        """As HubListener."""
        self._hub.note_prefilled(tag, has_drafted=False)
        tag.mark_absent()  # perhaps the tag can only be opened later; until then no round waits for it
        at_hub = self._at_hub.by_tag[tag]
        self._hub.send(self._open(at_hub, self._lengths.last(at_hub.sequence)))

    def declined(self, tag: HubTag, answer: Proposal) -> None:
        """As HubListener."""
        self._hub.note_prefilled(tag, has_drafted=False)
        tag.mark_absent()
        self._hub.note_declined(answer.retry_after_s)
        self._stats.num_declined += 1

    def proposed(self, tag: HubTag, proposal: Proposal) -> None:
        """As HubListener: keep the proposal, or send the tokens that were committed meanwhile if it is useless."""
        if tag.is_opening:
            self._hub.note_room()
        self._hub.note_prefilled(tag, has_drafted=not proposal.is_hopeless)
        tag.note_proposal(proposal, self._clock())
        is_useful = tag.draft() != EMPTY_TREE
        if is_useful:
            tag.note_useful()
        if is_useful or not tag.num_unsent:
            self._note_answer(tag, proposal)
        else:
            at_hub = self._at_hub.by_tag[tag]
            self._hub.send(self._verdict(at_hub, self._lengths.last(at_hub.sequence)))

    def _note_answer(self, tag: HubTag, proposal: Proposal) -> None:
        self._hub.note_in_time()
        if self._hub.is_waiting:  # else the proposal may have come some time ago
            round_trip_s = self._clock() - tag.asked_s
            self._stats.t_c.add(max(0.0, round_trip_s - proposal.queue_s - proposal.service_s))

    # ---------------------------------------------------------------- messages to the hub

    def _num_ready(self, batch: Sequence[TargetSequence]) -> int:
        """The number of sequences that the next round may have, whether or not they were in this round's batch."""
        ready = [*batch, *(at_hub.sequence for at_hub in self._at_hub.by_tag.values())]
        return len({each.key for each in ready if each.state is SequenceState.RUNNING})

    def _chosen(self, asking: Sequence[SequenceAtHub]) -> dict[SequenceAtHub, DraftBudget]:
        """What to ask for, for sequences whose proposals are chosen together: one call of the length policy.

        A proposal for a sequence that the hub does not hold is for a later round, which those that are still being
        prefilled will share.
        """
        absent = [each.sequence for each in asking if not each.tag.session.is_held]
        num_sequences = max(self._num_sequences, len(self._at_hub)) if absent else self._num_sequences
        to_prefill = {each.key: len(each.token_ids) for each in absent}
        behind = {each.sequence.key: each.tag.num_unsent - 1 for each in asking if each.tag.has_to_catch_up}
        budgets = self._lengths.choose(
            [each.sequence for each in asking], num_sequences, to_prefill=to_prefill, behind=behind
        )
        return {at_hub: self._hub.limited(budget) for at_hub, budget in zip(asking, budgets, strict=True)}

    def _ask_first(self, opened: Sequence[SequenceAtHub]) -> None:
        """Open these tags. The policy chooses for all sequences, since they will share a round with the others."""
        if opened:
            wanted = self._chosen(list(self._at_hub.by_tag.values()))
            for at_hub in opened:
                self._hub.send(self._open(at_hub, wanted[at_hub]))

    def _new_tag(self, sequence: TargetSequence) -> SequenceAtHub:
        return self._at_hub.add(sequence, self._hub.new_tag(SequenceTokens(sequence), sequence.sampling, self._method))

    def _open(self, at_hub: SequenceAtHub, wanted: DraftBudget) -> list[TargetToHub]:
        """Returns: the messages that open the tag; none if no draft is wanted, or if it is too soon or too long.

        It is too soon during a rest, and while the hub is full and another tag asks for room.
        """
        now = self._clock()
        if not self._hub.may_open or not at_hub.tag.reopening.is_due(now) or not wanted.num_draft_tokens:
            return []
        messages = at_hub.ask(wanted, now)
        if messages:
            self._hub.note_opening(at_hub.tag)
            self._hub.note_to_prefill(at_hub.tag, len(at_hub.sequence.token_ids))
        else:
            self._hub.note_unsendable(at_hub.tag)
        return messages

    def _verdict(self, at_hub: SequenceAtHub, wanted: DraftBudget) -> list[TargetToHub]:
        """Send the tokens, and ask for a draft unless the tag or the hub is in a pause.

        A hub that knows already that no draft is wanted is told nothing. Features wait here as well.
        """
        tag, now = at_hub.tag, self._clock()
        if not wanted.num_draft_tokens and tag.session.is_idle:
            tag.fall_behind()
            return []
        if tag.end_paused_step(now) or self._hub.is_pausing:
            wanted = NO_DRAFT
        tag.fall_behind(not tag.num_wanted)
        return at_hub.ask(wanted, now)

    def _close(self, at_hub: SequenceAtHub) -> list[TargetToHub]:
        """Drop the sequence. Returns: the message for the hub, if it needs one."""
        self._at_hub.remove(at_hub)
        self._lengths.forget(at_hub.sequence)
        message = self._hub.close_tag(at_hub.tag)
        return [] if message is None else [message]
