"""Grammars that wait to be compiled: owners of gateways share places and turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from starspec.engine.compiling import MAX_COMPILING, Compiling
from starspec.errors import CapacityError
from starspec.grammars.matcher import GrammarMatcher
from starspec.ids import PeerId, RequestId, RequestKey
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import RequestSpec, Submit

LIMIT_S = 10.0


class Slow:
    """Compiles the first grammar until it is told to go on. Notes the order."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self.order: list[str] = []

    def __call__(self, spec: RequestSpec) -> GrammarMatcher | None:
        assert spec.grammar is not None
        self.order.append(spec.grammar.text)
        self.has_begun.set()
        assert self.may_go_on.wait(LIMIT_S)
        return None


@contextmanager
def compiling() -> Iterator[tuple[Compiling, Slow]]:
    """With one grammar of the first owner at work."""
    slow = Slow()
    with closing(Compiling(slow, ())) as waiting:
        add(waiting, "a", "first")
        assert slow.has_begun.wait(LIMIT_S)
        try:
            yield waiting, slow
        finally:
            slow.may_go_on.set()


def add(waiting: Compiling, owner: str, name: str, connection: int = 0) -> RequestKey | None:
    spec = RequestSpec([1], SamplingSpec(), grammar=GrammarSpec("regex", name))
    return waiting.add(PeerId(f"{owner}{connection}".encode()), owner, Submit(RequestId(name), spec))


def order_of(waiting: Compiling, slow: Slow) -> list[str]:
    """In which order all that wait are compiled."""
    slow.may_go_on.set()
    limit_s = time.monotonic() + LIMIT_S
    while len(waiting):
        assert time.monotonic() < limit_s
        waiting.take()
        time.sleep(0.001)
    return slow.order


def test_an_owner_waits_for_one_grammar_of_another_however_many_that_one_sent() -> None:
    with compiling() as (waiting, slow):
        for number in range(6):
            add(waiting, "a", f"a{number}", connection=number % 3)
        for number in range(2):
            add(waiting, "b", f"b{number}")
        add(waiting, "c", "c0")
        assert order_of(waiting, slow)[1:5] == ["b0", "c0", "a1", "b1"]


def test_in_full_places_the_newest_of_the_owner_with_the_most_gives_way() -> None:
    with compiling() as (waiting, slow):
        for number in range(MAX_COMPILING - 1):
            add(waiting, "a", f"a{number}", connection=number % 2)
        with pytest.raises(CapacityError, match=f"{MAX_COMPILING} grammars are waiting"):
            add(waiting, "a", "more")
        newest = RequestKey(PeerId(b"a0"), RequestId(f"a{MAX_COMPILING - 2}"))
        assert add(waiting, "b", "b0") == newest
        assert len(waiting) == MAX_COMPILING
        order = order_of(waiting, slow)
        assert order[1] == "b0"
        assert newest.request_id not in order


def test_a_newcomer_gets_no_place_of_an_owner_that_has_hardly_more() -> None:
    with compiling() as (waiting, _):
        for number in range(MAX_COMPILING - 1):
            add(waiting, "ab"[number % 2], f"g{number}")
        with pytest.raises(CapacityError):
            add(waiting, "b", "more")


class Panic(BaseException):
    """What a library in Rust raises where it panics: no Exception either."""


def test_a_panic_of_the_library_is_an_error_of_its_request() -> None:
    def panic(_: RequestSpec) -> GrammarMatcher | None:
        raise Panic

    with closing(Compiling(panic, ())) as waiting:
        add(waiting, "a", "first")
        limit_s = time.monotonic() + LIMIT_S
        while not (done := waiting.take()):
            assert time.monotonic() < limit_s
            time.sleep(0.001)
        assert [type(each.grammar.exception()) for each in done] == [Panic]


def test_what_is_dropped_is_not_compiled() -> None:
    with compiling() as (waiting, slow):
        for number in range(3):
            add(waiting, "b", f"b{number}", connection=number)
        waiting.drop(RequestKey(PeerId(b"b1"), RequestId("b1")))
        waiting.drop_all(PeerId(b"b2"))
        assert order_of(waiting, slow) == ["first", "b0"]


def test_requests_that_come_and_go_queue_no_work_and_those_that_stay_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted: list[object] = []
    submit = ThreadPoolExecutor.submit

    def counted(worker: ThreadPoolExecutor, *work: Any) -> Any:
        submitted.append(work)
        return submit(worker, *work)

    with compiling() as (waiting, slow):
        monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
        for number in range(100):
            add(waiting, "b", f"gone{number}")
            waiting.drop(RequestKey(PeerId(b"b0"), RequestId(f"gone{number}")))
        assert len(submitted) == 1
        for number in range(3):
            add(waiting, "b", f"b{number}")
        assert len(submitted) == 3
        assert order_of(waiting, slow) == ["first", "b0", "b1", "b2"]
    with compiling() as (waiting, slow):
        add(waiting, "b", "b0")
        assert order_of(waiting, slow) == ["first", "b0"]
        add(waiting, "b", "b1")  # the worker has nothing to do
        assert order_of(waiting, slow) == ["first", "b0", "b1"]
