"""One round of a target: collect drafts, forward, verify, commit, report. One forward for all running sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.engine.drafts import Drafts
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.models.runner import BatchRunner, Segment
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.tracing import Tracer
from starspec.windows.judging import judge
from starspec.windows.window import Judge, Verdict, Window
from starspec.wire.messages import EngineOutput, TokenLogprob


@dataclass(slots=True)
class RoundRunner:
    """Runs rounds. It holds what every round needs, and no state of sequences."""

    runner: BatchRunner
    drafts: Drafts
    stats: TargetStats
    clock: Callable[[], float]
    trace: Tracer | None = None
    commits_evenly: bool = False  # cut all verdicts to the length of the shortest one

    def run(self, batch: Sequence[TargetSequence]) -> list[EngineOutput]:
        """Run one round. Every sequence of the batch gains at least one token, or ends.

        Effects: changes the sequences, their cache rows and the statistics; sends verdicts to the hub.
        """
        started_s = self.clock()
        trees = self.drafts.collect(batch)  # an empty tree for each sequence without a proposal in time
        collected_s, moved_s = self.clock(), self.stats.batch.moved_s
        windows = [_window(each, tree) for each, tree in zip(batch, trees, strict=True)]
        output = self.runner.forward([each.segment for each in windows], self.drafts.feature_layers)
        verdicts = judge(windows, output, self.commits_evenly)
        round_outputs = self._commit(batch, trees, verdicts)
        verified_s = self.clock()
        wanted = [each.length_choice for each in batch]  # reporting chooses those of the next round
        self.drafts.report(batch, round_outputs)
        reported_s = self.clock()
        outputs = [each.output(added) for each, added in zip(batch, round_outputs, strict=True)]
        ended_s, report_s = self.clock(), reported_s - verified_s
        self._record_times(started_s, collected_s, verified_s, len(output.logits))
        self._trace_lengths(wanted, trees, collected_s, verified_s)
        self._record_batch(len(batch), collected_s - started_s + report_s, ended_s - collected_s - report_s, moved_s)
        return outputs

    def _commit(
        self, batch: Sequence[TargetSequence], trees: Sequence[DraftTree], verdicts: Sequence[Verdict]
    ) -> list[RoundOutput]:
        """Extend every sequence by its verdict. Keep the keys and values of the root and of the accepted path."""
        round_outputs = []
        for sequence, tree, verdict in zip(batch, trees, verdicts, strict=True):
            result = verdict.result
            added = sequence.extend(result.token_ids, _logprobs(verdict))
            added.num_steps = max(tree.depths, default=0)
            added.divergences = verdict.divergences
            if verdict.features is not None:
                added.features = verdict.features[: len(added.token_ids)]
            assert sequence.row is not None
            self.runner.cache.commit(sequence.row, result.rows[: len(added.token_ids)])
            kept = result.cut(len(added.token_ids))
            num_accepted, num_emitted = min(result.num_accepted, len(kept.token_ids)), len(kept.token_ids)
            added.num_accepted = num_accepted
            sequence.count_round(tree.num_draft_tokens, num_accepted, num_emitted, len(kept.relaxed), self.clock())
            self.stats.acceptance.add_round(tree.num_draft_tokens, num_accepted, num_emitted, len(kept.relaxed))
            round_outputs.append(added)
        return round_outputs

    def _record_times(self, started_s: float, collected_s: float, verified_s: float, num_tokens: int) -> None:
        self.stats.num_rounds += 1
        self.stats.wait.add(collected_s - started_s)
        self.stats.t_v.add(verified_s - collected_s)
        self.stats.round.add(verified_s - started_s)
        self.drafts.note_round(verified_s - started_s, verified_s - collected_s, num_tokens)
        if self.trace is not None:
            self.trace.slice("wire", "wait", started_s, collected_s)

    def _trace_lengths(self, wanted: Sequence[str], trees: Sequence[DraftTree], start_s: float, end_s: float) -> None:
        """The forward, with what each sequence's draft was to be, why not more, and what it was."""
        if self.trace is not None:
            drafted = ", ".join(f"{each.num_draft_tokens}" for each in trees)
            self.trace.slice("verify", "verify", start_s, end_s, wanted=", ".join(wanted), drafted=drafted)

    def _record_batch(self, num_sequences: int, draft_s: float, verify_s: float, moved_before_s: float) -> None:
        """Args: verify_s: includes the time in which the forward moved keys and values."""
        stats = self.stats.batch
        stats.num_rounds += 1
        stats.num_sequence_rounds += num_sequences
        stats.draft_s += draft_s
        stats.verify_s += verify_s - (stats.moved_s - moved_before_s)


def _window(sequence: TargetSequence, tree: DraftTree) -> Window:
    """The last committed token, whose keys and values are still missing, and the draft nodes below it."""
    assert sequence.row is not None
    parents = None if tree.is_chain else (-1, *(parent + 1 for parent in tree.parents))
    token_ids = (sequence.token_ids[-1], *tree.token_ids)
    segment = Segment(sequence.row, token_ids, num_logits=len(token_ids), parents=parents)
    return Window(segment, Judge(sequence.law, tree, len(sequence.token_ids), sequence.counts))


def _logprobs(verdict: Verdict) -> list[TokenLogprob]:
    """The log-probabilities of the tokens, as the client gets them."""
    if not verdict.logprobs:
        return []
    pairs = zip(verdict.result.token_ids, verdict.logprobs, strict=True)
    return [TokenLogprob(token_id, *logprobs) for token_id, logprobs in pairs]
