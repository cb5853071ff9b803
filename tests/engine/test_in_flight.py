"""Several rounds of one engine in flight: who is in them, and what an end, an abort or a failure in between changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from late import LateVerifier
from test_engine import OracleDrafts, finish, plain, spec_of
from toy import HashRunner, WordTokenizer

from starspec.config import TargetConfig
from starspec.engine.engine import TargetEngine
from starspec.engine.in_flight import MAX_CHUNKS
from starspec.ids import RequestId
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Ticket
from starspec.windows.window import Window
from starspec.wire.messages import EngineOutput


class WatchedVerifier(LateVerifier):
    """Notes the rows of each round, and fails when it is told to."""

    def __init__(self, num_polls: int, depth: int, num_rows: int) -> None:
        super().__init__(LocalVerifier(HashRunner(num_rows)), num_polls, depth)
        self.rounds: list[set[int]] = []
        self.can_run_rounds = True

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        if windows[0].judge is not None:
            if not self.can_run_rounds:
                raise RuntimeError("out of memory")
            self.rounds.append({each.segment.row for each in windows})
        return super().launch(windows, feature_layers)


def engine_over(verifier: LateVerifier) -> TargetEngine:
    return TargetEngine(verifier, WordTokenizer(), OracleDrafts(), TargetConfig(prefill_chunk=5), TargetStats())


def tokens_of(parts: Sequence[EngineOutput]) -> list[int]:
    return [token for part in parts for token in part.token_ids]


def all_running(verifier: LateVerifier, prompts: dict[str, list[int]], num: int) -> TargetEngine:
    """An engine whose sequences are all in flight, and have no token yet."""
    engine = engine_over(verifier)
    for name, prompt in prompts.items():
        engine.submit(RequestId(name), spec_of(prompt, num))
        assert not engine.step()
    return engine


def test_rounds_in_flight_share_the_sequences_and_none_is_in_two() -> None:
    verifier = WatchedVerifier(num_polls=20, depth=2, num_rows=4)
    engine = engine_over(verifier)
    prompts = {name: [1, 2, ord(name) % 60] for name in "abcd"}
    for name, prompt in prompts.items():
        engine.submit(RequestId(name), spec_of(prompt, 40))
    answers = finish(engine)
    assert {name: tokens_of(parts) for name, parts in answers.items()} == {
        name: plain(prompt, 40) for name, prompt in prompts.items()
    }
    pairs = list(zip(verifier.rounds[2:-3], verifier.rounds[3:-2], strict=True))  # while all run
    assert len(pairs) > 8
    assert all(first | second == {0, 1, 2, 3} and not first & second for first, second in pairs)
    assert verifier.most_in_flight == 2 + MAX_CHUNKS


def test_an_abort_in_flight_frees_the_row_at_once_and_what_lands_is_nobodys() -> None:
    verifier = WatchedVerifier(num_polls=9, depth=3, num_rows=1)
    engine = all_running(verifier, {"a": [1]}, 30)
    engine.abort(RequestId("a"))
    assert verifier.cache.num_free_rows == 1
    engine.check_integrity()
    engine.submit(RequestId("b"), spec_of([7, 8, 9, 4, 5, 6, 7], 12))  # its chunk flies behind the round of `a`
    answers = finish(engine)
    assert {name: tokens_of(parts) for name, parts in answers.items()} == {"b": plain([7, 8, 9, 4, 5, 6, 7], 12)}
    assert engine.stats.acceptance.num_emitted_tokens == 12


def test_a_round_whose_sequences_have_all_ended_is_none() -> None:
    verifier = WatchedVerifier(num_polls=2, depth=1, num_rows=2)
    engine = all_running(verifier, {"a": [1]}, 30)
    assert not engine.step()
    assert verifier.most_in_flight == 1
    engine.abort(RequestId("a"))
    engine.submit(RequestId("b"), spec_of([7], 1))
    finish(engine)
    assert engine.stats.num_rounds == engine.stats.round.count == 1


def test_an_abort_of_a_prompt_in_flight_commits_nothing_to_the_next_one() -> None:
    verifier = WatchedVerifier(num_polls=9, depth=3, num_rows=1)
    engine = engine_over(verifier)
    engine.submit(RequestId("a"), spec_of([1, 2, 3, 4, 5, 6, 7, 8], 5))
    engine.step()
    engine.abort(RequestId("a"))
    engine.submit(RequestId("b"), spec_of([9, 8, 7], 12))
    assert tokens_of(finish(engine)["b"]) == plain([9, 8, 7], 12)


def test_a_launch_that_fails_leaves_the_others_in_flight() -> None:
    verifier = WatchedVerifier(num_polls=9, depth=3, num_rows=2)
    engine = all_running(verifier, {"a": [1], "b": [2]}, 20)
    verifier.can_run_rounds = False
    with pytest.raises(RuntimeError):
        engine.step()
    failed = engine.fail_step("internal error")
    assert [(each.request_id, each.finish_reason) for each in failed.values()] == [("b", "error")]
    engine.check_integrity()
    verifier.can_run_rounds = True
    assert tokens_of(finish(engine)["a"]) == plain([1], 20)


def test_a_round_that_landed_before_a_launch_failed_keeps_its_tokens() -> None:
    verifier = WatchedVerifier(num_polls=1, depth=3, num_rows=3)
    engine = engine_over(verifier)
    engine.submit(RequestId("a"), spec_of([1], 20))
    engine.submit(RequestId("b"), spec_of([2], 20))
    assert not engine.step()
    assert not engine.step()  # a round of `a` is in flight
    engine.submit(RequestId("c"), spec_of([3, 4], 20))
    verifier.can_run_rounds = False
    # the round of `a` lands, the chunk of `c` is launched, the next round of `a` fails
    with pytest.raises(RuntimeError):
        engine.step()
    told = {each.request_id: (each.token_ids, each.finish_reason) for each in engine.fail_step("error").values()}
    assert told == {"a": (plain([1], 5), "error")}
    verifier.can_run_rounds = True
    assert tokens_of(finish(engine)["c"]) == plain([3, 4], 20)
