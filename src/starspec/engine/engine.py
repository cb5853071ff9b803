"""The target's engine: requests in, outputs out, one step at a time. No sockets, no threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import get_args

from starspec.config import Policy, TargetConfig
from starspec.engine.detokenize import Decodes, Detokenizer
from starspec.engine.drafts import Drafts
from starspec.engine.endings import Endings
from starspec.engine.in_flight import InFlight
from starspec.engine.prefill import LaunchedChunk, Prefiller
from starspec.engine.request_checks import check_against_hub, check_request
from starspec.engine.request_table import RequestTable
from starspec.engine.round import LaunchedRound, RoundRunner
from starspec.engine.sequence import SequenceState, TargetSequence
from starspec.engine.step_outputs import StepOutputs
from starspec.errors import CapacityError, QueueFull, RequestError
from starspec.grammars.compile import Grammars
from starspec.grammars.matcher import GrammarMatcher
from starspec.ids import LOCAL, PeerId, RequestId, RequestKey
from starspec.policy.estimators import WindowRate
from starspec.policy.queue_turns import Sender
from starspec.policy.target_batch import ScheduleSnapshot, StepPlan
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds, Relaxation
from starspec.stats import TargetStats
from starspec.tracing import Tracer
from starspec.windows.batching import make_scheduler
from starspec.windows.verifier import Landed, Lost, Verifier
from starspec.wire.messages import EngineOutput, RequestSpec

NO_GRAMMARS = "this target cannot hold answers to a grammar: a model in stages cannot, nor can old versions"
RATE_WINDOW_S = 5.0
LANDING_WAIT_S = 0.01  # so long a step waits for verdicts; then it looks at its hub and its gateways again


class TargetEngine:
    """Batches requests over one model, with the batching method of the config.

    Every submitted request ends as exactly one of finished, failed or aborted. If it fails by itself, in its grammar,
    its law or its text, the others of its round go on.
    """

    def __init__(
        self,
        verifier: Verifier,
        tokenizer: Decodes,
        drafts: Drafts,
        config: TargetConfig,
        stats: TargetStats,
        clock: Callable[[], float] = time.monotonic,
        *,
        trace: Tracer | None = None,
        thresholds: KeyThresholds = DEFAULT_THRESHOLDS,
        policies: Collection[Policy] = get_args(Policy),
        grammars: Grammars | None = None,
    ) -> None:
        """Args:
        thresholds: which tokens relaxed requests verify strictly.
        policies: length policies that a request may ask for.
        grammars: compiles those of requests; None = no request may have one. Stages know none.
        """
        self.verifier = verifier
        self.drafts = drafts
        self.stats = stats
        self._tokenizer = tokenizer
        self._config = config
        self._clock = clock
        self._trace = trace
        self._thresholds = thresholds
        self._policies = policies
        self._grammars = grammars
        self._prefills = Prefiller(verifier, drafts, clock, config.prefill_chunk, trace)
        self._rounds = RoundRunner(verifier, drafts, stats, clock, trace)
        self._scheduler = make_scheduler(config)
        self._requests = RequestTable(verifier.cache, config.num_rows, config.max_num_queued_reqs)
        self._in_flight = InFlight(verifier, drafts, self._requests)
        self._landed: deque[Landed | Lost] = deque()  # and not finished yet
        self._at_work: Sequence[TargetSequence] = ()  # of the chunk or round that is begun or finished just now
        self._outputs = StepOutputs()  # so far
        self._endings = Endings(self._requests, drafts, stats, self._outputs, clock)
        self._rate = WindowRate(RATE_WINDOW_S, clock())  # of tokens

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    @property
    def has_grammars(self) -> bool:
        """Whether it can hold answers to grammars."""
        return self._grammars is not None

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the model's, for which a grammar can ask."""
        return () if self._grammars is None else self._grammars.special_tokens

    @property
    def num_running(self) -> int:
        return self._requests.num_running

    @property
    def num_waiting(self) -> int:
        return self._requests.num_waiting

    @property
    def max_num_requests(self) -> int:
        """As `RequestTable`."""
        return self._requests.max_num_requests

    @property
    def has_room(self) -> bool:
        """As `RequestTable`."""
        return self._requests.has_room

    def submit(
        self,
        request_id: RequestId,
        spec: RequestSpec,
        peer: PeerId = LOCAL,
        owner: str = "",
        grammar: GrammarMatcher | None = None,
    ) -> RequestKey | None:
        """Add a request. In a full queue, one of an owner with more requests may give way to it.

        Args:
            request_id: unique among the peer's requests that have not ended.
            peer: the gateway that sends it.
            owner: of the gateway, as `policy/queue_turns.py` says.
            grammar: that of the spec, compiled; None = it is compiled here, if there is one.
        Returns: the waiting request that gave way, which is aborted; None = none.
        Raises: RequestError if the request can never run; QueueFull if the queue is at its limit; CapacityError if
            nothing can run now; whatever the tokenizer raises for the prompt.
        """
        key = RequestKey(peer, request_id)
        try:
            if self._requests.get(key) is not None:
                raise RequestError(f"request id {request_id} is in use", "request_id")
            self.check(spec)
            if self.verifier.refusal is not None:
                raise CapacityError(self.verifier.refusal)
            if grammar is None:
                grammar = self.compile(spec)
            late = None if self.has_room else self._requests.who_gives_way(Sender(owner, peer))
            if late is None and not self.has_room:
                raise QueueFull(f"{self._requests.num_queued} requests are waiting for a cache row; try again later")
            sequence = self._sequence(key, spec, owner, grammar)
        except Exception:
            self.note_rejected()
            raise
        if late is not None:
            self.abort(late.request_id, late.peer)
        self._requests.add(sequence)
        return late

    def note_rejected(self) -> None:
        """A request was refused."""
        self.stats.num_rejected += 1

    def _sequence(
        self, key: RequestKey, spec: RequestSpec, owner: str, grammar: GrammarMatcher | None
    ) -> TargetSequence:
        """A sound request, as it waits for a row."""
        info = self.verifier.info
        num_prompt = len(spec.prompt_token_ids)
        max_tokens = info.max_model_len if spec.max_tokens is None else spec.max_tokens
        detokenizer = Detokenizer(
            self._tokenizer,
            spec.prompt_token_ids,
            stop=spec.stop,
            include_stop=spec.include_stop_str_in_output,
            skip_special_tokens=spec.skip_special_tokens,
        )
        relaxation = Relaxation(spec.relaxed_tau, self._thresholds) if spec.relaxed_tau > 0.0 else None
        return TargetSequence(
            key,
            spec,
            max_len=min(num_prompt + max_tokens, info.max_model_len),
            eos_token_ids=info.eos_token_ids,
            detokenizer=detokenizer,
            arrived_s=self._clock(),
            rule=self.drafts.rule.relaxed() if relaxation else self.drafts.rule,
            relaxation=relaxation,
            owner=owner,
            grammar=grammar,
            is_exact=self._config.pipe.is_exact,
        )

    def abort(self, request_id: RequestId, peer: PeerId = LOCAL) -> None:
        """Stop a request and free its resources. An unknown id is ignored."""
        sequence = self._requests.get(RequestKey(peer, request_id))
        if sequence is not None:
            self._endings.abort(sequence)

    @property
    def peers(self) -> set[PeerId]:
        """The peers with requests that have not ended."""
        return self._requests.peers

    def requests_of(self, peer: PeerId) -> list[RequestId]:
        """As `RequestTable`."""
        return self._requests.requests_of(peer)

    def step(self) -> dict[RequestKey, EngineOutput]:
        """Admit sequences, launch one prefill chunk and one round, finish what has landed.

        A sequence in flight can be launched again if its next window can stand on those in flight (`flights.py`). While
        rounds are in flight, those are left out whose drafts may still come in time. If there is nothing to launch,
        wait for a landing.

        Returns: the output of each sequence of the rounds that landed, and of each chunk whose log-probabilities are
            wanted.
        """
        if self._in_flight or not self.verifier.depth:
            self.drafts.poll()
        self._land(0.0)
        if not self._launch() and (self._in_flight or not self.verifier.depth):
            self._land(LANDING_WAIT_S)
        return self._outputs.take()

    def _launch(self) -> bool:
        """Returns: whether there was something to launch, and room for it in flight."""
        self._at_work = ()
        can_round, can_prefill = self._in_flight.can_take_round, self._in_flight.can_take_chunk
        if not (can_round or can_prefill):
            return False
        started_s = self._clock()
        snapshot = self._in_flight.snapshot(self._that_let_others_run(), can_round=can_round)
        plan = self._scheduler.choose(snapshot)
        num_left_out = self._count_passed_over(snapshot, plan)
        scheduled_s = self._clock()
        if plan.admit:
            self._admit(plan.admit)
        prefill = self._requests.get(plan.prefill) if can_prefill and plan.prefill is not None else None
        if prefill is not None:
            self._launch_chunk(prefill)
        if not plan.decode:
            self.drafts.poll()
            return prefill is not None
        batch = self._requests.sorted_by_row(plan.decode)
        if not batch:  # all was lost just now
            return True
        self._at_work = batch
        num_others, are_presumed = self._in_flight.num_live, self._in_flight.num_windows > 1
        launched = self._rounds.begin(batch, num_others, are_presumed=are_presumed)
        self._endings.fail(self._rounds.take_failures())
        if launched is None:
            return prefill is not None
        self._in_flight.add(launched)
        self._land(0.0)
        self.stats.batch.schedule_s += scheduled_s - started_s
        self.stats.batch.grouping_wait_s += num_left_out * (self._clock() - started_s)
        return True

    def _admit(self, keys: Sequence[RequestKey]) -> None:
        """Give these requests rows, and let drafts begin for those that have not failed."""
        self._at_work = admitted = self._requests.admit(keys, self._clock())
        self._rounds.look_ahead(admitted)
        self._endings.fail(self._rounds.take_failures())
        self.drafts.open([each for each in admitted if each.row is not None])
        self._at_work = ()

    def _launch_chunk(self, sequence: TargetSequence) -> None:
        self._at_work = [sequence]
        launched = self._prefills.begin(sequence)
        if launched is not None:
            self._requests.note_chunk(sequence)
            self._in_flight.add(launched)
            self._land(0.0)

    def _land(self, timeout_s: float) -> None:
        """Finish what has landed, waiting at most so long for the first. Effects: adds to the step's outputs."""
        self._at_work = ()
        if not self._landed:
            self._landed.extend(self.verifier.poll(timeout_s))
        while self._landed:
            landed = self._landed.popleft()
            if isinstance(landed, Lost):
                self._in_flight.clear()
                self._endings.lose(landed)
                continue
            launched = self._in_flight.take(landed.ticket)
            self._at_work = launched.batch
            if isinstance(launched, LaunchedChunk):
                output = self._prefills.finish(launched, landed)
                if output is not None:
                    self._outputs.add(launched.sequence.key, output)
            else:
                self._finish_round(launched, landed)

    def _finish_round(self, launched: LaunchedRound, landed: Landed) -> None:
        num_tokens = 0
        for sequence, output in self._rounds.finish(launched, landed):
            self._outputs.add(sequence.key, output)
            num_tokens += len(output.token_ids)
            if sequence.state is SequenceState.FINISHED:
                self.stats.num_finished += 1
                self._trace_answer(sequence)
                self._requests.release(sequence)
        self._update_rate(num_tokens)
        self._endings.fail(self._rounds.take_failures())

    def _trace_answer(self, sequence: TargetSequence) -> None:
        """From the arrival of its request to its end."""
        if self._trace is not None:
            self._trace.slice("answers", "answer", sequence.arrived_s, self._clock(), tokens=sequence.num_output_tokens)

    def keep_links(self) -> None:
        """Call it now and then while there is no work, so that hub and stages know that this target lives."""
        self.drafts.poll()
        self._land(0.0)

    def fail_step(self, reason: str) -> dict[RequestKey, EngineOutput]:
        """After an exception in a step: end the requests of the launch that raised, so that the others can go on.

        These are the sequences that were admitted, or those of the prefill chunk or the round that was begun or
        finished. If it was none of these, they are all sequences that hold a cache row.

        Returns: their last outputs, and those of rounds that the step had finished.
        """
        self._endings.fail_step(self._at_work, reason)
        return self._outputs.take()

    def refresh_rate(self) -> None:
        """Update `stats.tokens_per_s` to now. Call it before reporting."""
        self._update_rate(0)

    def check_integrity(self) -> None:
        """As `RequestTable`."""
        self._requests.check_integrity()

    def check(self, spec: RequestSpec) -> None:
        """Raises: RequestError, naming the parameter, if the request can never run here."""
        check_request(spec, self.verifier.info, self._config, self._policies)
        check_against_hub(spec, self._policies, self.drafts.hub_method)

    def compile(self, spec: RequestSpec) -> GrammarMatcher | None:
        """The grammar of a request; None if it has none. It may take a second, and may be called on another thread.

        Raises: RequestError if this target cannot hold an answer to it.
        """
        if spec.grammar is None:
            return None
        if self._grammars is None:
            raise RequestError(NO_GRAMMARS, "structured_outputs")
        return self._grammars.compile(spec.grammar)

    def _that_let_others_run(self) -> set[TargetSequence]:
        """Running sequences that are in no round now, since their grammars take the time of others."""
        if not self._rounds.grammar_turns.must_wait(self._clock()):
            return set()
        with_rows = self._requests.with_rows
        dear = {each for each in with_rows if each.has_dear_grammar}
        return dear if len(dear) < len(with_rows) else set()

    def _count_passed_over(self, snapshot: ScheduleSnapshot, plan: StepPlan) -> int:
        """As `RequestTable.note_plan`. Returns: how many could be in this step's round and are not."""
        left_out = self._requests.note_plan(snapshot, plan)
        waits = [each.num_passed_over for each in left_out]
        self.stats.batch.longest_wait_rounds = max(self.stats.batch.longest_wait_rounds, *waits, 0)
        return len(left_out)

    def _update_rate(self, num_tokens: int) -> None:
        now = self._clock()
        self._rate.add(num_tokens, now)
        self.stats.tokens_per_s = self._rate.value(now)
