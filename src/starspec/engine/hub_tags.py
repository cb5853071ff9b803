"""What our engine tells its hub of its sequences, and what it does when the hub answers.

Each sequence that is to be drafted for has a tag at the hub. A round's verdicts go to the hub together, each with the
budget of the next draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from starspec.client.connection import HubConnection
from starspec.client.tag import HubTag
from starspec.config import SampleMethod
from starspec.engine.draft_lengths import DraftLengths
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.engine.sequence_at_hub import SequenceAtHub, SequencesAtHub, SequenceTokens
from starspec.ids import RequestKey
from starspec.policy.deadline import Deadline
from starspec.policy.hub_account import HubAccount
from starspec.policy.length.costs import Costs
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import EMPTY_TREE
from starspec.stats import TargetStats
from starspec.wire.messages import Proposal, Reopen, TargetToHub
from starspec.wire.transports.base import TargetTransport


class HubTags:
    """The tags of a target's sequences. Implements HubListener.

    Args:
        deadline: of the connection.
        policy: chooses lengths.
        costs: of the target's steps, by which they are chosen.
        account: as HubConnection.
        method: as RemoteDrafts.
    """

    def __init__(
        self,
        transport: TargetTransport,
        deadline: Deadline,
        policy: LengthPolicy,
        costs: Costs,
        stats: TargetStats,
        clock: Callable[[], float],
        *,
        account: HubAccount | None,
        method: SampleMethod,
    ) -> None:
        self._transport = transport
        self._stats = stats
        self._clock = clock
        self._method = method
        self._num_sequences = 0  # in the next round: those that were ready after the last round, and those opened since
        self.at_hub = SequencesAtHub()
        self.hub = HubConnection(transport, deadline, self, clock, account)
        self.lengths = DraftLengths(policy, costs, lambda: self.hub.record.lessons, stats.lengths, clock)

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        """Give tags to those of these sequences that may be drafted for, and ask for their first drafts."""
        self._num_sequences += len(sequences)
        opened = [self._new_tag(each) for each in sequences if each.spec.num_draft_tokens != 0]
        self._ask_first(opened)  # after all are there: they all count

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        """As Drafts. Effects: sends them to a hub that holds the tag."""
        at_hub = self.at_hub.by_request.get(sequence.key)
        if at_hub is None:
            return
        at_hub.add_features(start, features)
        if at_hub.tag.session.is_held and not self.hub.is_lost:
            self.hub.send(at_hub.frames())

    def report(
        self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput], drafted: Mapping[RequestKey, int]
    ) -> None:
        """Tell the hub what a round has committed, and ask for the next drafts. Sequences that finished are dropped.

        Args:
            drafted: steps that were requested, of each sequence that had a draft of the hub in this round.
        """
        self._num_sequences = self._num_ready(batch)
        messages: list[TargetToHub] = []
        self.hub.end_paused_step()
        running = []
        for sequence, added in zip(batch, emitted, strict=True):
            at_hub = self.at_hub.by_request.get(sequence.key)
            if at_hub is None:
                continue
            self.lengths.learn(sequence, added, drafted.get(sequence.key, 0))
            if added.num_right is not None:
                at_hub.tag.retract(len(sequence.token_ids) - len(added.token_ids) + added.num_right)
            if added.finish is None and not at_hub.is_ahead(added):
                running.append(sequence)
        budgets = self._budgets_of(running)
        for sequence, added in zip(batch, emitted, strict=True):
            at_hub = self.at_hub.by_request.get(sequence.key)
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
        self.hub.send(messages)

    def _budgets_of(self, sequences: Sequence[TargetSequence]) -> dict[SequenceAtHub, DraftBudget]:
        """The round's choice of lengths, for all sequences about which the hub may be told something now."""
        known = [self.at_hub.by_request.get(each.key) for each in sequences]
        asking = [at_hub for at_hub in known if at_hub is not None and at_hub.tag.end_step(self._clock())]
        if not self.hub.may_open:
            asking = [each for each in asking if each.tag.session.is_held]
        return self._chosen(asking)

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        """As Drafts. Effects: tells the hub what is presumed, as if it were committed, and asks for the next drafts."""
        if self.hub.is_lost or self.hub.is_pausing:
            return
        known = [self.at_hub.by_request.get(each.key) for each in sequences]
        asking = [each for each in known if each is not None and each.may_go_ahead]
        messages: list[TargetToHub] = []
        for at_hub, budget in self._chosen(asking).items():
            if budget.num_draft_tokens:
                messages += at_hub.ask(budget, self._clock())
        self.hub.send(messages)

    def retract(self, sequence: TargetSequence) -> None:
        """All tokens behind the committed ones that the hub was told are not the target's, or not yet."""
        at_hub = self.at_hub.by_request.get(sequence.key)
        if at_hub is not None:
            at_hub.tag.retract(len(sequence.token_ids))

    def close(self, sequence: TargetSequence) -> None:
        """The sequence has ended without a round. Effects: tells the hub."""
        at_hub = self.at_hub.by_request.get(sequence.key)
        if at_hub is not None:
            self.hub.send(self._close(at_hub))

    # ---------------------------------------------------------------- messages from the hub

    def found(self) -> None:
        """As HubListener: open each tag from its token ids, unless the target rests. It opens them after the rest."""
        self._stats.num_reconnects = self.hub.num_found - 1
        self.at_hub.find_hub(self._transport.welcome)
        self._ask_first(list(self.at_hub.by_tag.values()))

    def dropped(self, tag: HubTag | None) -> None:  # noqa: ARG002 (of the interface)
        """As HubListener."""
        self._stats.num_stale_messages += 1

    def reopened(self, tag: HubTag, answer: Reopen) -> None:  # noqa: ARG002 (of the interface)
        """As HubListener."""
        self.hub.note_prefilled(tag, has_drafted=False)
        tag.mark_absent()  # perhaps the tag can only be opened later; until then no round waits for it
        at_hub = self.at_hub.by_tag[tag]
        self.hub.send(self._open(at_hub, self.lengths.last(at_hub.sequence)))

    def declined(self, tag: HubTag, answer: Proposal) -> None:
        """As HubListener."""
        self.hub.note_prefilled(tag, has_drafted=False)
        tag.mark_absent()
        self.hub.note_declined(answer.retry_after_s)
        self._stats.num_declined += 1

    def proposed(self, tag: HubTag, proposal: Proposal) -> None:
        """As HubListener: keep the proposal, or send the tokens that were committed meanwhile if it is useless."""
        if tag.is_opening:
            self.hub.note_room()
        self.hub.note_prefilled(tag, has_drafted=not proposal.is_hopeless)
        self._note_drafted(tag, proposal)
        tag.note_proposal(proposal, self._clock())
        is_useful = tag.draft() != EMPTY_TREE
        if is_useful:
            tag.note_useful()
        if is_useful or not tag.num_unsent:
            self._note_answer(tag, proposal)
        else:
            at_hub = self.at_hub.by_tag[tag]
            self.hub.send(self._verdict(at_hub, self.lengths.last(at_hub.sequence)))

    def _note_drafted(self, tag: HubTag, proposal: Proposal) -> None:
        """Learn how long drafting takes."""
        if proposal.token_ids and tag.is_awaited and not tag.is_opening:
            seconds = self._clock() - tag.asked_s
            is_ahead, windows = bool(self.at_hub.by_tag[tag].sequence.flights), self.hub.record.lessons.windows
            windows.add_draft(len(proposal.token_ids), seconds, proposal.service_s, is_ahead=is_ahead)

    def _note_answer(self, tag: HubTag, proposal: Proposal) -> None:
        self.hub.note_in_time()
        if self.hub.is_waiting:  # else the proposal may have come some time ago
            round_trip_s = self._clock() - tag.asked_s
            self._stats.t_c.add(max(0.0, round_trip_s - proposal.queue_s - proposal.service_s))

    # ---------------------------------------------------------------- messages to the hub

    def _num_ready(self, batch: Sequence[TargetSequence]) -> int:
        """The number of sequences that the next round may have, whether or not they were in this round's batch."""
        ready = [*batch, *(at_hub.sequence for at_hub in self.at_hub.by_tag.values())]
        return len({each.key for each in ready if each.state is SequenceState.RUNNING})

    def _chosen(self, asking: Sequence[SequenceAtHub]) -> dict[SequenceAtHub, DraftBudget]:
        """What to ask for, for sequences whose proposals are chosen together: one call of the length policy.

        A proposal for a sequence that the hub does not hold is for a later round, which those that are still being
        prefilled will share.
        """
        absent = [each.sequence for each in asking if not each.tag.session.is_held]
        num_sequences = max(self._num_sequences, len(self.at_hub)) if absent else self._num_sequences
        to_prefill = {each.key: len(each.token_ids) for each in absent}
        behind = {each.sequence.key: each.tag.num_unsent - 1 for each in asking if each.tag.has_to_catch_up}
        budgets = self.lengths.choose(
            [each.sequence for each in asking],
            num_sequences,
            max_draft_tokens=self.hub.max_draft_tokens,
            to_prefill=to_prefill,
            behind=behind,
        )
        return dict(zip(asking, budgets, strict=True))

    def _ask_first(self, opened: Sequence[SequenceAtHub]) -> None:
        """Open these tags. The policy chooses for all sequences, since they will share a round with the others."""
        if opened:
            wanted = self._chosen(list(self.at_hub.by_tag.values()))
            for at_hub in opened:
                self.hub.send(self._open(at_hub, wanted[at_hub]))

    def _new_tag(self, sequence: TargetSequence) -> SequenceAtHub:
        tokens = SequenceTokens(sequence, self.at_hub)
        return self.at_hub.add(sequence, self.hub.new_tag(tokens, sequence.sampling, self._method))

    def _open(self, at_hub: SequenceAtHub, wanted: DraftBudget) -> list[TargetToHub]:
        """Returns: the messages that open the tag; none if no draft is wanted, or if it is too soon or too long.

        It is too soon during a rest, and while the hub is full and another tag asks for room.
        """
        now = self._clock()
        if not self.hub.may_open or not at_hub.tag.reopening.is_due(now) or not wanted.num_draft_tokens:
            return []
        messages = at_hub.ask(wanted, now)
        if messages:
            self.hub.note_opening(at_hub.tag)
            self.hub.note_to_prefill(at_hub.tag, len(at_hub.sequence.token_ids))
        else:
            self.hub.note_unsendable(at_hub.tag)
        return messages

    def _verdict(self, at_hub: SequenceAtHub, wanted: DraftBudget) -> list[TargetToHub]:
        """Send the tokens, and ask for a draft unless the tag or the hub is in a pause.

        A hub that knows already that no draft is wanted is told nothing. Features wait here as well.
        """
        tag, now = at_hub.tag, self._clock()
        if not wanted.num_draft_tokens and tag.session.is_idle:
            tag.fall_behind()
            return []
        if tag.end_paused_step(now) or self.hub.is_pausing:
            wanted = NO_DRAFT
        tag.fall_behind(not tag.num_wanted)
        return at_hub.ask(wanted, now)

    def _close(self, at_hub: SequenceAtHub) -> list[TargetToHub]:
        """Drop the sequence. Returns: the message for the hub, if it needs one."""
        self.at_hub.remove(at_hub)
        self.lengths.forget(at_hub.sequence)
        message = self.hub.close_tag(at_hub.tag)
        return [] if message is None else [message]
