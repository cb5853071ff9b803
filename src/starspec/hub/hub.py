"""The hub without sockets: messages in, draft steps, proposals out (StarSD Algorithm 1, lines 7-23; appendix E).

`handle` changes state and never drafts. `step` either hands over what is ready to be sent, or runs one batched
forward over all sequences that owe growth; so a reply never waits for a forward that it does not need. A sequence is
found by (link, tag) and lives from `Open` to `Close`, or until its target leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import assert_never

from starspec.config import HubConfig
from starspec.errors import ForwardAborted, OurBug, PeerProtocolError
from starspec.hub.buffer import RequestBuffer
from starspec.hub.drafter import Drafter
from starspec.hub.early_proposal import early_proposal
from starspec.hub.ledger import Ledger
from starspec.hub.prefix_sharing import prefix_salt
from starspec.hub.rounds import Rounds
from starspec.hub.sequence import DraftLimits, DraftRequest, DraftSequence
from starspec.hub.target_records import TargetRecords
from starspec.ids import LinkId, Tag, TargetId
from starspec.policy.draft_batch import TagKey
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.stats import HubStats
from starspec.tracing import Tracer
from starspec.wire.messages import (
    Close,
    Fault,
    Features,
    Goodbye,
    HubStatus,
    HubToTarget,
    Open,
    Ping,
    Proposal,
    Reopen,
    TargetToHub,
    Verdict,
)
from starspec.wire.session import TagSession

RETRY_S = 1.0  # a tag for which there is no room may be opened again after this
FAILURE_PAUSE_S = (
    1.0  # after a failed draft step no tag is taken in: a drafter that always fails is not asked in circles
)

Reply = tuple[LinkId, HubToTarget]


class DraftHub:
    """One drafter shared by many targets.

    Args:
        drafter: what makes draft tokens.
        clock: read at the end of each draft step; every `now` is a time of the same clock, in seconds.
        config: limits and policies; addresses in it are of no interest here.
        feature_window: positions whose features are kept of each tag.
        trace: records draft steps and idle gaps.
    """

    def __init__(
        self,
        drafter: Drafter,
        clock: Callable[[], float],
        config: HubConfig,
        *,
        feature_window: int = 0,
        trace: Tracer | None = None,
    ) -> None:
        self.stats = HubStats()
        self._drafter = drafter
        self._clock = clock
        self._config = config
        self._feature_window = feature_window
        self._buffer = RequestBuffer(
            drafter,
            prefill_chunk=config.prefill_chunk,
            max_batch=config.max_batch,
            is_fair=config.scheduling == "fair",
        )
        self._ledger = Ledger(self.stats, clock(), trace)
        self._sequences: dict[TagKey, DraftSequence] = {}
        self._records = TargetRecords(config, self._sequences, self._buffer)
        self._rounds = Rounds(self.stats, self._ledger, self._records, trace)
        self._outbox: list[Reply] = []
        self._paused_until_s = float("-inf")
        self._ahead_since_s = float("-inf")  # the start of the last draft step that ran ahead

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._outbox) or self._buffer.owes_growth or self._buffer.can_run_ahead

    def join(self, link_id: LinkId, target_id: TargetId, vocab_size: int) -> None:
        """Begin a target's link, without tags.

        Args:
            vocab_size: token ids below this are the target's; no others are proposed to it.
        Raises: OurBug if the link exists.
        """
        limits = DraftLimits(
            self._drafter.max_len,
            self._drafter.vocab_size,
            self._config.max_draft_tokens,
            vocab_size,
            self._feature_window,
            prefix_salt(self._config.share_prefixes, link_id) if self._drafter.can_share_prefixes else None,
        )
        self._records.join(link_id, target_id, limits)
        self._buffer.join(link_id, self._config.weights.get(target_id, 1.0))
        self.stats.num_targets = len(self._records)

    def leave(self, link_id: LinkId, now: float) -> None:
        """End a target's link and free everything of it. Idempotent."""
        if link_id in self._records:
            for key in [key for key in self._sequences if key.link_id == link_id]:
                self._drop(key)
            self._records.leave(link_id)
            self._buffer.leave(link_id)
        self._outbox = [reply for reply in self._outbox if reply[0] != link_id]
        self._take_stock(now)

    def handle(self, link_id: LinkId, message: TargetToHub, now: float) -> None:
        """Take in one message; what it calls for comes out of `step`.

        A message that the protocol forbids is answered with `Fault` and changes nothing. One of a link that has
        left is dropped: there is nobody to answer.

        Args:
            now: when it arrived; the queueing time counts from here.
        """
        if link_id not in self._records:
            return
        self._records.review(now)
        try:
            self._dispatch(link_id, message, now)
        except PeerProtocolError as error:
            self._reply(link_id, Fault(str(error)))
        self._take_stock(now)

    def step(self, now: float, is_obsolete: Callable[[], bool] | None = None) -> list[Reply]:
        """Hand over what is ready to be sent; if nothing is, draft one draft step for all sequences that owe growth; if
        none does, one draft step ahead of the verdicts that are to come.

        Args:
            is_obsolete: asked while a draft step runs ahead: whether what has arrived meanwhile ends it.
        Returns: replies, each for the link that it names; a proposal as soon as its tree is complete.
        Raises: whatever the drafter raises; call `abandon_step` then.
        """
        if not self._outbox:
            if self._buffer.owes_growth:
                self._run_step(now)
            elif self._buffer.can_run_ahead:
                self._run_step_ahead(now, is_obsolete)
        replies, self._outbox = self._outbox, []
        return replies

    def is_obsolete(self, news: Iterable[tuple[LinkId, TargetToHub]]) -> bool:
        """Whether nothing of the draft step that runs ahead is of use once these messages are handled."""
        spoken: dict[TagKey, Open | Verdict | Close] = {}
        for name, message in news:
            if isinstance(message, Open | Verdict | Close):
                key = TagKey(name, message.tag)
                if key in self._sequences and message.epoch > self._sequences[key].session.epoch:  # else it is stale
                    spoken[key] = message
        return self._buffer.is_obsolete(spoken)

    def answer_ahead(self, link_id: LinkId, verdict: Verdict, arrived_s: float, now: float) -> list[Reply]:
        """Answer a verdict that has arrived while a draft step runs ahead, if its proposal is there (ADR 22).

        The verdict is to be handled when the draft step has ended, like all that arrives, and is not answered again
        then.

        Returns: what is to be sent at once; nothing if the answer has to wait.
        """
        sequence = self._sequences.get(TagKey(link_id, verdict.tag))
        if sequence is None or sequence.early_proposal is not None or not self._records.is_served_freely(link_id):
            return []
        sequence.early_proposal = early_proposal(
            sequence,
            verdict,
            arrived_s,
            now,
            step_s=self.stats.t_s.value,
            return_s=self._records[link_id].return_s,
            begun_s=now - self._ahead_since_s if self._buffer.is_added_to(sequence, verdict) else 0.0,
        )
        return [] if sequence.early_proposal is None else [(link_id, sequence.early_proposal.proposal)]

    def abandon_step(self, now: float) -> None:
        """After `step` raised: drop the sequences of that draft step, and ask their targets to open them anew.

        Effects: for FAILURE_PAUSE_S, tags are answered with empty proposals.
        """
        self._paused_until_s = now + FAILURE_PAUSE_S
        for sequence in self._buffer.land():
            self.lose(sequence.key.link_id, sequence.key.tag, now)

    def lose(self, link_id: LinkId, tag: Tag, now: float) -> None:
        """Drop a tag by a fault of ours, and ask its target to open it anew. Nothing happens if it is not held."""
        if link_id in self._records:
            key = TagKey(link_id, tag)
            session = self._session(key)
            self._drop(key)
            if session.is_held:
                self._reply(link_id, session.send(Reopen(tag, session.epoch)))
            self._take_stock(now)

    def status(self, now: float) -> HubStatus:
        """The statistics up to now, as a copy."""
        self._ledger.refresh(now, self._buffer.weights, self._buffer.waiting_targets)
        self._records.count(self.stats, now)
        held = [len(sequence.token_ids) for sequence in self._sequences.values() if sequence.row is not None]
        self.stats.num_rows_leased, self.stats.num_rows_free = len(held), self._drafter.num_free_rows
        self.stats.row_fill = sum(held) / (len(held) * self._drafter.max_len) if held else 0.0
        return HubStatus(self._drafter.name, deepcopy(self.stats), self._records.statuses())

    def check_integrity(self) -> None:
        """Raises: OurBug unless sequences, rows, links and the request buffer agree."""
        self._buffer.check_integrity(self._sequences.values())
        for key, sequence in self._sequences.items():
            sequence.check_integrity()
            if key.link_id not in self._records or key != sequence.key:
                raise OurBug(f"sequence {key} belongs to no target")

    def _dispatch(self, link_id: LinkId, message: TargetToHub, now: float) -> None:
        match message:
            case Open():
                self._open(TagKey(link_id, message.tag), message, now)
            case Verdict():
                self._reroot(TagKey(link_id, message.tag), message, now)
            case Features():
                self._learn(TagKey(link_id, message.tag), message)
            case Close():
                key = TagKey(link_id, message.tag)
                if self._session(key).receive(message):
                    self._drop(key)
            case Ping():
                self._records[link_id].plain_tokens_per_s = message.plain_tokens_per_s
            case Goodbye() | Fault():
                pass  # of the link and not of a tag: they are dealt with before they get here
            case _:
                assert_never(message)

    def _open(self, key: TagKey, message: Open, now: float) -> None:
        session = self._session(key)
        if session.receive(message) is None:
            return
        held, is_admitted = self._sequences.get(key), self._records.ask_admission(key.link_id, message.budget, now)
        if (
            is_admitted and held is not None and held.is_continued_by(message)
        ):  # its target lost sight of us for a while
            self._continue(held, message.token_ids[len(held.token_ids) :], message.budget, now, is_reopened=True)
            return
        self._drop(key)
        if not is_admitted or len(self._sequences) >= self._config.max_tags or now < self._paused_until_s:
            self._decline(key, session, now)
            return
        record = self._records[key.link_id]
        sequence = self._sequences[key] = DraftSequence(
            key, message, session, record.limits, now, record.ahead_choice.for_another()
        )
        self._ask(sequence, message.budget, now)

    def _decline(self, key: TagKey, session: TagSession, now: float) -> None:
        """Do not hold the tag now: an empty proposal lets the target go on, and says when to ask again."""
        self.stats.num_declined += 1
        if session.wanted.num_draft_tokens:
            retry_after_s = max(RETRY_S, self._paused_until_s - now)
            declined = Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=retry_after_s)
            self._reply(key.link_id, session.send(declined))
        session.lose()

    def _continue(
        self,
        sequence: DraftSequence,
        token_ids: list[int],
        budget: DraftBudget,
        now: float,
        *,
        is_reopened: bool = False,
    ) -> None:
        """Commit more tokens to a sequence, keeping what its row knows, and owe it the next proposal."""
        proposal = sequence.in_verification
        is_judged = proposal is not None and not is_reopened and proposal.is_judged_by(token_ids, now)
        if proposal is not None and is_judged:
            self._rounds.add_verdict(sequence, proposal, len(token_ids), now)
        overtaken = None if is_reopened else sequence.request
        if overtaken is not None:
            self._rounds.add_overtaken(sequence, overtaken, now)
        if token_ids:
            self._drafter.note_commit(sequence, token_ids, sequence.reroot(token_ids))
            self._ledger.add_wasted(sequence.num_wasted)
        if not is_judged:
            sequence.in_verification = None  # its target was away, or went its own ways: no time of a round
        self._ask(sequence, budget, now, overtakes=overtaken is not None)
        if budget.num_draft_tokens and not sequence.is_rationed and sequence.room:
            self._ledger.add_outcome(is_hit=sequence.request is None)

    def _reroot(self, key: TagKey, message: Verdict, now: float) -> None:
        session = self._session(key)
        if session.receive(message) is None:
            if session.gap:
                self._drop(key)
                self._reply(key.link_id, session.send(session.gap))
        elif self._sequences[key].early_proposal is not None or self._records.ask_admission(
            key.link_id, message.budget, now
        ):
            self._continue(self._sequences[key], message.token_ids, message.budget, now)
        else:
            self._drop(key)
            self._decline(key, session, now)

    def _learn(self, key: TagKey, message: Features) -> None:
        """Features of a tag that is not held are dropped: its target is told by what answers its next message."""
        sequence = self._sequences.get(key)
        if sequence is not None:
            self._drafter.learn(sequence, message)
            self._buffer.update(sequence)

    def _ask(self, sequence: DraftSequence, budget: DraftBudget, now: float, *, overtakes: bool = False) -> None:
        """Args: now: when the request arrived. What is ready, and was not promised, leaves when a draft step that ran
        meanwhile has ended."""
        record, tag = self._records[sequence.key.link_id], sequence.key.tag
        record.owe(tag, 0)
        sequence.is_rationed = bool(budget.num_draft_tokens) and not record.may_draft(now)
        self.stats.num_rationed += sequence.is_rationed
        overtaken = sequence.request
        sequence.ask(budget, now, overtakes=overtakes)
        self._drafter.note_request(sequence)
        if sequence.request is not None:
            if overtaken is not None:  # what is left of its draft steps was waited for, and not drafted ahead
                sequence.request.num_steps = min(overtaken.num_steps, sequence.num_known)
            sequence.request.is_urgent = record.is_behind
            record.owe(tag, sequence.request.budget.num_draft_tokens)
        if budget.num_draft_tokens and not sequence.is_rationed and sequence.early_proposal is None:
            self._rounds.add_wait(sequence, now)
        self._propose_if_ready(sequence, max(now, self._clock()))
        self._buffer.update(sequence)

    def _run_step(self, now: float) -> None:
        draft_step, sequences = self._buffer.run_step(now)
        for key in draft_step.evicted:
            self._ledger.add_wasted(self._sequences[key].num_wasted)
        end = self._clock()
        self._ledger.add_step(now, end, draft_step)
        self._buffer.note_time(draft_step, end - now)
        for sequence in sequences:
            if self._propose_if_ready(sequence, end):
                self._buffer.update(sequence)
        self._buffer.land()
        self._take_stock(end)

    def _run_step_ahead(self, now: float, is_obsolete: Callable[[], bool] | None) -> None:
        self._ahead_since_s = now
        try:
            num_nodes = self._buffer.run_ahead(is_obsolete)
        except ForwardAborted:
            num_nodes = 0
        end, sequences = self._clock(), self._buffer.land()
        if num_nodes:
            self._buffer.note_time_ahead(num_nodes, end - now)
        if sequences:
            self._rounds.add_step_ahead(sequences, num_nodes, now, end)
        self._take_stock(end)

    def _propose_if_ready(self, sequence: DraftSequence, now: float) -> bool:
        if sequence.request is None:
            return False
        if sequence.early_proposal is not None:
            answered_early = sequence.early_proposal.proposal
            self._propose(
                sequence, sequence.request, answered_early, answered_early.tree, sequence.early_proposal.made_s
            )
            return True
        is_ready = sequence.is_complete or (
            sequence.ahead_choice.mode != "off"
            and sequence.is_ready(now, self.stats.t_s.value, self._records[sequence.key.link_id].return_s)
        )
        if is_ready:
            session, times = sequence.session, sequence.request.times(now)
            tree = sequence.proposal()
            proposal = Proposal.of(tree, session.tag, session.epoch, session.prefix_len, *times)
            self._propose(sequence, sequence.request, proposal, tree, now)
            self._reply(sequence.key.link_id, proposal)
        return is_ready

    def _propose(
        self, sequence: DraftSequence, request: DraftRequest, proposal: Proposal, tree: DraftTree, made_s: float
    ) -> None:
        """Account for a proposal that is handed over, or was, and for its tree."""
        sequence.session.send(proposal)
        self._records[sequence.key.link_id].owe(sequence.key.tag, 0)
        self._rounds.add_proposal(sequence, request, tree, made_s)
        sequence.settle(tree, made_s)

    def _session(self, key: TagKey) -> TagSession:
        sequence = self._sequences.get(key)
        return self._records[key.link_id].recall(key.tag) if sequence is None else sequence.session

    def _drop(self, key: TagKey) -> None:
        """Forget a sequence and free its row, if there is one."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._buffer.remove(sequence)
            self._ledger.add_wasted(sequence.num_wasted)
            self._records[key.link_id].remember(sequence.session)
            self._records[key.link_id].ahead_choice = sequence.ahead_choice
            self._records[key.link_id].owe(key.tag, 0)

    def _reply(self, link_id: LinkId, message: HubToTarget) -> None:
        self._outbox.append((link_id, message))

    def _take_stock(self, now: float) -> None:
        self.stats.num_targets = len(self._records)
        self.stats.num_tags = len(self._sequences)
        self.stats.max_batch = self._buffer.max_sequences or 0
        self.stats.num_shared_tokens = self._drafter.num_shared_tokens
        self.stats.num_waiting = self._buffer.num_waiting
        is_busy = self._buffer.owes_growth or self._buffer.can_run_ahead
        self._ledger.mark(now, is_idle=bool(self._sequences) and not is_busy)
