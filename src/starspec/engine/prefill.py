"""Prompts of a target: launched chunk by chunk. The last token of a prompt is left for the first round, as its root.

If the row of a sequence was lost, its output is forwarded again as well. A token keeps its bits: those of the prompt
are in the same chunks as before, and those of the output in chunks that are computed as rounds are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starspec.engine.drafts import Drafts
from starspec.engine.sequence import SequenceState, TargetSequence
from starspec.models.batch import MAX_DECODE_TOKENS
from starspec.models.runner import Segment
from starspec.tracing import Tracer
from starspec.windows.verifier import Landed, Ticket, Verifier
from starspec.windows.window import Scoring, Window
from starspec.wire.messages import EngineOutput


class LaunchedChunk(NamedTuple):
    """A chunk in flight."""

    ticket: Ticket
    sequence: TargetSequence
    start: int  # position of its first token
    num_tokens: int
    feature_layers: tuple[int, ...]
    started_s: float

    @property
    def is_last(self) -> bool:
        """Whether only the last token is left, for the first round: no token is committed before this has landed."""
        return self.start + self.num_tokens == len(self.sequence.token_ids) - 1

    @property
    def batch(self) -> list[TargetSequence]:
        return [self.sequence]

    @property
    def is_live(self) -> bool:
        """No chunk stands on refused tokens."""
        return True


@dataclass(slots=True)
class Prefiller:
    """Launches chunks. It holds no state of sequences.

    Nothing can refuse a chunk, so it is committed as soon as it is launched: the next one, or the first round, may
    follow before it has landed. Only where drafts want its features, the first round waits for them.

    Chunk boundaries depend on the tokens of a sequence alone, so keys and values are bitwise equal in every batch.
    """

    verifier: Verifier
    drafts: Drafts
    clock: Callable[[], float]
    chunk_size: int  # tokens
    trace: Tracer | None = None

    def begin(self, sequence: TargetSequence) -> LaunchedChunk | None:
        """Launch the next chunk of a prompt. Returns: None for a prompt of one token, which has no chunk."""
        assert sequence.row is not None
        start = self.verifier.cache.lengths[sequence.row]
        if start < sequence.prompt_len - 1:
            end = min(start + self.chunk_size, sequence.prompt_len - 1)
        else:
            end = min(start + MAX_DECODE_TOKENS, len(sequence.token_ids) - 1)
        chunk = sequence.token_ids[start:end]
        if not chunk:
            sequence.end_prefill()
            return None
        started_s = self.clock()
        layers = self.drafts.feature_layers
        ticket = self.verifier.launch([_window(sequence, start, chunk)], layers)
        self.verifier.cache.append(sequence.row, len(chunk))
        launched = LaunchedChunk(ticket, sequence, start, len(chunk), layers, started_s)
        if launched.is_last and not layers:
            sequence.end_prefill()
        return launched

    def finish(self, launched: LaunchedChunk, landed: Landed) -> EngineOutput | None:
        """A chunk has landed. If its sequence has not ended meanwhile, note its features.

        Returns: what the client gets of it, which are log-probabilities of its prompt; None if it wants none.
        """
        sequence = launched.sequence
        if sequence.row is None:
            return None
        are_wanted = launched.feature_layers == self.drafts.feature_layers  # another hub may have been found meanwhile
        if landed.features is not None and are_wanted:
            self.drafts.add_prompt_features(sequence, launched.start, landed.features)
        if self.trace is not None:
            self.trace.slice("verify", "prefill", launched.started_s, self.clock(), num_tokens=launched.num_tokens)
        if launched.is_last and sequence.state is SequenceState.PREFILLING:
            sequence.end_prefill()
        return sequence.prompt_output(launched.start + 1, landed.scores) if landed.scores else None


def _window(sequence: TargetSequence, start: int, chunk: Sequence[int]) -> Window:
    """A chunk, and what the client wants to know of the tokens after each of its own."""
    assert sequence.row is not None
    num_top = sequence.spec.prompt_logprobs
    if num_top is None:
        return Window(Segment(sequence.row, chunk, num_logits=0), None)
    segment = Segment(sequence.row, chunk, num_logits=len(chunk), is_scored=True)
    following = sequence.token_ids[start + 1 : start + len(chunk) + 1]
    return Window(segment, None, Scoring(following, num_top))
