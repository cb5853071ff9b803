"""One round of a target: collect drafts and launch windows; when their verdicts land, commit and report.

In between, the windows are verified where the logits are: one forward for all of them (`windows/judging.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from starspec.engine.drafts import Drafts, RoundTimes, is_launched
from starspec.engine.flights import Flight
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.errors import outcome
from starspec.grammars.matcher import FittedDraft
from starspec.models.runner import Segment
from starspec.policy.grammar_turns import GrammarTurns
from starspec.policy.pipe_depth import Traversed
from starspec.policy.target_batch import longest_draft
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.tracing import Tracer
from starspec.windows.verifier import Landed, Ticket, Verifier
from starspec.windows.window import Judge, Verdict, Window
from starspec.wire.messages import EngineOutput, TokenLogprob, Verified

T = TypeVar("T")


class LaunchedRound(NamedTuple):
    """A round in flight."""

    ticket: Ticket
    batch: Sequence[TargetSequence]
    proposals: Sequence[DraftTree]
    drafts: Sequence[FittedDraft]  # what grammars make of the proposals, and is verified
    flights: Sequence[Flight]  # of these
    feature_layers: tuple[int, ...]
    wanted: Sequence[str]  # what each sequence's draft was to be: for traces
    started_s: float
    collected_s: float
    moved_s: float  # that moves of keys and values had taken before
    num_others: int  # rounds in flight when it was launched

    @property
    def is_live(self) -> bool:
        """Whether not all of its windows stand on refused tokens."""
        return not all(each.is_stale for each in self.flights)


@dataclass(slots=True)
class RoundRunner:
    """Begins rounds, and finishes them when they land. It holds what every round needs, and no state of sequences.

    A sequence that fails by itself, in its grammar, its law or its text, is left out of the rest of its round, and has
    to be ended: `take_failures` names it.

    Args:
        grammar_turns: is told what grammars take.
    """

    verifier: Verifier
    drafts: Drafts
    stats: TargetStats
    clock: Callable[[], float]
    trace: Tracer | None = None
    grammar_turns: GrammarTurns = field(default_factory=GrammarTurns)
    _failures: dict[TargetSequence, BaseException] = field(default_factory=dict, init=False)

    def take_failures(self) -> dict[TargetSequence, BaseException]:
        """The sequences that have failed since the last call, and why."""
        failures, self._failures = self._failures, {}
        return failures

    def look_ahead(self, sequences: Sequence[TargetSequence]) -> None:
        """Let drafts go on behind what grammars force. Drafts from features cannot: only verified tokens have these."""
        if self.drafts.drafts_forced and not self.drafts.feature_layers:
            for sequence in sequences:
                self._of_one(sequence, sequence.look_ahead)

    def begin(
        self, batch: Sequence[TargetSequence], num_others: int, *, are_presumed: bool = False
    ) -> LaunchedRound | None:
        """Collect drafts, and launch one window for each sequence.

        Args:
            batch: sequences of which no window is in flight, or none on which no other could stand.
            num_others: launches in flight.
            are_presumed: whether to draft on behind these windows before they have landed.
        Returns: None if there is nothing to launch: those in flight have no draft any more, or all have failed.
        """
        started_s = self.clock()
        collected = self.drafts.collect(batch)  # an empty tree for each sequence without a proposal in time
        found = [each for each in zip(batch, collected, strict=True) if is_launched(*each)]
        if not found:
            return None
        proposed = self._cut([each.given_tree or self._stand(each, tree) for each, tree in found])
        fitted = [
            (each, proposal, draft)
            for (each, _), proposal in zip(found, proposed, strict=True)
            if (draft := self._of_one(each, partial(self._fitted, each, proposal))) is not None
        ]
        if not fitted:
            return None
        batch, proposals, drafts = zip(*fitted, strict=True)
        collected_s, moved_s = self.clock(), self.stats.batch.moved_s
        wanted = [each.length_choice for each in batch] if self.trace is not None else []
        windows = [_window(each, draft.tree) for each, draft in zip(batch, drafts, strict=True)]
        layers = self.drafts.feature_layers
        ticket = self.verifier.launch(windows, layers)
        flights = [
            each.flights.launch(tree, is_presumed=are_presumed and each.may_presume(tree))
            for each, tree in zip(batch, (draft.tree for draft in drafts), strict=True)
        ]
        if are_presumed:
            self.drafts.presume([each for each in batch if each.flights.may_go_on])
        return LaunchedRound(
            ticket,
            batch,
            proposals,
            drafts,
            flights,
            layers,
            wanted,
            started_s,
            collected_s,
            moved_s,
            num_others,
        )

    def _stand(self, sequence: TargetSequence, tree: DraftTree) -> DraftTree:
        """If a window of the sequence is in flight, let the next one stand on it, and on the first token behind it.

        Returns: the draft of the next window.
        """
        if not sequence.flights:
            return tree
        guess, row = tree.token_ids[0], sequence.row
        assert row is not None
        self.verifier.cache.commit(row, range(sequence.flights.stand_on(guess)))
        self.stats.num_ahead_windows += 1
        return tree.after([guess])

    def _cut(self, trees: Sequence[DraftTree]) -> Sequence[DraftTree]:
        """The trees, as far as one launch takes them. What is cut off is not verified, and counts as never proposed.

        A target whose launches are bounded has no grammars, so nothing is added to these trees.
        """
        if self.verifier.max_tokens is None:
            return trees
        longest = longest_draft([each.num_draft_tokens for each in trees], self.verifier.max_tokens)
        return [each if each.num_draft_tokens <= longest else each.restricted(range(longest)) for each in trees]

    def finish(self, launched: LaunchedRound, landed: Landed) -> list[tuple[TargetSequence, EngineOutput]]:
        """Commit what landed. Every sequence that has not ended meanwhile gains at least one token, ends, or fails.

        Effects: changes the sequences, their cache rows and the statistics; sends verdicts to the hub.
        """
        batch, round_outputs = [], []
        told = zip(launched.batch, launched.proposals, launched.drafts, launched.flights, landed.verdicts, strict=True)
        for sequence, proposal, draft, flight, verdict in told:
            self.stats.num_stale_windows += flight.is_stale
            if sequence.row is None or flight.is_stale:
                continue
            if verdict.error is not None:
                self._failures[sequence] = verdict.error
                continue
            added = self._of_one(sequence, partial(self._commit, sequence, proposal, draft, flight, verdict))
            if added is not None:
                batch.append(sequence)
                round_outputs.append(added)
        if not batch:
            return []  # what it took says nothing of rounds: nobody had it
        if launched.feature_layers != self.drafts.feature_layers:  # another hub was found meanwhile
            for added in round_outputs:
                added.drop_features()
        verified_s = self.clock()
        self.look_ahead([each for each in batch if each.state is SequenceState.RUNNING])
        self.drafts.report(batch, round_outputs)
        reported_s = self.clock()
        outputs = [(each, each.output(added)) for each, added in zip(batch, round_outputs, strict=True)]
        ended_s, report_s = self.clock(), reported_s - verified_s
        self._record_times(launched, round_outputs, landed.took, verified_s)
        self._trace_lengths(launched, verified_s)
        waited_s = launched.collected_s - launched.started_s
        self._record_batch(launched, waited_s + report_s, ended_s - launched.collected_s - report_s)
        return outputs

    def _of_one(self, sequence: TargetSequence, compute: Callable[[], T]) -> T | None:
        """What is computed for one sequence. None if that raises: then this sequence has failed."""
        found = outcome(compute)
        if isinstance(found, BaseException):
            self._failures[sequence] = found
            return None
        return found

    def _fitted(self, sequence: TargetSequence, proposal: DraftTree) -> FittedDraft:
        """The proposal without what the sequence's grammar refuses, and with what it forces.

        So no row of the forward is spent on a token that cannot be accepted, and none on a forward for a sure one.
        """
        if sequence.grammar is None:
            return FittedDraft(proposal, proposal.num_draft_tokens)
        may_force = self.drafts.drafts_forced and sequence.may_be_drafted
        return sequence.grammar.fit(proposal, sequence.num_remaining - 1 if may_force else 0, sequence.forced)

    def _commit(
        self,
        sequence: TargetSequence,
        proposal: DraftTree,
        draft: FittedDraft,
        flight: Flight,
        verdict: Verdict,
    ) -> RoundOutput:
        """Extend a sequence by its verdict. Keep the keys and values of the root and of the accepted path.

        What a grammar left out of the proposal counts as refused at its place, and was not verified.
        """
        result, num_drafted = verdict.result, draft.tree.num_draft_tokens
        added = sequence.extend(result.token_ids, _logprobs(verdict))
        added.note_draft(max(proposal.depths, default=0), draft, verdict)
        added.is_presumed, num_right = flight.is_presumed, sequence.flights.land(flight, result.token_ids)
        added.num_right = num_right if num_right is not None else added.num_right
        is_right, num_tokens = num_right is None, len(result.token_ids)
        added.gap = sequence.flights.note_landed(flight, self.clock(), num_tokens, is_right=is_right)
        self._keep(sequence, flight, added, result.rows)
        num_emitted = len(added.token_ids)
        num_relaxed = sum(index < num_emitted for index in result.relaxed)
        num_accepted = min(result.num_accepted, num_emitted)
        sequence.count_round(num_drafted, num_accepted, num_emitted, num_relaxed, self.clock())
        if sequence.given_tree is None:
            self.stats.acceptance.add_round(num_drafted, num_accepted, num_emitted, num_relaxed)
        else:
            added.verified = Verified(list(result.accepted_nodes), list(verdict.node_tops))
        if sequence.grammar is not None:
            spent_s = sequence.grammar.take_spent_s()
            self.stats.grammars.add_round(num_emitted, added.num_forced, spent_s)
            sequence.note_grammar(is_dear=self.grammar_turns.spend(spent_s, num_emitted, self.clock()))
        return added

    def _keep(self, sequence: TargetSequence, flight: Flight, added: RoundOutput, rows: Sequence[int]) -> None:
        """Let the cache row be what the sequence is now. Args: rows: of the tokens of its verdict."""
        cache, row = self.verifier.cache, sequence.row
        assert row is not None
        if flight.guess is None:
            cache.commit(row, rows[: len(added.token_ids)])
        elif added.num_right is not None and sequence.state is SequenceState.RUNNING:
            cache.truncate(row, len(sequence.token_ids) - 1)  # the next window stood on what was refused

    def _record_times(
        self, launched: LaunchedRound, added: Sequence[RoundOutput], took: Traversed | None, verified_s: float
    ) -> None:
        started_s, collected_s = launched.started_s, launched.collected_s
        self.stats.num_rounds += 1
        self.stats.wait.add(collected_s - started_s)
        self.stats.t_v.add(verified_s - collected_s)
        self.stats.round.add(verified_s - started_s)
        num_tokens = sum(each.tree.num_draft_tokens + 1 for each in launched.drafts)
        traversal_s = verified_s - collected_s
        occupancy_s = traversal_s / (launched.num_others + 1)
        cache, is_ahead = self.verifier.cache, any(each.is_presumed for each in launched.flights)
        num_running = cache.num_rows - cache.num_free_rows
        times = RoundTimes(
            round_s=verified_s - started_s,
            traversal_s=traversal_s,
            occupancy_s=occupancy_s,
            num_tokens=num_tokens,
            num_sequences=len(added),
            num_draft_tokens=sum(each.num_draft_tokens for each in added),
            took=took,
            num_running=num_running,
            is_ahead=is_ahead,
            gaps=[each.gap for each in added if each.gap is not None],
        )
        self.drafts.note_round(times)
        if self.trace is not None:
            self.trace.slice("wire", "wait", started_s, collected_s)

    def _trace_lengths(self, launched: LaunchedRound, end_s: float) -> None:
        """The forward, with what each sequence's draft was to be, why not more, and what it was."""
        if self.trace is not None:
            wanted, drafted = launched.wanted, ", ".join(f"{each.tree.num_draft_tokens}" for each in launched.drafts)
            start_s = launched.collected_s
            self.trace.slice("verify", "verify", start_s, end_s, wanted=", ".join(wanted), drafted=drafted)

    def _record_batch(self, launched: LaunchedRound, draft_s: float, verify_s: float) -> None:
        """Args: verify_s: includes the time in which the forward moved keys and values."""
        stats = self.stats.batch
        stats.num_rounds += 1
        stats.num_sequence_rounds += len(launched.batch)
        stats.draft_s += draft_s
        stats.verify_s += verify_s - (stats.moved_s - launched.moved_s)


def _window(sequence: TargetSequence, tree: DraftTree) -> Window:
    """The last token that is committed or presumed, whose keys and values are still missing, and the draft below it."""
    assert sequence.row is not None
    parents = None if tree.is_chain else (-1, *(parent + 1 for parent in tree.parents))
    settled = sequence.flights.settled
    root, counts = sequence.token_ids[-1], sequence.counts
    if settled:
        root, counts = settled[-1], counts.with_path(settled)
    token_ids = (root, *tree.token_ids)
    segment = Segment(sequence.row, token_ids, num_logits=len(token_ids), parents=parents)
    return Window(segment, Judge(sequence.law, tree, sequence.prefix_len, counts, sequence.grammar))


def _logprobs(verdict: Verdict) -> list[TokenLogprob]:
    """The log-probabilities of the tokens, as the client gets them."""
    if not verdict.logprobs:
        return []
    pairs = zip(verdict.result.token_ids, verdict.logprobs, strict=True)
    return [TokenLogprob(token_id, *logprobs) for token_id, logprobs in pairs]
