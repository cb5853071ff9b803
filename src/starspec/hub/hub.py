"""The hub without sockets: messages in, draft steps, proposals out (StarSD Algorithm 1, lines 7-23; appendix E).

`handle` changes state and never drafts. `step` returns the replies that are ready. Only if there are none does it run
one batched draft step, so a reply never waits for a draft step that it does not need. A sequence has the key (link,
tag). It lives from `Open` to `Close`, or until its target leaves.

These are the steps that a verdict goes through, each a method:

    receive ──> admit ──> judge ──> commit ──> ask ──> answer
                                                         │  now, if the tree has the next proposal; else after the
                                                         └─ draft steps that it misses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import assert_never

from starspec.config import HubConfig
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.ahead import AheadSteps
from starspec.hub.buffer import RequestBuffer
from starspec.hub.drafter import Drafter
from starspec.hub.links import TargetLinks
from starspec.hub.prefix_sharing import prefix_salt
from starspec.hub.recorder import StatsRecorder
from starspec.hub.scheduler import DraftScheduler
from starspec.hub.sequence import DraftLimits, DraftSequence
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
FAILURE_PAUSE_S = 1.0  # tags are declined for so long after a failed draft step, in case the drafter always fails

Reply = tuple[LinkId, HubToTarget]


class DraftHub:
    """One drafter shared by many targets.

    Args:
        drafter: makes draft tokens.
        clock: read at the end of each draft step. Every `now` is a time of the same clock, in seconds.
        config: limits and policies; its addresses are not used here.
        feature_window: positions whose features are kept of each tag.
        trace: records draft steps, idle gaps and rounds.
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
        self._scheduler = DraftScheduler(
            drafter,
            prefill_chunk=config.prefill_chunk,
            max_batch=config.max_batch,
            is_fair=config.scheduling == "fair",
        )
        self._buffer = RequestBuffer(drafter, self._scheduler)
        self._ahead = AheadSteps(drafter)
        self._sequences: dict[TagKey, DraftSequence] = {}
        self._links = TargetLinks(config, self._sequences, self._buffer, trace)
        self._recorder = StatsRecorder(self.stats, clock(), trace)
        self._outbox: list[Reply] = []
        self._paused_until_s = float("-inf")

    # ---- links

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
        self._links.join(link_id, target_id, limits)
        self._scheduler.join(link_id, self._config.weights.get(target_id, 1.0))
        self.stats.num_targets = len(self._links)

    def leave(self, link_id: LinkId, now: float) -> None:
        """End a target's link and free everything of it. Idempotent."""
        if link_id in self._links:
            for key in [key for key in self._sequences if key.link_id == link_id]:
                self._drop(key)
            self._links.leave(link_id)
            self._scheduler.leave(link_id)
        self._outbox = [reply for reply in self._outbox if reply[0] != link_id]
        self._update_stats(now)

    # ---- messages in

    def handle(self, link_id: LinkId, message: TargetToHub, now: float) -> None:
        """Handle one message. Its answer comes out of `step`.

        A message that the protocol forbids is answered with `Fault` and changes nothing. A message of a link that has
        left is dropped.

        Args:
            now: when it arrived; the queueing time counts from here.
        """
        if link_id not in self._links:
            return
        self._links.review(now)
        try:
            self._dispatch(link_id, message, now)
        except PeerProtocolError as error:
            self._reply(link_id, Fault(str(error)))
        self._update_stats(now)

    def _dispatch(self, link_id: LinkId, message: TargetToHub, now: float) -> None:
        match message:
            case Open():
                self._handle_open(TagKey(link_id, message.tag), message, now)
            case Verdict():
                self._handle_verdict(TagKey(link_id, message.tag), message, now)
            case Features():
                self._handle_features(TagKey(link_id, message.tag), message)
            case Close():
                key = TagKey(link_id, message.tag)
                if self._session(key).receive(message):
                    self._drop(key)
            case Ping():
                self._links[link_id].plain_tokens_per_s = message.plain_tokens_per_s
            case Goodbye() | Fault():
                pass  # the transport and the loop have handled them
            case _:
                assert_never(message)

    def _handle_verdict(self, key: TagKey, verdict: Verdict, now: float) -> None:
        sequence = self._receive(key, verdict)
        if sequence is None:
            return
        if not self._is_admitted(sequence, verdict.budget, now):
            self._decline(key, now)
            return
        self._judge(sequence, verdict.token_ids, now)
        self._commit(sequence, verdict.token_ids)
        self._ask(sequence, verdict.budget, now)
        self._answer(sequence, max(now, self._clock()))
        self._count_hit(sequence, verdict.budget)

    def _handle_open(self, key: TagKey, opened: Open, now: float) -> None:
        session = self._session(key)
        if session.receive(opened) is None:
            return
        sequence = self._sequences.get(key)
        is_admitted = self._links.ask_admission(key.link_id, opened.budget, now)
        if is_admitted and sequence is not None and sequence.is_continued_by(opened):
            self._commit(sequence, opened.token_ids[len(sequence.token_ids) :])
            self._ask(sequence, opened.budget, now)
            self._answer(sequence, max(now, self._clock()))
            self._count_hit(sequence, opened.budget)
            return
        self._drop(key)
        if not is_admitted or len(self._sequences) >= self._config.max_tags or now < self._paused_until_s:
            self._decline(key, now)
            return
        link = self._links[key.link_id]
        sequence = DraftSequence(key, opened, session, link.limits, now, link.ahead_choice.for_another())
        self._sequences[key] = sequence
        self._ask(sequence, opened.budget, now)
        self._answer(sequence, max(now, self._clock()))

    def _handle_features(self, key: TagKey, message: Features) -> None:
        """Features of a tag that is not held are dropped: the answer to its next message tells its target."""
        sequence = self._sequences.get(key)
        if sequence is not None:
            self._drafter.learn(sequence, message)
            self._queue(sequence)

    # ---- the steps that a verdict goes through

    def _receive(self, key: TagKey, verdict: Verdict) -> DraftSequence | None:
        """The sequence of a verdict. None if the verdict is stale, or if one before it is missing.

        Effects: after a missing verdict the tag is dropped, and its target is asked to open it again.
        """
        session = self._session(key)
        if session.receive(verdict) is not None:
            return self._sequences[key]
        if session.gap:
            self._drop(key)
            self._reply(key.link_id, session.send(session.gap))
        return None

    def _is_admitted(self, sequence: DraftSequence, budget: DraftBudget, now: float) -> bool:
        """Whether the target may get the next proposal; always True if this proposal was sent early."""
        is_answered = sequence.round.early_proposal is not None
        return is_answered or self._links.ask_admission(sequence.key.link_id, budget, now)

    def _judge(self, sequence: DraftSequence, token_ids: list[int], now: float) -> None:
        """Find out which proposal the verdict answers, and learn from that."""
        key = sequence.key
        self._links[key.link_id].add_verdict(key.tag, sequence.judge(token_ids, now), now)

    def _commit(self, sequence: DraftSequence, token_ids: list[int]) -> None:
        """Append the tokens, and keep the parts of tree and row that are still right."""
        if token_ids:
            self._drafter.note_commit(sequence, token_ids, sequence.commit(token_ids))
            self._recorder.add_wasted(sequence.num_wasted)

    def _ask(self, sequence: DraftSequence, budget: DraftBudget, now: float) -> None:
        """Note that the target wants the next proposal, within its rate limit.

        Args:
            now: when the request arrived.
        """
        link, tag, wants_drafts = self._links[sequence.key.link_id], sequence.key.tag, budget.num_draft_tokens > 0
        link.reserve(tag, 0)
        is_rate_limited = wants_drafts and not link.may_draft(now)
        self.stats.num_rationed += is_rate_limited
        sequence.ask(budget, now, is_rate_limited=is_rate_limited, is_urgent=link.is_behind)
        self._drafter.note_request(sequence)
        link.reserve(tag, sequence.round.budget.num_draft_tokens)
        if wants_drafts and not is_rate_limited and sequence.round.early_proposal is None:
            self._ahead.charge_wait(sequence, now)

    def _answer(self, sequence: DraftSequence, now: float) -> None:
        """Send a proposal if the tree already has it; else let the sequence wait for draft steps."""
        self._propose_if_ready(sequence, now)
        self._queue(sequence)

    def _queue(self, sequence: DraftSequence) -> None:
        """Let the sequence wait for a draft step if it owes a proposal, or for one ahead if it is in verification."""
        self._buffer.update(sequence)
        self._ahead.update(sequence)

    def _count_hit(self, sequence: DraftSequence, budget: DraftBudget) -> None:
        """A hit: the proposal was there when the target asked for it."""
        if budget.num_draft_tokens and not sequence.is_rate_limited and sequence.room:
            self._recorder.add_hit_or_miss(is_hit=sequence.round.request is None)

    # ---- early answers, while a draft step runs ahead (ADR 22)

    def is_obsolete(self, arrived: Iterable[tuple[LinkId, TargetToHub]]) -> bool:
        """Whether the draft step that runs ahead is useless once these messages are handled."""
        newest: dict[TagKey, Open | Verdict | Close] = {}
        for link_id, message in arrived:
            if isinstance(message, Open | Verdict | Close):
                key = TagKey(link_id, message.tag)
                if key in self._sequences and message.epoch > self._sequences[key].session.epoch:  # else it is stale
                    newest[key] = message
        return self._ahead.is_obsolete(newest)

    def answer_early(self, link_id: LinkId, verdict: Verdict, arrived_s: float, now: float) -> list[Reply]:
        """Answer a verdict that arrives while a draft step runs ahead, if the tree has the next proposal already.

        When the draft step has ended, call `handle` with the verdict, as with all messages. It is not answered again.

        Returns: the replies to send at once; none if the answer has to wait.
        """
        sequence = self._sequences.get(TagKey(link_id, verdict.tag))
        if sequence is None or not self._links.is_served_freely(link_id):
            return []
        early = sequence.answer_early(
            verdict,
            arrived_s,
            now,
            step_s=self.stats.t_s.value,
            return_s=self._links[link_id].return_s,
            running_s=self._ahead.running_s(sequence, verdict, now),
        )
        return [] if early is None else [(link_id, early.proposal)]

    # ---- draft steps and proposals out

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._outbox) or self._buffer.has_waiting or self._ahead.can_run

    def step(self, now: float, is_obsolete: Callable[[], bool] | None = None) -> list[Reply]:
        """Return the replies that are ready. If there are none, run one draft step.

        The draft step is for the sequences that wait. If none waits, it runs ahead of the verdicts that are to come.

        Args:
            is_obsolete: called while a draft step runs ahead; returns whether to abort it.
        Returns: replies, each with its link; a proposal as soon as its tree is complete.
        Raises: whatever the drafter raises; call `abandon_step` then.
        """
        if not self._outbox:
            if self._buffer.has_waiting:
                self._run_step(now)
            elif self._ahead.can_run:
                self._run_step_ahead(now, is_obsolete)
        replies, self._outbox = self._outbox, []
        return replies

    def _run_step(self, now: float) -> None:
        draft_step, sequences, num_wasted = self._buffer.run_step(now)
        end_s = self._clock()
        self._recorder.add_wasted(num_wasted)
        self._recorder.add_step(now, end_s, draft_step)
        self._scheduler.note_time(draft_step, end_s - now)
        if not draft_step.has_prefill:
            self._ahead.note_time(draft_step.num_tokens, end_s - now)
        for sequence in sequences:
            if self._propose_if_ready(sequence, end_s):
                self._queue(sequence)
        self._buffer.end_step()
        self._update_stats(end_s)

    def _run_step_ahead(self, now: float, is_obsolete: Callable[[], bool] | None) -> None:
        num_nodes = self._ahead.run(now, is_obsolete)
        end_s = self._clock()
        num_sequences = self._ahead.end(num_nodes, end_s)
        if num_sequences:
            self._recorder.add_step_ahead(now, end_s, num_sequences, num_nodes)
        self._update_stats(end_s)

    def _propose_if_ready(self, sequence: DraftSequence, now: float) -> bool:
        request, early = sequence.round.request, sequence.round.early_proposal
        if request is None:
            return False
        if early is not None:  # ADR 22: it was sent before its verdict was handled
            self._note_proposal(sequence, early.proposal, early.proposal.tree, early.made_s)
            return True
        if not sequence.is_ready(now, self.stats.t_s.value, self._links[sequence.key.link_id].return_s):
            return False
        session, tree = sequence.session, sequence.proposal()
        proposal = Proposal.of(tree, session.tag, session.epoch, session.prefix_len, *request.times(now))
        self._note_proposal(sequence, proposal, tree, now)
        self._reply(sequence.key.link_id, proposal)
        return True

    def _note_proposal(self, sequence: DraftSequence, proposal: Proposal, tree: DraftTree, made_s: float) -> None:
        """A proposal is sent, or was sent early."""
        sequence.session.send(proposal)
        made = sequence.mark_proposed(tree, made_s)
        self._recorder.add_proposal(made)
        self._links[sequence.key.link_id].add_proposal(made)

    # ---- failures

    def abandon_step(self, now: float) -> None:
        """After `step` raised: drop the sequences of that draft step, and ask their targets to open them again.

        Effects: for FAILURE_PAUSE_S, tags are answered with empty proposals.
        """
        self._paused_until_s = now + FAILURE_PAUSE_S
        for sequence in [*self._buffer.end_step(), *self._ahead.abandon()]:
            self.fail_tag(sequence.key.link_id, sequence.key.tag, now)

    def fail_tag(self, link_id: LinkId, tag: Tag, now: float) -> None:
        """Drop a tag after a fault of the hub, and ask its target to open it again. Does nothing if it is not held."""
        if link_id in self._links:
            key = TagKey(link_id, tag)
            session = self._session(key)
            self._drop(key)
            if session.is_held:
                self._reply(link_id, session.send(Reopen(tag, session.epoch)))
            self._update_stats(now)

    def _decline(self, key: TagKey, now: float) -> None:
        """Drop the tag for now. An empty proposal lets the target go on, and says when to ask again."""
        session = self._session(key)
        self._drop(key)
        self.stats.num_declined += 1
        if session.wanted.num_draft_tokens:
            retry_after_s = max(RETRY_S, self._paused_until_s - now)
            declined = Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=retry_after_s)
            self._reply(key.link_id, session.send(declined))
        session.lose()

    def _drop(self, key: TagKey) -> None:
        """Forget a sequence and free its row, if there is one."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._recorder.add_wasted(self._buffer.remove(sequence))
            self._ahead.remove(sequence)
            self._links[key.link_id].end_sequence(sequence)

    # ---- state

    def _session(self, key: TagKey) -> TagSession:
        """The protocol state of a tag, with or without a sequence."""
        sequence = self._sequences.get(key)
        return self._links[key.link_id].session(key.tag) if sequence is None else sequence.session

    def _reply(self, link_id: LinkId, message: HubToTarget) -> None:
        self._outbox.append((link_id, message))

    def _update_stats(self, now: float) -> None:
        self.stats.num_targets = len(self._links)
        self.stats.num_tags = len(self._sequences)
        self.stats.max_batch = self._scheduler.max_sequences or 0
        self.stats.num_shared_tokens = self._drafter.num_shared_tokens
        self.stats.num_waiting = self._buffer.num_waiting
        is_busy = self._buffer.has_waiting or self._ahead.can_run
        self._recorder.mark(now, is_idle=bool(self._sequences) and not is_busy)

    def status(self, now: float) -> HubStatus:
        """The statistics up to now, as a copy."""
        self._recorder.refresh(now, self._scheduler.weights, self._buffer.waiting_targets)
        self._links.report(self.stats, now)
        held = [len(sequence.token_ids) for sequence in self._sequences.values() if sequence.row is not None]
        self.stats.num_rows_leased, self.stats.num_rows_free = len(held), self._drafter.num_free_rows
        self.stats.row_fill = sum(held) / (len(held) * self._drafter.max_len) if held else 0.0
        return HubStatus(self._drafter.name, deepcopy(self.stats), self._links.target_stats())

    def check_integrity(self) -> None:
        """Raises: OurBug unless sequences, rows, links and the request buffer agree."""
        self._buffer.check_integrity(self._sequences.values())
        self._ahead.check_integrity()
        for key, sequence in self._sequences.items():
            sequence.check_integrity()
            if key.link_id not in self._links or key != sequence.key:
                raise OurBug(f"sequence {key} belongs to no target")
