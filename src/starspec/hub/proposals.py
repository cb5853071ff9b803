"""From a verdict to the next proposal: requests that wait, draft steps, draft steps ahead, the moment to send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from starspec.hub.ahead import AheadSteps
from starspec.hub.buffer import RequestBuffer
from starspec.hub.drafter import Drafter
from starspec.hub.recorder import StatsRecorder
from starspec.hub.sequence import DraftSequence
from starspec.hub.targets import ConnectedTargets
from starspec.ids import LinkId
from starspec.policy.law_turns import LawfulTarget, law_share
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.stats import HubStats
from starspec.wire.messages import Proposal, TargetToHub, Verdict


class ProposalMaker:
    """Makes the proposals that targets request. It neither opens sequences nor drops them.

        judge ──> go_on ──> run_step ──> propose_if_ready ──> end_step
                    │                           │
                    └── a proposal, if ready ───┘

    Args:
        drafter: makes draft tokens.
        buffer: requests that wait for draft steps.
        links: of all targets; their rate limits and return times count.
        stats, recorder: of the hub.
        clock: read at the end of each draft step.
    """

    def __init__(
        self,
        drafter: Drafter,
        buffer: RequestBuffer,
        links: ConnectedTargets,
        stats: HubStats,
        recorder: StatsRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._drafter = drafter
        self._buffer = buffer
        self._links = links
        self._stats = stats
        self._recorder = recorder
        self._clock = clock
        self._ahead = AheadSteps(drafter)

    # ---- verdicts and requests

    def judge(self, sequence: DraftSequence, token_ids: list[int], now: float) -> None:
        """Find out which proposal a verdict answers, and learn from that."""
        key = sequence.key
        self._links[key.link_id].add_verdict(key.tag, sequence.judge(token_ids, now), now)

    def go_on(self, sequence: DraftSequence, token_ids: list[int], budget: DraftBudget, now: float) -> Proposal | None:
        """The target of a sequence that is held has committed these tokens, and asks for the next proposal.

        Args, returns: as `answer`.
        """
        self._commit(sequence, token_ids)
        proposal = self.answer(sequence, budget, now)
        self._count_hit(sequence, budget)
        return proposal

    def answer(self, sequence: DraftSequence, budget: DraftBudget, now: float) -> Proposal | None:
        """Answer a request: with a proposal, if the tree has it already; else the sequence waits for draft steps.

        Args:
            now: when the request arrived.
        Returns: what to send now, if anything.
        """
        self._request(sequence, budget, now)
        proposal = self._propose_if_ready(sequence, max(now, self._clock()))
        self.update(sequence)
        return proposal

    def _commit(self, sequence: DraftSequence, token_ids: list[int]) -> None:
        """Append the tokens, and keep the parts of tree and row that are still right."""
        if token_ids:
            survivors = sequence.commit(token_ids)
            self._links[sequence.key.link_id].add_tokens(len(token_ids))
            self._drafter.note_commit(sequence, token_ids, survivors)
            self._recorder.add_wasted(sequence.num_wasted)

    def _request(self, sequence: DraftSequence, budget: DraftBudget, now: float) -> None:
        """Note that the target wants the next proposal, within its rate limit."""
        link, tag, wants_drafts = self._links[sequence.key.link_id], sequence.key.tag, budget.num_draft_tokens > 0
        link.reserve(tag, 0)
        is_rate_limited = wants_drafts and not link.may_draft(now)
        self._stats.num_rationed += is_rate_limited
        sequence.ask(budget, now, is_rate_limited=is_rate_limited, is_urgent=link.is_behind)
        self._drafter.note_request(sequence)
        link.reserve(tag, sequence.round.budget.num_draft_tokens)
        if wants_drafts and not is_rate_limited and sequence.round.early_proposal is None:
            self._ahead.charge_wait(sequence, now)

    def _count_hit(self, sequence: DraftSequence, budget: DraftBudget) -> None:
        """Count a hit or a miss after `answer`. A hit: the proposal was there when the target asked for it."""
        if budget.num_draft_tokens and not sequence.is_rate_limited and sequence.room:
            self._recorder.add_hit_or_miss(is_hit=sequence.round.request is None)

    def answer_early(self, sequence: DraftSequence, verdict: Verdict, arrived_s: float, now: float) -> Proposal | None:
        """As `DraftSequence.answer_early`. Returns: what to send now, if anything."""
        early = sequence.answer_early(
            verdict,
            arrived_s,
            now,
            step_s=self._stats.t_s.value,
            return_s=self._links[sequence.key.link_id].return_s,
            running_s=self._ahead.running_s(sequence, verdict, now),
        )
        return None if early is None else early.proposal

    def update(self, sequence: DraftSequence) -> None:
        """Let the sequence wait for a draft step if it owes a proposal, or for one ahead if it is in verification."""
        self._buffer.update(sequence)
        self._ahead.update(sequence)

    def remove(self, sequence: DraftSequence) -> None:
        """Forget the sequence and free its row."""
        self._recorder.add_wasted(self._buffer.remove(sequence))
        self._ahead.remove(sequence)

    # ---- draft steps

    @property
    def can_run_step(self) -> bool:
        """Whether `run_step` may find something to do."""
        return self._buffer.has_waiting or self._ahead.can_run

    def not_to_grow(self, now: float) -> list[DraftSequence]:
        """Sequences that wait, and get what is drafted already: their targets' laws took too long (`law_turns.py`)."""
        targets = {each for each in self._buffer.scheduler.num_waiting if self._must_wait(each, now)}
        return self._buffer.waiting_of(targets)

    def run_step(self, now: float, is_obsolete: Callable[[], bool] | None) -> tuple[Sequence[DraftSequence], float]:
        """Run a draft step for the sequences that wait. If none waits, it runs ahead of the verdicts that are to come.

        Args:
            is_obsolete: called while a draft step runs ahead; returns whether to abort it.
        Returns: the sequences that wait and have grown, and the end of the draft step. They are in flight until
            `end_step`.
        Raises: whatever the drafter raises; the sequences are then still in flight.
        """
        if not self._buffer.has_waiting:
            return (), self._run_step_ahead(now, is_obsolete)
        draft_step, sequences, num_wasted = self._buffer.run_step(now)
        end_s = self._clock()
        self._charge_laws(sequences, now, end_s)
        self._recorder.add_wasted(num_wasted)
        self._recorder.add_step(now, end_s, draft_step)
        self._buffer.scheduler.note_time(draft_step, end_s - now)
        if not draft_step.has_prefill:
            self._ahead.note_time(draft_step.num_tokens, end_s - now)
        return sequences, end_s

    def propose_if_ready(self, sequence: DraftSequence, now: float) -> Proposal | None:
        """The proposal of a sequence that has grown, or is not to grow. Returns: what to send now, if anything."""
        proposal = self._propose_if_ready(sequence, now, is_cut=self._must_wait(sequence.key.link_id, now))
        if sequence.round.request is None:  # others wait on, in the same place
            self.update(sequence)
        return proposal

    def end_step(self) -> list[DraftSequence]:
        """End the draft step in flight, if there is one. Returns: its sequences."""
        return [*self._buffer.end_step(), *self._ahead.abandon()]

    def is_obsolete(self, arrived: Iterable[tuple[LinkId, TargetToHub]]) -> bool:
        """Whether the draft step that runs ahead is useless once these messages are handled."""
        return self._ahead.is_obsolete(arrived)

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless exactly these sequences, their rows and the request buffer agree."""
        self._buffer.check_integrity(sequences)
        self._ahead.check_integrity()

    def _run_step_ahead(self, now: float, is_obsolete: Callable[[], bool] | None) -> float:
        """Returns: its end."""
        num_nodes = self._ahead.run(now, partial(self._must_wait, now=now), is_obsolete)
        end_s = self._clock()
        self._charge_laws(self._ahead.in_flight, now, end_s)
        num_sequences = self._ahead.end(num_nodes, end_s)
        if num_sequences:
            self._recorder.add_step_ahead(now, end_s, num_sequences, num_nodes)
        return end_s

    def _propose_if_ready(self, sequence: DraftSequence, now: float, *, is_cut: bool = False) -> Proposal | None:
        """Args: is_cut: whether what is drafted already is all that the target gets now."""
        request, early = sequence.round.request, sequence.round.early_proposal
        if request is None:
            return None
        if early is not None:  # ADR 22: it was sent before its verdict was handled
            self._note_proposal(sequence, early.proposal, early.proposal.tree, early.made_s)
            return None
        if not (sequence.is_complete or self._pays_in_part(sequence, now)):
            if not is_cut:
                return None
            self._stats.num_cut += 1
        session, tree = sequence.session, sequence.proposal()
        proposal = Proposal.of(tree, session.tag, session.epoch, session.prefix_len, *request.times(now))
        self._note_proposal(sequence, proposal, tree, now)
        return proposal

    def _must_wait(self, link_id: LinkId, now: float) -> bool:
        """Whether the laws of the target have had more than their share of the time, and others ask."""
        return self._links[link_id].law_turns.must_wait(now) and bool(self._buffer.scheduler.who_shares - {link_id})

    def _charge_laws(self, sequences: Iterable[DraftSequence], start_s: float, end_s: float) -> None:
        """Charge a draft step with these sequences to the targets for whose laws it took time."""
        targets = {sequence.key.link_id for sequence in sequences}
        laws_s = {link_id: self._links[link_id].law_timer.take() for link_id in targets}
        if not any(laws_s.values()):
            return
        for link_id, law_s in laws_s.items():
            self._links[link_id].law_s.add(law_s)
        step_s = end_s - start_s
        shared_s = max(0.0, step_s - sum(laws_s.values()))
        weights, who_shares = self._buffer.scheduler.weights, self._buffer.scheduler.who_shares | targets
        asking = {each: LawfulTarget(weights[each], self._links[each].law_s.value) for each in who_shares}
        for link_id, law_s in laws_s.items():
            share = law_share(link_id, asking, law_s, step_s, shared_s)
            self._links[link_id].law_turns.spend(law_s, share, end_s)

    def _pays_in_part(self, sequence: DraftSequence, now: float) -> bool:
        if not sequence.round.runs_ahead:
            return False
        return sequence.pays_in_part(now, self._stats.t_s.value, self._links[sequence.key.link_id].return_s)

    def _note_proposal(self, sequence: DraftSequence, proposal: Proposal, tree: DraftTree, made_s: float) -> None:
        """A proposal is sent, or was sent early."""
        made = sequence.mark_proposed(proposal, tree, made_s)
        self._recorder.add_proposal(made)
        self._links[sequence.key.link_id].add_proposal(made)
