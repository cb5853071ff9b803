"""The hub without sockets: messages in, draft steps, proposals out (StarSD Algorithm 1, lines 7-23; appendix E).

`handle` changes state and never drafts. `step` returns the replies that are ready. Only if there are none does it run
one batched draft step, so a reply never waits for a draft step that it does not need. A sequence has the key (link,
tag). It lives from `Open` to `Close`, or until its target leaves.

These are the steps that a verdict goes through. From `judge` on they are in `proposals.py`:

    receive ──> admit ──> judge ──> commit ──> request ──> answer
                                                             │  now, if the tree has the next proposal; else after
                                                             └─ the draft steps that it misses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import assert_never

from starspec.config import HubConfig
from starspec.errors import OurBug, PeerProtocolError
from starspec.hub.buffer import RequestBuffer
from starspec.hub.committed import DraftLimits
from starspec.hub.drafter import Drafter
from starspec.hub.prefix_sharing import prefix_salt
from starspec.hub.proposals import ProposalMaker
from starspec.hub.recorder import StatsRecorder
from starspec.hub.scheduler import DraftScheduler
from starspec.hub.sequence import DraftSequence
from starspec.hub.targets import ConnectedTargets
from starspec.ids import LinkId, Tag, TargetId
from starspec.policy.backoff import DraftPause
from starspec.policy.draft_batch import TagKey
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget
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
        self._config = config
        self._feature_window = feature_window
        self._scheduler = DraftScheduler(
            drafter,
            prefill_chunk=config.prefill_chunk,
            max_batch=config.max_batch,
            is_fair=config.scheduling == "fair",
        )
        self._buffer = RequestBuffer(drafter, self._scheduler)
        self._sequences: dict[TagKey, DraftSequence] = {}
        self._links = ConnectedTargets(config, self._sequences, self._buffer, drafter.max_held_tokens, clock, trace)
        self._recorder = StatsRecorder(self.stats, clock(), trace)
        self._proposals = ProposalMaker(drafter, self._buffer, self._links, self.stats, self._recorder, clock)
        self._outbox: list[Reply] = []
        self._pause = DraftPause()

    # ---- links

    def join(self, link_id: LinkId, target_id: TargetId, vocab_size: int) -> None:
        """Begin a target's link, without tags.

        Args:
            vocab_size: token ids below this are the target's; no others are proposed to it.
        Raises: OurBug if the link exists.
        """
        drafter, config = self._drafter, self._config
        salt = prefix_salt(config.share_prefixes, link_id) if drafter.can_share_prefixes else None
        window, max_draft_tokens = self._feature_window, config.max_draft_tokens
        limits = DraftLimits(drafter.max_len, drafter.vocab_size, max_draft_tokens, vocab_size, window, salt)
        self._links.join(link_id, target_id, limits)
        self._scheduler.join(link_id, config.weights.get(target_id, 1.0))

    def leave(self, link_id: LinkId, now: float) -> None:
        """End a target's link and free everything of it. Idempotent."""
        if link_id in self._links:
            for key in [key for key in self._sequences if key.link_id == link_id]:
                self._drop(key)
            self._links.leave(link_id)
            self._scheduler.leave(link_id)
        self._outbox = [reply for reply in self._outbox if reply[0] != link_id]
        self._note_idleness(now)

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
        self._note_idleness(now)

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
                self._links[link_id].note_plain_speed(message.plain_tokens_per_s)
            case Goodbye() | Fault():
                pass  # the transport and the loop have handled them
            case _:
                assert_never(message)

    def _handle_verdict(self, key: TagKey, verdict: Verdict, now: float) -> None:
        sequence = self._receive(key, verdict)
        if sequence is None:
            return
        budget = sequence.session.wanted  # that of the verdict
        num_new = len(verdict.token_ids)
        has_place = num_new <= MAX_FORWARDED or self._make_place(key.link_id, 0, num_new, now)
        if not has_place or not self._is_admitted(sequence, budget, now):
            self._decline(key, now)
            return
        self._proposals.judge(sequence, verdict.token_ids, now)
        self._reply_if_ready(sequence, self._proposals.go_on(sequence, verdict.token_ids, budget, now))

    def _handle_open(self, key: TagKey, opened: Open, now: float) -> None:
        session = self._session(key)
        if session.receive(opened) is None:
            return
        if opened.num_tokens >= self._drafter.max_len:
            self._drop(key)
            self._answer_long(key.link_id, session)
            return
        sequence = self._sequences.get(key)
        is_admitted = self._links.ask_admission(key.link_id, opened.budget, now)
        if is_admitted and sequence is not None and sequence.is_continued_by(opened):
            added = opened.token_ids[len(sequence.token_ids) :]
            self._reply_if_ready(sequence, self._proposals.go_on(sequence, added, opened.budget, now))
            return
        self._drop(key)
        num_new = len(opened.token_ids)
        if not is_admitted or self._pause.is_pausing(now) or not self._make_place(key.link_id, 1, num_new, now):
            self._decline(key, now)
            return
        link = self._links[key.link_id]
        choice = link.begin_sequence(num_new)
        sequence = DraftSequence(key, opened, session, link.limits, now, choice, link.law_timer)
        self._sequences[key] = sequence
        self._reply_if_ready(sequence, self._proposals.answer(sequence, opened.budget, now))

    def _make_place(self, link_id: LinkId, num_tags: int, num_tokens: int, now: float) -> bool:
        """Whether the target gets a place for so much more. Effects: others may lose tags for it."""
        while True:
            is_full = len(self._sequences) + num_tags > self._config.max_tags
            if not (is_full or self._links.holds_too_much(num_tokens)):
                return True
            victim = self._links.tag_to_drop(link_id, None if is_full else num_tokens)
            if victim is None:
                return False
            self.fail_tag(victim.link_id, victim.tag, now)

    def _handle_features(self, key: TagKey, message: Features) -> None:
        """Features of a tag that is not held are dropped: the answer to its next message tells its target."""
        sequence = self._sequences.get(key)
        if sequence is not None:
            self._drafter.learn(sequence, message)
            self._proposals.update(sequence)

    # ---- the steps that a verdict goes through

    def _receive(self, key: TagKey, verdict: Verdict) -> DraftSequence | None:
        """The sequence of a verdict. None if it is stale, one before it is missing, or the context is too long.

        Effects: after a missing verdict the tag is dropped, and its target is asked to open it again.
        """
        session = self._session(key)
        if session.receive(verdict) is not None:
            sequence = self._sequences.get(key)
            if sequence is None:
                self._answer_long(key.link_id, session)
            return sequence
        if session.gap:
            self._drop(key)
            self._reply(key.link_id, session.send(session.gap))
        return None

    def _answer_long(self, link_id: LinkId, session: TagSession) -> None:
        """Answer for a tag that is longer than the draft's context: only its protocol state is held, not its tokens."""
        if session.wanted.num_draft_tokens:
            self.stats.num_proposals += 1
            self._reply(link_id, session.send(Proposal(session.tag, session.epoch, session.prefix_len, [])))

    def _is_admitted(self, sequence: DraftSequence, budget: DraftBudget, now: float) -> bool:
        """Whether the target may get the next proposal; always True if this proposal was sent early."""
        is_answered = sequence.round.early_proposal is not None
        return is_answered or self._links.ask_admission(sequence.key.link_id, budget, now)

    # ---- early answers, while a draft step runs ahead (ADR 22)

    def is_obsolete(self, arrived: Iterable[tuple[LinkId, TargetToHub]]) -> bool:
        """Whether the draft step that runs ahead is useless once these messages are handled."""
        return self._proposals.is_obsolete(arrived)

    def answer_early(self, link_id: LinkId, verdict: Verdict, arrived_s: float, now: float) -> list[Reply]:
        """Answer a verdict that arrives while a draft step runs ahead, if the tree has the next proposal already.

        When the draft step has ended, call `handle` with the verdict, as with all messages. It is not answered again.

        Returns: the replies to send at once; none if the answer has to wait.
        """
        sequence = self._sequences.get(TagKey(link_id, verdict.tag))
        if sequence is None or not self._links.is_served_freely(link_id):
            return []
        proposal = self._proposals.answer_early(sequence, verdict, arrived_s, now)
        return [] if proposal is None else [(link_id, proposal)]

    # ---- draft steps and proposals out

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._outbox) or self._proposals.can_run_step

    def step(self, now: float, is_obsolete: Callable[[], bool] | None = None) -> list[Reply]:
        """Return the replies that are ready. If there are none, run one draft step.

        The draft step is for the sequences that wait. If none waits, it runs ahead of the verdicts that are to come.

        Args:
            is_obsolete: called while a draft step runs ahead; returns whether to abort it.
        Returns: replies, each with its link; a proposal as soon as its tree is complete.
        Raises: whatever the drafter raises; call `abandon_step` then.
        """
        if not self._outbox and self._proposals.can_run_step:
            for sequence in self._proposals.not_to_grow(now):
                self._reply_if_ready(sequence, self._proposals.propose_if_ready(sequence, now))
            grown, end_s = self._proposals.run_step(now, is_obsolete)
            for sequence in grown:
                self._reply_if_ready(sequence, self._proposals.propose_if_ready(sequence, end_s))
            self._proposals.end_step()
            self._note_idleness(end_s)
        replies, self._outbox = self._outbox, []
        return replies

    # ---- failures

    def abandon_step(self, now: float, failed: Sequence[DraftSequence] = ()) -> None:
        """After `step` raised: drop the sequences of that draft step, and ask their targets to open them again.

        Args:
            failed: drop these only, as the others can go on; () = all.
        Effects: after one that failed for all, tags are answered with empty proposals for a while.
        """
        ended = self._proposals.end_step()
        if not failed:
            self._pause.note_failed_step(now)
        for sequence in failed or ended:
            self.fail_tag(sequence.key.link_id, sequence.key.tag, now)

    def fail_tag(self, link_id: LinkId, tag: Tag, now: float) -> None:
        """Drop a tag that is not at fault, and ask its target to open it again. Does nothing if it is not held."""
        if link_id in self._links:
            key = TagKey(link_id, tag)
            session = self._session(key)
            self._drop(key)
            if session.is_held:
                self._reply(link_id, session.send(Reopen(tag, session.epoch)))
            self._note_idleness(now)

    def _decline(self, key: TagKey, now: float) -> None:
        """Drop the tag for now. An empty proposal lets the target go on, and says when to ask again."""
        session = self._session(key)
        self._drop(key)
        self.stats.num_declined += 1
        if session.wanted.num_draft_tokens:
            retry_after_s = self._pause.retry_after_s(now)
            declined = Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=retry_after_s)
            self._reply(key.link_id, session.send(declined))
        session.lose()

    def _drop(self, key: TagKey) -> None:
        """Forget a sequence and free its row, if there is one."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self._proposals.remove(sequence)
            self._links[key.link_id].end_sequence(sequence)

    # ---- state

    def _session(self, key: TagKey) -> TagSession:
        """The protocol state of a tag, with or without a sequence."""
        sequence = self._sequences.get(key)
        return self._links[key.link_id].session(key.tag) if sequence is None else sequence.session

    def _reply(self, link_id: LinkId, message: HubToTarget) -> None:
        self._outbox.append((link_id, message))

    def _reply_if_ready(self, sequence: DraftSequence, proposal: Proposal | None) -> None:
        if proposal is not None:
            self._reply(sequence.key.link_id, proposal)

    def _note_idleness(self, now: float) -> None:
        self._recorder.mark(now, is_idle=bool(self._sequences) and not self._proposals.can_run_step)

    def status(self, now: float) -> HubStatus:
        """The statistics up to now, as a copy."""
        self._recorder.refresh(now, self._scheduler.weights, self._buffer.waiting_targets)
        self._links.report(self.stats, now)
        self.stats.num_targets, self.stats.num_tags = len(self._links), len(self._sequences)
        self.stats.max_batch = self._scheduler.max_sequences or 0
        self.stats.num_shared_tokens = self._drafter.num_shared_tokens
        self.stats.num_waiting = self._buffer.num_waiting
        held = [len(sequence.token_ids) for sequence in self._sequences.values() if sequence.row is not None]
        self.stats.num_rows_leased, self.stats.num_rows_free = len(held), self._drafter.num_free_rows
        self.stats.row_fill = sum(held) / (len(held) * self._drafter.max_len) if held else 0.0
        return HubStatus(self._drafter.name, deepcopy(self.stats), self._links.target_stats())

    def check_integrity(self) -> None:
        """Raises: OurBug unless sequences, rows, links and the request buffer agree."""
        self._proposals.check_integrity(self._sequences.values())
        self._links.check_integrity()
        for key, sequence in self._sequences.items():
            sequence.check_integrity()
            if key != sequence.key:
                raise OurBug(f"sequence {sequence.key} is held as {key}")
