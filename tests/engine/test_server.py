"""A target behind its real serving socket: requests, refusals, aborts, leases, draining."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import zmq
from torch import Tensor
from toy import VOCAB_SIZE, HashRunner, WordTokenizer, next_of

from starspec.audit import AuditLog
from starspec.cache.memory import memory_of
from starspec.config import TargetConfig
from starspec.engine.compiling import MAX_COMPILING
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.server import TargetServer
from starspec.errors import RequestError
from starspec.grammars.matcher import FittedDraft
from starspec.ids import RequestId
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Ask,
    EngineOutput,
    GatewayToTarget,
    Rejected,
    RequestSpec,
    Submit,
    TargetStatus,
    TargetToGateway,
)
from starspec.wire.transports.serving_server import ServingServer

pytestmark = pytest.mark.system


class FragileRunner(HashRunner):
    """Fails in its forward once it is told to."""

    is_broken = False
    error: BaseException = RuntimeError("the accelerator fell off the bus")

    def forward(self, segments, feature_layers=()):  # type: ignore[no-untyped-def]
        if self.is_broken:
            self.is_broken = False
            raise self.error
        time.sleep(0.001)  # a step takes time, as a model's does
        return super().forward(segments, feature_layers)


class Panic(BaseException):
    """What a library in Rust raises where it panics: no Exception either."""


class PickyTokenizer(WordTokenizer):
    """Cannot decode one token."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        if BAD_TOKEN in token_ids:
            raise Panic
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


BAD_TOKEN = 61
WORDS = WordTokenizer()
OPEN: list[zmq.Socket[bytes]] = []  # sockets of this test's gateways


class Gateway:
    """A bare DEALER socket that speaks the serving link."""

    def __init__(self, server: TargetServer, address: str = "127.0.0.1") -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        OPEN.append(self.socket)
        self.socket.linger = 0
        self.socket.connect(server.address.replace("tcp://", f"tcp://{address}:0;"))
        self.decoder: Decoder[TargetToGateway] = Decoder(TargetToGateway)

    def send(self, *messages: GatewayToTarget) -> None:
        self.socket.send_multipart([encode(each) for each in messages])

    def receive(self) -> list[TargetToGateway]:
        assert self.socket.poll(5000), "the target said nothing"
        return self.decoder.decode_all(self.socket.recv_multipart())

    def answer(self, request_id: str) -> list[EngineOutput]:
        parts: list[EngineOutput] = []
        while not parts or parts[-1].finish_reason is None:
            parts += [
                each for each in self.receive() if isinstance(each, EngineOutput) and each.request_id == request_id
            ]
        return parts

    def status(self) -> TargetStatus:
        self.send(Ask(PROTOCOL_VERSION))
        while True:
            for each in self.receive():
                if isinstance(each, TargetStatus):
                    return each

    def status_when_idle(self) -> TargetStatus:
        """Ask until nothing runs; each answer comes from a later turn of the target's loop."""
        for _ in range(2000):
            status = self.status()
            if status.num_running == status.num_waiting == 0:
                return status
        raise AssertionError("the target never came to rest")


class Clock:
    """The real one, which may be put forward."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@contextmanager
def serving(
    clock: Callable[[], float] = time.monotonic,
    grammars: SlowGrammars | None = None,
    tokenizer: WordTokenizer = WORDS,
    audit: AuditLog | None = None,
    **config: float,
) -> Iterator[tuple[TargetServer, FragileRunner]]:
    settings = TargetConfig(port=0, prefill_chunk=5, **config)  # type: ignore[arg-type]
    runner = FragileRunner(num_rows=2, max_len=2000)
    engine = TargetEngine(LocalVerifier(runner), tokenizer, NoDrafts(), settings, TargetStats(), grammars=grammars)
    server = TargetServer(settings, engine, ServingServer("127.0.0.1", 0), audit, clock)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server, runner
    finally:
        server.stop()
        thread.join(10)
        while OPEN:
            OPEN.pop().close()
        assert not thread.is_alive()


def submit(name: str, prompt: list[int], num: int) -> Submit:
    return Submit(RequestId(name), RequestSpec(prompt, SamplingSpec(temperature=0.0), max_tokens=num))


def plain(prompt: list[int], num: int) -> list[int]:
    path = list(prompt)
    for _ in range(num):
        path.append(next_of(path))
    return path[len(prompt) :]


def test_two_gateways_may_use_the_same_request_ids() -> None:
    with serving() as (server, _):
        first, second = Gateway(server), Gateway(server)
        first.send(submit("r", [1, 2], 9))
        second.send(submit("r", [3], 7))
        assert [t for part in first.answer("r") for t in part.token_ids] == plain([1, 2], 9)
        assert [t for part in second.answer("r") for t in part.token_ids] == plain([3], 7)


def test_a_target_tells_what_its_cache_takes() -> None:
    with serving() as (server, runner):
        assert server.memory == memory_of(2, runner.cache.num_bytes)


def test_what_cannot_run_is_rejected_by_name_and_nothing_else_suffers() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        gateway.send(submit("good", [1, 2], 30), submit("bad", [], 3), submit("good", [1], 3))
        refusals = [each for each in gateway.receive() if isinstance(each, Rejected)]
        refusals += [each for each in gateway.receive() if isinstance(each, Rejected)]
        assert [(each.request_id, each.param, each.status) for each in refusals] == [
            ("bad", "prompt", 400),
            ("good", "request_id", 400),
        ]
        assert [t for part in gateway.answer("good") for t in part.token_ids][-5:] == plain([1, 2], 30)[-5:]


def test_the_audit_log_tells_of_requests_and_never_of_their_tokens(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with serving(audit=AuditLog(str(file), "t0")) as (server, _):
        gateway = Gateway(server)
        gateway.send(submit("good", [43, 44, 45], 2), submit("bad", [], 3))
        gateway.answer("good")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [{key: value for key, value in line.items() if key != "time"} for line in lines]
    assert told == [
        {"process": "t0", "event": "request", "request_id": "good", "num_tokens": 3},
        {"process": "t0", "event": "request_refused", "request_id": "bad", "status": 400},
    ]


def test_a_relaxed_request_is_rejected_unless_the_target_allows_it() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        spec = RequestSpec([1, 2], SamplingSpec(temperature=0.0), max_tokens=3, relaxed_tau=0.2)
        gateway.send(Submit(RequestId("relaxed"), spec))
        (refusal,) = gateway.receive()
        assert isinstance(refusal, Rejected)
        assert (refusal.status, refusal.param) == (400, "speculative.relaxed")
        assert "--allow-relaxed" in refusal.message


def test_an_abort_frees_the_row() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        gateway.send(submit("r", [1, 2], 1900))
        gateway.receive()
        gateway.send(Abort(RequestId("r")))
        status = gateway.status_when_idle()
        assert (status.num_free_rows, status.stats.num_aborted) == (2, 1)


def test_requests_of_a_gateway_that_falls_silent_are_aborted() -> None:
    clock = Clock()
    with serving(clock, lease_s=2.0) as (server, _):
        silent, other = Gateway(server), Gateway(server)
        silent.send(submit("r", [1, 2], 1900))
        silent.receive()
        clock.ahead_s = 2.1
        assert other.status_when_idle().stats.num_aborted == 1
        said = silent.receive()
        while said[-1].finish_reason is None:  # it was there all the time, and hears what became of its request
            said = silent.receive()
        assert (said[-1].request_id, said[-1].finish_reason) == (RequestId("r"), "abort")


def test_a_gateway_that_fills_the_queue_does_not_keep_another_one_out() -> None:
    with serving(max_num_queued_reqs=20) as (server, _):
        greedy, honest = Gateway(server), Gateway(server)
        greedy.send(*(submit(f"r{number}", [1, number], 200) for number in range(22)))
        greedy.receive()
        honest.send(submit("honest", [3], 7))
        assert [t for part in honest.answer("honest") for t in part.token_ids] == plain([3], 7)
        said: dict[str, object] = {}
        while len(said) < 22:
            for each in greedy.receive():
                if isinstance(each, Rejected) or each.finish_reason is not None:
                    said[each.request_id] = each
        late = [each for each in said.values() if isinstance(each, Rejected)]
        assert [(each.request_id, each.status) for each in late] == [("r21", 503)]
        assert "other gateways have fewer requests" in late[0].message


def test_an_address_with_many_connections_gets_no_more_rows_than_another() -> None:
    with serving(max_num_queued_reqs=60) as (server, _):
        greedy = [Gateway(server, "127.0.0.2") for _ in range(20)]
        for gateway in greedy:
            gateway.send(submit("r", [1, 2], 200))
            gateway.status()
        honest = Gateway(server, "127.0.0.3")
        honest.send(submit("r", [3], 300))
        assert [t for part in honest.answer("r") for t in part.token_ids] == plain([3], 300)
        assert sum(bool(gateway.socket.poll(0)) for gateway in greedy) < 10, "two rows at first, then one beside it"


def test_a_short_prompt_does_not_wait_for_a_long_one_of_another_address() -> None:
    with serving() as (server, _):
        greedy, honest = Gateway(server, "127.0.0.2"), Gateway(server, "127.0.0.3")
        greedy.send(submit("long", [1] * 1900, 7))
        while not greedy.status().num_running:
            pass
        honest.send(submit("r", [3] * 20, 7))
        assert [t for part in honest.answer("r") for t in part.token_ids] == plain([3] * 20, 7)
        assert not greedy.socket.poll(0)
        assert [t for part in greedy.answer("long") for t in part.token_ids] == plain([1] * 1900, 7)


def test_only_gateways_with_requests_are_remembered() -> None:
    with serving() as (server, _):
        busy = Gateway(server)
        busy.send(submit("r", [1, 2], 1900))
        busy.receive()
        for _ in range(20):
            passing = Gateway(server)
            passing.send(Abort(RequestId("nothing")))
            passing.status()
        assert len(server._heard_s) == 1
        busy.send(Abort(RequestId("r")))
        busy.status_when_idle()
        busy.status()  # of a later turn
        assert not server._heard_s


def test_a_prompt_that_the_tokenizer_cannot_decode_is_refused_and_the_target_goes_on() -> None:
    with serving(tokenizer=PickyTokenizer()) as (server, _):
        gateway = Gateway(server)
        gateway.send(submit("r", [1, 2], 30), submit("s", [1, BAD_TOKEN], 5), submit("t", [3], 7))
        refusal, parts = None, dict[str, list[EngineOutput]](r=[], t=[])
        while refusal is None or not all(each and each[-1].finish_reason for each in parts.values()):
            for each in gateway.receive():
                if isinstance(each, Rejected):
                    refusal = each
                else:
                    parts[each.request_id].append(each)
        assert refusal == Rejected(RequestId("s"), "internal error", None, 500)
        assert [t for part in parts["r"] for t in part.token_ids] == plain([1, 2], 30)
        assert [t for part in parts["t"] for t in part.token_ids] == plain([3], 7)


@pytest.mark.parametrize("error", [FragileRunner.error, Panic()], ids=type)
def test_a_step_that_fails_ends_its_requests_and_the_target_goes_on(error: BaseException) -> None:
    with serving() as (server, runner):
        gateway, runner.error = Gateway(server), error
        gateway.send(submit("r", [1, 2], 1900))
        gateway.receive()
        runner.is_broken = True
        assert gateway.answer("r")[-1].finish_reason == "error"
        gateway.send(submit("s", [1, 2], 5))
        assert [t for part in gateway.answer("s") for t in part.token_ids] == plain([1, 2], 5)


def test_the_status_counts_what_gateways_sent_that_nobody_can_read() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        gateway.socket.send(b"\xc1")
        assert gateway.status().stats.num_frames_rejected == 1


def test_the_status_counts_what_was_for_a_gateway_that_has_left() -> None:
    with serving() as (server, _):
        leaving, asking = Gateway(server), Gateway(server)
        leaving.send(submit("r", [1, 2], 1900))
        leaving.receive()
        leaving.socket.close()
        stats = asking.status_when_idle().stats
        assert (stats.num_dropped, stats.num_aborted) == (1, 1)


def test_a_target_that_stops_says_so_in_its_status() -> None:
    with serving() as (server, _):
        busy, asking = Gateway(server), Gateway(server)
        busy.send(submit("r", [1, 2], 1900))
        busy.receive()
        assert not asking.status().is_stopping
        server.stop()
        assert asking.status().is_stopping
        busy.send(Abort(RequestId("r")))


def test_stopping_drains_and_refuses_newcomers() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        gateway.send(submit("r", [1, 2], 400))
        gateway.receive()
        server.stop()
        gateway.send(submit("late", [1], 5))
        tokens, refused = [], []
        while len(tokens) < 399:
            for each in gateway.receive():
                tokens += each.token_ids if isinstance(each, EngineOutput) else []
                refused += [each] if isinstance(each, Rejected) else []
        assert tokens == plain([1, 2], 400)[-len(tokens) :]
        assert [(each.request_id, each.status) for each in refused] == [("late", 503)]


class SlowGrammars:
    """Compiles when it is told to, for the toy's words."""

    special_tokens = ("<w1>",)

    def __init__(self) -> None:
        self.may_compile = threading.Event()

    def compile(self, spec: GrammarSpec) -> OnlyWord:
        assert self.may_compile.wait(10)
        if not spec.text.isdecimal():
            raise RequestError(f"structured_outputs.regex: {spec.text}", "structured_outputs.regex")
        if spec.text == "0":
            raise ArithmeticError("a bug of ours")
        return OnlyWord(int(spec.text))


class OnlyWord:
    """A grammar of one word, again and again."""

    failure, has_ended = "", False

    def __init__(self, word: int) -> None:
        self.word = word

    def allowed(self, path: Sequence[int]) -> Tensor:
        return torch.arange(VOCAB_SIZE) == self.word

    def fit(self, tree: DraftTree, max_forced_depth: int, before: Sequence[int] = ()) -> FittedDraft:
        return FittedDraft(tree, tree.num_draft_tokens)

    def take_spent_s(self) -> float:
        return 0.0

    def commit(self, token_id: int) -> None:
        assert token_id == self.word


def constrained(name: str, text: str, num: int = 3) -> Submit:
    spec = RequestSpec([1, 2], SamplingSpec(temperature=0.0), max_tokens=num, grammar=GrammarSpec("regex", text))
    return Submit(RequestId(name), spec)


def test_a_grammar_is_compiled_while_others_are_answered() -> None:
    grammars = SlowGrammars()
    with serving(grammars=grammars) as (server, _):
        gateway = Gateway(server)
        gateway.send(constrained("slow", "7"), submit("r", [1, 2], 9))
        assert [t for part in gateway.answer("r") for t in part.token_ids] == plain([1, 2], 9)
        grammars.may_compile.set()
        assert [t for part in gateway.answer("slow") for t in part.token_ids] == [7, 7, 7]


def test_a_request_that_is_aborted_while_its_grammar_is_compiled_never_runs() -> None:
    grammars = SlowGrammars()
    with serving(grammars=grammars) as (server, _):
        gateway = Gateway(server)
        gateway.send(constrained("gone", "7"), constrained("next", "8"), Abort(RequestId("gone")))
        assert gateway.status().num_running == 0
        grammars.may_compile.set()
        assert [t for part in gateway.answer("next") for t in part.token_ids] == [8, 8, 8]
        assert gateway.status_when_idle().stats.num_finished == 1


def test_a_grammar_that_is_not_compiled_is_refused_and_counted() -> None:
    grammars = SlowGrammars()
    grammars.may_compile.set()
    with serving(grammars=grammars) as (server, _):
        gateway = Gateway(server)
        for text, param in (("wrong", "structured_outputs.regex"), ("0", "structured_outputs")):
            gateway.send(constrained(text, text))
            (refusal,) = gateway.receive()
            assert isinstance(refusal, Rejected)
            assert (refusal.request_id, refusal.status, refusal.param) == (text, 400, param)
        assert gateway.status().stats.num_rejected == 2


def test_a_grammar_that_asks_for_a_special_token_of_the_model_passes_its_trial() -> None:
    grammars = SlowGrammars()
    grammars.may_compile.set()
    with serving(grammars=grammars) as (server, _):
        gateway = Gateway(server)
        for token, complaint in (("<w1>", "structured_outputs.regex: start: <w1>"), ("<w2>", "unknown special token")):
            spec = RequestSpec([1, 2], SamplingSpec(), grammar=GrammarSpec("grammar", f"start: {token}"))
            gateway.send(Submit(RequestId(token), spec))
            (refusal,) = gateway.receive()  # the toy's grammars know words only
            assert isinstance(refusal, Rejected)
            assert complaint in refusal.message


def test_only_so_many_grammars_wait() -> None:
    grammars = SlowGrammars()
    with serving(grammars=grammars) as (server, _):
        gateway = Gateway(server)
        for number in (*range(MAX_COMPILING + 1), 0):
            gateway.send(constrained(f"r{number}", "7"))
        refusals = [*gateway.receive(), *gateway.receive()]
        assert [(each.request_id, each.status) for each in refusals if isinstance(each, Rejected)] == [
            (f"r{MAX_COMPILING}", 503),
            ("r0", 400),
        ]
        grammars.may_compile.set()


def test_in_full_places_a_grammar_of_another_gateway_takes_the_place_of_the_newest() -> None:
    grammars = SlowGrammars()
    with serving(grammars=grammars) as (server, _):
        greedy, honest = Gateway(server), Gateway(server)
        greedy.send(*[constrained(f"r{number}", "7") for number in range(MAX_COMPILING)])
        assert greedy.status().num_running == 0  # all of them have arrived
        honest.send(constrained("honest", "8"))
        (refusal,) = greedy.receive()
        assert isinstance(refusal, Rejected)
        assert (refusal.request_id, refusal.status) == (f"r{MAX_COMPILING - 1}", 503)
        grammars.may_compile.set()
        assert [t for part in honest.answer("honest") for t in part.token_ids] == [8, 8, 8]


def test_a_target_without_grammars_says_so() -> None:
    with serving() as (server, _):
        gateway = Gateway(server)
        gateway.send(constrained("r", "7"))
        (refusal,) = gateway.receive()
        assert isinstance(refusal, Rejected)
        assert "cannot hold answers to a grammar" in refusal.message
