"""The hub without sockets: messages in, draft layers, proposals out (StarSD Algorithm 1, lines 7-23; appendix E).

`handle` changes state and never drafts. `step` either hands over what is ready to be sent, or runs one batched
forward over all sessions that owe growth; so a reply never waits for a forward that it does not need. A session is
found by (target's session, tag) and lives from `Open` to `Close`, or until its target leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import assert_never

from starspec.config import HubConfig
from starspec.errors import ForwardGivenUp, OurBug, PeerProtocolError
from starspec.hub.buffer import RequestBuffer
from starspec.hub.drafter import Drafter
from starspec.hub.early_proposal import promise
from starspec.hub.ledger import Ledger
from starspec.hub.prefix_sharing import prefix_salt
from starspec.hub.rounds import Rounds
from starspec.hub.sequence import DraftLimits, DraftRequest, DraftSession
from starspec.hub.target_records import Spokes
from starspec.ids import SessionId, Tag, TargetId
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
FAILURE_PAUSE_S = 1.0  # after a failed layer no tag is taken in: a drafter that always fails is not asked in circles

Reply = tuple[SessionId, HubToTarget]


class DraftHub:
    """One drafter shared by many targets.

    Args:
        drafter: what makes draft tokens.
        clock: read at the end of each layer; every `now` is a time of the same clock, in seconds.
        config: limits and policies; addresses in it are of no interest here.
        feature_window: positions whose features are kept of each tag.
        trace: records layers and idle gaps.
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
        self._sessions: dict[TagKey, DraftSession] = {}
        self._spokes = Spokes(config, self._sessions, self._buffer)
        self._rounds = Rounds(self.stats, self._ledger, self._spokes, trace)
        self._outbox: list[Reply] = []
        self._paused_until_s = float("-inf")
        self._ahead_since_s = float("-inf")  # the start of the last layer that ran ahead

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._outbox) or self._buffer.owes_growth or self._buffer.can_run_ahead

    def join(self, session_id: SessionId, target_id: TargetId, vocab_size: int) -> None:
        """Begin a target's session, without tags.

        Args:
            vocab_size: token ids below this are the target's; no others are proposed to it.
        Raises: OurBug if the session exists.
        """
        limits = DraftLimits(
            self._drafter.max_len,
            self._drafter.vocab_size,
            self._config.max_draft_tokens,
            vocab_size,
            self._feature_window,
            prefix_salt(self._config.share_prefixes, session_id) if self._drafter.can_share_prefixes else None,
        )
        self._spokes.join(session_id, target_id, limits)
        self._buffer.join(session_id, self._config.weights.get(target_id, 1.0))
        self.stats.num_targets = len(self._spokes)

    def leave(self, session_id: SessionId, now: float) -> None:
        """End a target's session and free everything of it. Idempotent."""
        if session_id in self._spokes:
            for key in [key for key in self._sessions if key.session_id == session_id]:
                self._drop(key)
            self._spokes.leave(session_id)
            self._buffer.leave(session_id)
        self._outbox = [reply for reply in self._outbox if reply[0] != session_id]
        self._take_stock(now)

    def handle(self, session_id: SessionId, message: TargetToHub, now: float) -> None:
        """Take in one message; what it calls for comes out of `step`.

        A message that the protocol forbids is answered with `Fault` and changes nothing. One of a session that has
        left is dropped: there is nobody to answer.

        Args:
            now: when it arrived; the queueing time counts from here.
        """
        if session_id not in self._spokes:
            return
        self._spokes.review(now)
        try:
            self._dispatch(session_id, message, now)
        except PeerProtocolError as error:
            self._reply(session_id, Fault(str(error)))
        self._take_stock(now)

    def step(self, now: float, is_in_vain: Callable[[], bool] | None = None) -> list[Reply]:
        """Hand over what is ready to be sent; if nothing is, draft one layer for all sessions that owe growth; if none
        does, one layer ahead of the verdicts that are to come.

        Args:
            is_in_vain: asked while a layer runs ahead: whether what has arrived meanwhile ends it.
        Returns: replies, each for the target's session that it names; a proposal as soon as its tree is complete.
        Raises: whatever the drafter raises; call `abandon_layer` then.
        """
        if not self._outbox:
            if self._buffer.owes_growth:
                self._run_layer(now)
            elif self._buffer.can_run_ahead:
                self._run_layer_ahead(now, is_in_vain)
        replies, self._outbox = self._outbox, []
        return replies

    def is_in_vain(self, news: Iterable[tuple[SessionId, TargetToHub]]) -> bool:
        """Whether nothing of the layer that runs ahead is of use once these messages are handled."""
        spoken: dict[TagKey, Open | Verdict | Close] = {}
        for name, message in news:
            if isinstance(message, Open | Verdict | Close):
                key = TagKey(name, message.tag)
                if key in self._sessions and message.epoch > self._sessions[key].link.epoch:  # else it is stale
                    spoken[key] = message
        return self._buffer.is_in_vain(spoken)

    def answer_ahead(self, session_id: SessionId, verdict: Verdict, arrived_s: float, now: float) -> list[Reply]:
        """Answer a verdict that has arrived while a layer runs ahead, if its proposal is there (ADR 22).

        The verdict is to be handled when the layer has ended, like all that arrives, and is not answered again then.

        Returns: what is to be sent at once; nothing if the answer has to wait.
        """
        session = self._sessions.get(TagKey(session_id, verdict.tag))
        if session is None or session.promise is not None or not self._spokes.is_served_freely(session_id):
            return []
        session.promise = promise(
            session,
            verdict,
            arrived_s,
            now,
            layer_s=self.stats.t_s.value,
            return_s=self._spokes[session_id].return_s,
            begun_s=now - self._ahead_since_s if self._buffer.is_added_to(session, verdict) else 0.0,
        )
        return [] if session.promise is None else [(session_id, session.promise.proposal)]

    def abandon_layer(self, now: float) -> None:
        """After `step` raised: drop the sessions of that layer, and ask their targets to open them anew.

        Effects: for FAILURE_PAUSE_S, tags are answered with empty proposals.
        """
        self._paused_until_s = now + FAILURE_PAUSE_S
        for session in self._buffer.land():
            self.lose(session.key.session_id, session.key.tag, now)

    def lose(self, session_id: SessionId, tag: Tag, now: float) -> None:
        """Drop a tag by a fault of ours, and ask its target to open it anew. Nothing happens if it is not held."""
        if session_id in self._spokes:
            key = TagKey(session_id, tag)
            link = self._link(key)
            self._drop(key)
            if link.is_held:
                self._reply(session_id, link.send(Reopen(tag, link.epoch)))
            self._take_stock(now)

    def status(self, now: float) -> HubStatus:
        """The statistics up to now, as a copy."""
        self._ledger.refresh(now, self._buffer.weights, self._buffer.waiting_targets)
        self._spokes.count(self.stats, now)
        held = [len(session.token_ids) for session in self._sessions.values() if session.row is not None]
        self.stats.num_rows_leased, self.stats.num_rows_free = len(held), self._drafter.num_free_rows
        self.stats.row_fill = sum(held) / (len(held) * self._drafter.max_len) if held else 0.0
        return HubStatus(self._drafter.name, deepcopy(self.stats), self._spokes.statuses())

    def check_integrity(self) -> None:
        """Raises: OurBug unless sessions, rows, links and the request buffer agree."""
        self._buffer.check_integrity(self._sessions.values())
        for key, session in self._sessions.items():
            session.check_integrity()
            if key.session_id not in self._spokes or key != session.key:
                raise OurBug(f"session {key} belongs to no target")

    def _dispatch(self, session_id: SessionId, message: TargetToHub, now: float) -> None:
        match message:
            case Open():
                self._open(TagKey(session_id, message.tag), message, now)
            case Verdict():
                self._reroot(TagKey(session_id, message.tag), message, now)
            case Features():
                self._learn(TagKey(session_id, message.tag), message)
            case Close():
                key = TagKey(session_id, message.tag)
                if self._link(key).receive(message):
                    self._drop(key)
            case Ping():
                self._spokes[session_id].plain_tokens_per_s = message.plain_tokens_per_s
            case Goodbye() | Fault():
                pass  # of the link and not of a tag: they are dealt with before they get here
            case _:
                assert_never(message)

    def _open(self, key: TagKey, message: Open, now: float) -> None:
        link = self._link(key)
        if link.receive(message) is None:
            return
        held, has_place = self._sessions.get(key), self._spokes.ask_place(key.session_id, message.budget, now)
        if has_place and held is not None and held.is_continued_by(message):  # its target lost sight of us for a while
            self._continue(held, message.token_ids[len(held.token_ids) :], message.budget, now, is_reopened=True)
            return
        self._drop(key)
        if not has_place or len(self._sessions) >= self._config.max_tags or now < self._paused_until_s:
            self._decline(key, link, now)
            return
        spoke = self._spokes[key.session_id]
        session = self._sessions[key] = DraftSession(
            key, message, link, spoke.limits, now, spoke.ahead_choice.for_another()
        )
        self._ask(session, message.budget, now)

    def _decline(self, key: TagKey, link: TagSession, now: float) -> None:
        """Do not hold the tag now: an empty proposal lets the target go on, and says when to ask again."""
        self.stats.num_declined += 1
        if link.wanted.num_draft_tokens:
            retry_after_s = max(RETRY_S, self._paused_until_s - now)
            declined = Proposal(link.tag, link.epoch, link.prefix_len, [], retry_after_s=retry_after_s)
            self._reply(key.session_id, link.send(declined))
        link.lose()

    def _continue(
        self, session: DraftSession, token_ids: list[int], budget: DraftBudget, now: float, *, is_reopened: bool = False
    ) -> None:
        """Commit more tokens to a session, keeping what its row knows, and owe it the next proposal."""
        proposal = session.in_verification
        is_judged = proposal is not None and not is_reopened and proposal.is_judged_by(token_ids, now)
        if proposal is not None and is_judged:
            self._rounds.add_verdict(session, proposal, len(token_ids), now)
        overtaken = None if is_reopened else session.request
        if overtaken is not None:
            self._rounds.add_overtaken(session, overtaken, now)
        if token_ids:
            self._drafter.note_commit(session, token_ids, session.reroot(token_ids))
            self._ledger.add_wasted(session.num_wasted)
        if not is_judged:
            session.in_verification = None  # its target was away, or went its own ways: no time of a round
        self._ask(session, budget, now, overtakes=overtaken is not None)
        if budget.num_draft_tokens and not session.is_rationed and session.room:
            self._ledger.add_outcome(is_hit=session.request is None)

    def _reroot(self, key: TagKey, message: Verdict, now: float) -> None:
        link = self._link(key)
        if link.receive(message) is None:
            if link.gap:
                self._drop(key)
                self._reply(key.session_id, link.send(link.gap))
        elif self._sessions[key].promise is not None or self._spokes.ask_place(key.session_id, message.budget, now):
            self._continue(self._sessions[key], message.token_ids, message.budget, now)
        else:
            self._drop(key)
            self._decline(key, link, now)

    def _learn(self, key: TagKey, message: Features) -> None:
        """Features of a tag that is not held are dropped: its target is told by what answers its next message."""
        session = self._sessions.get(key)
        if session is not None:
            self._drafter.learn(session, message)
            self._buffer.update(session)

    def _ask(self, session: DraftSession, budget: DraftBudget, now: float, *, overtakes: bool = False) -> None:
        """Args: now: when the request arrived. What is ready, and was not promised, leaves when a layer that ran
        meanwhile has ended."""
        spoke, tag = self._spokes[session.key.session_id], session.key.tag
        spoke.owe(tag, 0)
        session.is_rationed = bool(budget.num_draft_tokens) and not spoke.may_draft(now)
        self.stats.num_rationed += session.is_rationed
        overtaken = session.request
        session.ask(budget, now, overtakes=overtakes)
        self._drafter.note_request(session)
        if session.request is not None:
            if overtaken is not None:  # what is left of its layers was waited for, and not drafted ahead
                session.request.num_layers = min(overtaken.num_layers, session.num_known)
            session.request.is_urgent = spoke.is_behind
            spoke.owe(tag, session.request.budget.num_draft_tokens)
        if budget.num_draft_tokens and not session.is_rationed and session.promise is None:
            self._rounds.add_wait(session, now)
        self._propose_if_ready(session, max(now, self._clock()))
        self._buffer.update(session)

    def _run_layer(self, now: float) -> None:
        layer, sessions = self._buffer.run_layer(now)
        for key in layer.evicted:
            self._ledger.add_wasted(self._sessions[key].num_wasted)
        end = self._clock()
        self._ledger.add_layer(now, end, layer)
        self._buffer.note_time(layer, end - now)
        for session in sessions:
            if self._propose_if_ready(session, end):
                self._buffer.update(session)
        self._buffer.land()
        self._take_stock(end)

    def _run_layer_ahead(self, now: float, is_in_vain: Callable[[], bool] | None) -> None:
        self._ahead_since_s = now
        try:
            num_nodes = self._buffer.run_ahead(is_in_vain)
        except ForwardGivenUp:
            num_nodes = 0
        end, sessions = self._clock(), self._buffer.land()
        if num_nodes:
            self._buffer.note_time_ahead(num_nodes, end - now)
        if sessions:
            self._rounds.add_layer_ahead(sessions, num_nodes, now, end)
        self._take_stock(end)

    def _propose_if_ready(self, session: DraftSession, now: float) -> bool:
        if session.request is None:
            return False
        if session.promise is not None:
            promised = session.promise.proposal
            self._propose(session, session.request, promised, promised.tree, session.promise.made_s)
            return True
        is_ready = session.is_complete or (
            session.ahead_choice.mode != "off"
            and session.is_ready(now, self.stats.t_s.value, self._spokes[session.key.session_id].return_s)
        )
        if is_ready:
            link, times = session.link, session.request.times(now)
            tree = session.proposal()
            proposal = Proposal.of(tree, link.tag, link.epoch, link.prefix_len, *times)
            self._propose(session, session.request, proposal, tree, now)
            self._reply(session.key.session_id, proposal)
        return is_ready

    def _propose(
        self, session: DraftSession, request: DraftRequest, proposal: Proposal, tree: DraftTree, made_s: float
    ) -> None:
        """Account for a proposal that is handed over, or was, and for its tree."""
        session.link.send(proposal)
        self._spokes[session.key.session_id].owe(session.key.tag, 0)
        self._rounds.add_proposal(session, request, tree, made_s)
        session.settle(tree, made_s)

    def _link(self, key: TagKey) -> TagSession:
        session = self._sessions.get(key)
        return self._spokes[key.session_id].recall(key.tag) if session is None else session.link

    def _drop(self, key: TagKey) -> None:
        """Forget a session and free its row, if there is one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._buffer.remove(session)
            self._ledger.add_wasted(session.num_wasted)
            self._spokes[key.session_id].remember(session.link)
            self._spokes[key.session_id].ahead_choice = session.ahead_choice
            self._spokes[key.session_id].owe(key.tag, 0)

    def _reply(self, session_id: SessionId, message: HubToTarget) -> None:
        self._outbox.append((session_id, message))

    def _take_stock(self, now: float) -> None:
        self.stats.num_targets = len(self._spokes)
        self.stats.num_tags = len(self._sessions)
        self.stats.max_batch = self._buffer.max_sessions or 0
        self.stats.num_shared_tokens = self._drafter.num_shared_tokens
        self.stats.num_waiting = self._buffer.num_waiting
        is_busy = self._buffer.owes_growth or self._buffer.can_run_ahead
        self._ledger.mark(now, is_idle=bool(self._sessions) and not is_busy)
