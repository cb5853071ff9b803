"""One request in the engine: its tokens, cache row, text and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Literal

from msgspec.structs import replace
from torch import Tensor

from starspec.engine.detokenize import Detokenizer
from starspec.engine.flights import Flights
from starspec.grammars.matcher import FittedDraft, GrammarMatcher
from starspec.ids import RequestId, RequestKey
from starspec.policy.pipe_depth import WindowGap
from starspec.policy.queue_turns import Sender
from starspec.sampling.counts import TokenCounts
from starspec.sampling.logprobs import Score
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import COUPLED, AcceptanceRule, Relaxation
from starspec.speculation.budget import MAX_FORWARDED
from starspec.speculation.signals import places_of
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import RequestStats
from starspec.windows.window import Law, Verdict
from starspec.wire.messages import GRAMMAR_FAILED, EngineOutput, PromptLogprob, RequestSpec, TokenLogprob, Verified

MAX_AHEAD: Final = MAX_FORWARDED // 2  # forced tokens before a draft
MAX_RESTARTS: Final = 3  # without a token in between: such a sequence may be what kills the stages
FORGIVEN_AFTER: Final = 16  # rounds in which its grammar took no more than is free


class SequenceState(Enum):
    WAITING = auto()  # no cache row yet
    PREFILLING = auto()  # its tokens are forwarded chunk by chunk
    RUNNING = auto()  # takes part in rounds
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended."""

    reason: Literal["stop", "length", "abort", "error"]
    stop_reason: int | str | None = None  # the stop token id or stop string


@dataclass(slots=True)
class RoundOutput:
    """What one round added to a sequence, cut after the token that ended it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    features: Tensor | None = None  # [tokens, F], of the position before each token; None if the drafts need none
    num_steps: int = 0  # depth of the draft; 0 = there was none
    num_draft_tokens: int = 0  # of this draft, as far as they were verified ...
    num_accepted: int = 0  # ... and how many of them were accepted
    num_forced: int = 0  # accepted tokens that were not in the draft: a grammar forced them
    is_presumed: bool = False  # the drafts went on behind this draft before it was verified
    num_right: int | None = None  # tokens before the first other one than drafts went on behind; None = there is none
    gap: WindowGap | None = None  # before its verdict
    verified: Verified | None = None  # of a draft that the client gave
    divergences: tuple[float, ...] = ()  # of the target from the draft, at each verified position that states one
    accepted_places: tuple[int, ...] | None = None  # of its nodes, from the likeliest on; None = the draft states none

    def note_draft(self, num_steps: int, draft: FittedDraft, verdict: Verdict) -> None:
        """The tokens are the first of this verdict, about a draft that was so deep before it was fitted."""
        self.num_steps, self.num_draft_tokens = num_steps, draft.num_kept
        accepted = verdict.result.accepted_nodes[: len(self.token_ids)]
        self.num_accepted = sum(0 <= node - draft.num_before < draft.num_kept for node in accepted)
        self.num_forced = len(accepted) - self.num_accepted
        self.divergences = verdict.divergences
        if draft.tree.logprobs and draft.num_kept == draft.tree.num_draft_tokens:
            self.accepted_places = places_of(accepted, draft.tree)
        if verdict.features is not None:
            self.features = verdict.features[: len(self.token_ids)]

    def drop_features(self) -> None:
        """Nobody wants them any more."""
        self.features = None


class TargetSequence:
    """A request from its arrival to its last token.

    While it is RUNNING, its cache row holds the keys and values of every committed token but the last. The last token
    is the root of the next forward. While several windows of it are in flight, all this includes the presumed tokens on
    which the last of them stands.

    Only methods of this class change its state. The engine, its rounds and the drafts say by them what has happened.
    """

    def __init__(
        self,
        key: RequestKey,
        spec: RequestSpec,
        *,
        max_len: int,
        eos_token_ids: tuple[int, ...],
        detokenizer: Detokenizer,
        arrived_s: float,
        rule: AcceptanceRule = COUPLED,
        relaxation: Relaxation | None = None,
        owner: str = "",
        grammar: GrammarMatcher | None = None,
        is_exact: bool = True,
    ) -> None:
        """Args:
        is_exact: the target's own tokens are those of its model.
        """
        self.key = key
        self.sender = Sender(owner, key.peer)
        self.spec = spec
        self.rule = rule  # by which its proposals are verified
        self.sampling: SamplingSpec = spec.sampling
        self.grammar = grammar  # behind the committed tokens
        self.law = Law(spec.sampling, relaxation, spec.logprobs, spec.draft.num_top if spec.draft else None)
        self.given_tree = spec.draft.tree if spec.draft else None  # all that is to be verified
        self.token_ids = list(spec.prompt_token_ids)
        self.prompt_len = len(spec.prompt_token_ids)
        self.max_len = max_len  # committed tokens at which the answer ends
        self.counts = TokenCounts(spec.prompt_token_ids, ())
        self.flights = Flights()
        self.forced: list[int] = []  # tokens that its grammar forces next, and behind which drafts go on
        self.state = SequenceState.WAITING
        self.row: int | None = None
        self.stats = RequestStats(is_lossless=rule.is_lossless and is_exact)
        self.length_choice = ""  # of the last draft that was wanted, and why not more: for traces
        self.arrived_s = arrived_s
        self.admitted_s = float("inf")  # when it got its cache row
        self.num_passed_over = 0  # consecutive steps that chose others instead, for a row or for a round
        self._num_restarts = 0  # since its last token
        self._num_cheap_rounds = FORGIVEN_AFTER  # since its grammar took more than is free
        self._first_token_s: float | None = None
        self._eos_token_ids = frozenset(eos_token_ids)
        self._end_token_ids = frozenset(spec.sampling.end_token_ids)
        self._detokenizer = detokenizer

    @property
    def request_id(self) -> RequestId:
        return self.key.request_id

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.max_len - len(self.token_ids)

    @property
    def may_be_drafted(self) -> bool:
        """Whether its request lets anything draft for it, and has no draft of its own."""
        return self.spec.num_draft_tokens != 0 and self.given_tree is None

    @property
    def ahead(self) -> list[int]:
        """The tokens behind the committed ones that drafts go on behind: they are presumed, or forced."""
        return self.flights.token_ids or self.forced

    @property
    def num_unplanned(self) -> int:
        """Tokens that may still be generated behind those that drafts go on behind, at least 1 while it runs."""
        return self.num_remaining - len(self.ahead)

    @property
    def prefix_len(self) -> int:
        """Tokens on which its newest window stands, committed or presumed: the position of that window's first draw."""
        return len(self.token_ids) + self.flights.num_settled

    def may_presume(self, tree: DraftTree) -> bool:
        """Whether another window may stand on the draft of one that is about to be launched.

        A path through a tree moves keys and values when it is committed, so nothing else of the tree would be left if
        its presumption is wrong. Of a drawn draft hardly any guess is right. Nothing follows an end token.
        """
        is_free = self.grammar is None and self.given_tree is None
        is_drafted = tree != EMPTY_TREE or bool(self.flights)  # a guess is a draft, too
        is_chain = is_drafted and tree.is_chain and not tree.drafts
        return is_free and is_chain and self._end_token_ids.isdisjoint(tree.token_ids)

    def look_ahead(self) -> None:
        """Find out what its grammar forces next, if that is to be drafted."""
        if self.grammar is not None and self.may_be_drafted and not self.forced:
            self.forced = self.grammar.forced(min(MAX_AHEAD, self.num_remaining - 1))

    def admit(self, row: int, now: float) -> None:
        """It gets a cache row, so that its prompt can be forwarded."""
        self.row, self.admitted_s = row, now
        self.stats.queue_s = now - self.arrived_s
        self.state = SequenceState.PREFILLING

    def end_prefill(self) -> None:
        """The cache row holds all tokens but the last: it takes part in rounds."""
        self.state = SequenceState.RUNNING

    @property
    def can_start_again(self) -> bool:
        return self._num_restarts < MAX_RESTARTS

    def start_again(self) -> None:
        """Its row, if it has one, is empty again: its tokens must be forwarded."""
        self.flights.clear()
        if self.row is not None:
            self._num_restarts += 1
            self.state = SequenceState.PREFILLING

    def release(self) -> int | None:
        """It has ended. Returns: the cache row to free; None if it has none."""
        row, self.row = self.row, None
        self.state = SequenceState.FINISHED
        return row

    def note_chosen(self) -> None:
        """A step gives it a row, or has it in its round."""
        self.num_passed_over = 0

    def note_passed_over(self) -> None:
        """A step chose others, although it was ready."""
        self.num_passed_over += 1

    @property
    def has_dear_grammar(self) -> bool:
        """Whether its grammar took more than is free, in one of the last rounds."""
        return self._num_cheap_rounds < FORGIVEN_AFTER

    def note_grammar(self, *, is_dear: bool) -> None:
        """A round has ended, in which its grammar took more than is free, or did not."""
        self._num_cheap_rounds = 0 if is_dear else self._num_cheap_rounds + 1

    def note_length(self, num_steps: int, reason: str) -> None:
        """A draft of so many steps is wanted, and for this reason not of more."""
        self.length_choice = f"{num_steps} {reason}"
        self.stats.num_spec_tokens = max(self.stats.num_spec_tokens, num_steps)

    def count_prediction(self, num_draft_tokens: int, num_accepted: int) -> None:
        """A round has verified a draft from the predicted text. Effects: changes `stats`."""
        self.stats.num_prediction_tokens += num_draft_tokens
        self.stats.num_accepted_prediction_tokens += num_accepted

    def count_round(
        self, num_draft_tokens: int, num_accepted: int, num_emitted: int, num_relaxed: int, now: float
    ) -> None:
        """A round has added tokens. Args: as `AcceptanceStats.add_round`. Effects: changes `stats`."""
        if self._first_token_s is None:
            self._first_token_s = now
            self.stats.time_to_first_token_s = now - self.arrived_s
        self.stats.generation_s = now - self._first_token_s
        self.stats.add_round(num_draft_tokens, num_accepted, num_emitted, num_relaxed)

    def extend(self, token_ids: tuple[int, ...], logprobs: list[TokenLogprob]) -> RoundOutput:
        """Commit the tokens of one verdict, up to and including the token that ends the answer.

        Args:
            token_ids: the accepted draft tokens and the target's own token after them.
            logprobs: one for each token, or empty if the request asks for none. Those returned have their offsets.
        Returns: the tokens that were added; fewer than given if the answer ended.
        Effects: extends `token_ids`, `counts`, `grammar` and the text, and shortens `forced`; sets `state` if the
            answer ended.
        """
        output = RoundOutput()
        self._num_restarts = 0
        for index, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            output.token_ids.append(token_id)
            if self.grammar is not None:
                self.grammar.commit(token_id)
            if self.forced and self.forced.pop(0) != token_id:
                self.forced, output.num_right = [], index
            offset = self._detokenizer.next_offset
            output.logprobs.extend(replace(each, text_offset=offset) for each in logprobs[index : index + 1])
            output.finish = self._finish_after(token_id)
            if output.finish is not None:
                self.state = SequenceState.FINISHED
                break
        if self.given_tree is not None and output.finish is None:
            self.state, output.finish = SequenceState.FINISHED, Finish("length")
        self.counts.append(output.token_ids)
        return output

    def _finish_after(self, token_id: int) -> Finish | None:
        """Why the answer ends with this token, if it does: end token, then stop string, end of the grammar, length."""
        if self.grammar is not None and self.grammar.failure:
            return Finish("error", f"{GRAMMAR_FAILED}: {self.grammar.failure}")
        is_complete = self.grammar is not None and self.grammar.has_ended
        may_end = is_complete or self.num_output_tokens >= self.sampling.min_tokens
        if token_id in self._end_token_ids and may_end:
            if token_id not in self._eos_token_ids:
                self._detokenizer.add(token_id)
            self._detokenizer.finish()
            return Finish("stop", None if token_id in self._eos_token_ids else token_id)
        match = self._detokenizer.add(token_id, check_stop=may_end)
        is_full = self.num_remaining <= 0
        if match is None and (is_complete or is_full):
            match = self._detokenizer.finish()
        if match is not None:
            return Finish("stop", match.stop)
        if is_complete:
            return Finish("stop")
        return Finish("length") if is_full else None

    def prompt_output(self, start: int, scores: Sequence[Score]) -> EngineOutput:
        """The message for the client about the prompt's tokens from `start` on, before there is any of the answer."""
        pairs = zip(self.token_ids[start:], scores, strict=False)
        return EngineOutput(
            self.request_id, [], "", prompt_logprobs=[PromptLogprob(token_id, *score) for token_id, score in pairs]
        )

    def output(self, added: RoundOutput) -> EngineOutput:
        """The message for the client. The last one of a request carries the statistics."""
        finish = added.finish
        return EngineOutput(
            request_id=self.request_id,
            token_ids=added.token_ids,
            text=self._detokenizer.take(),
            logprobs=added.logprobs if self.spec.logprobs is not None else None,
            finish_reason=finish.reason if finish else None,
            stop_reason=finish.stop_reason if finish else None,
            stats=self.stats if finish else None,
            verified=added.verified,
        )
