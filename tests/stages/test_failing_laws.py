"""A law that raises where the logits are, at the last stage, ends its own request, and no other one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from memory_pipe import MemoryPipe
from stage_servers import addresses, pipe_of, serving
from structlog.testing import capture_logs
from target_over_stages import COUNTING, GREEDY, NUM_STAGES, Target, Words, held
from test_engine_over_stages import MostlyTrueDrafts
from toy_stages import VOCAB, plain, toy_stages

from starspec.config import TargetConfig
from starspec.engine.drafts import NgramDrafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.ids import RequestId, RowLease
from starspec.sampling import draw
from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import verify
from starspec.speculation.tree import EMPTY_TREE
from starspec.stages.landings import Asked, LandingCheck
from starspec.stats import TargetStats
from starspec.windows.window import Judge, Law
from starspec.wire.messages import EngineOutput, Landing, RequestSpec, StageToCoordinator, StageWork, VerdictOf

FAILING = SamplingSpec(temperature=1e-9, seed=13)  # the same tokens as greedily, as far as they come
FAILED = ("error", "internal error")
NUM_TOKENS = 30
SAMPLINGS = {"a": GREEDY, "b": FAILING, "c": GREEDY, "d": GREEDY}
PROMPTS = {"a": [3, 1, 4], "b": [1, 5], "c": [9, 2, 6, 5, 3, 5], "d": [8]}


class Panic(BaseException):
    """What a library in Rust raises where it panics."""


class Bunched(MemoryPipe):
    """Several landings come at once: the coordinator checks the second one before anybody knows of the first."""

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        answers = super().receive(timeout_s)
        return [*answers, *super().receive(0.05)] if answers else []


def let_laws_fail(monkeypatch: pytest.MonkeyPatch, position: int, error: BaseException) -> None:
    """Those with the seed of `FAILING` raise from this position on."""

    def next_token(row, sampling: SamplingSpec, at: int, *args: object) -> int:  # type: ignore[no-untyped-def]
        if sampling.seed == FAILING.seed and at >= position:
            raise error
        return draw.next_token(row, sampling, at, *args)

    monkeypatch.setattr(verify, "next_token", next_token)


def run(target: Target, failing: Sequence[str]) -> None:
    for name, prompt in PROMPTS.items():
        target.submit(name, prompt, FAILING if name in failing else GREEDY, NUM_TOKENS)
    target.run()


def check(target: Target, failing: Sequence[str]) -> None:
    """Those that fail have some of their tokens, all others theirs; no stage was lost, and no row is held."""
    for name, got in target.got.items():
        assert target.ends[name] == (FAILED if name in failing else ("length", None))
        assert got == target.expected[name][: len(got)]
        assert len(got) < NUM_TOKENS if name in failing else len(got) == NUM_TOKENS
    assert target.verifier.num_losses == 0
    target.idle(3.0)
    assert held(target) == [0] * NUM_STAGES
    for worker in target.pipe.workers:
        worker.rows.check_integrity()


@pytest.mark.parametrize("error", [ValueError("no such law"), RuntimeError("\x1b[2J" * 500), Panic()], ids=type)
@pytest.mark.parametrize("position", [0, 14])
@pytest.mark.parametrize("failing", ["b", "ac", "abcd"])
def test_a_law_that_fails_at_the_last_stage_ends_its_own_request_alone(
    failing: str, position: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_laws_fail(monkeypatch, position, error)
    target = Target(drafts=MostlyTrueDrafts)
    run(target, failing)
    check(target, failing)


@pytest.mark.parametrize("pipe", [MemoryPipe, Bunched])
@pytest.mark.parametrize("position", [0, 14])
@pytest.mark.parametrize("failing", ["b", "ac"])
def test_windows_in_flight_behind_one_that_fails_harm_nobody(
    failing: str, position: int, pipe: type[MemoryPipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_laws_fail(monkeypatch, position, ValueError("no such law"))
    target = Target(depth=16, drafts=MostlyTrueDrafts, pipe=pipe(toy_stages(NUM_STAGES), lambda: 0.01))
    run(target, failing)
    assert target.engine.stats.num_ahead_windows > 10
    check(target, failing)


@pytest.mark.parametrize("seed", range(20))
def test_laws_that_fail_at_any_moment_change_no_token_of_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    let_laws_fail(monkeypatch, rng.randrange(20), ValueError("no such law"))
    target = Target(
        delay_s=rng.choice((0.0, 0.02)),
        depth=rng.choice((None, 1, 3, 8)),
        drafts=rng.choice((MostlyTrueDrafts, NgramDrafts)),
        pipe=rng.choice((MemoryPipe, Bunched))(toy_stages(NUM_STAGES), lambda: 0.02 * rng.random()),
    )
    failing = {f"r{number}" for number in range(12) if rng.random() < 0.5}
    for number in range(12):
        name, prompt = f"r{number}", [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        target.submit(name, prompt, FAILING if name in failing else rng.choice((GREEDY, COUNTING)), 12)
        for _ in range(rng.randrange(30)):
            target.step()
    target.run()
    for name, got in target.got.items():
        assert got == target.expected[name][: len(got)]
        assert target.ends[name] == ("length", None) if len(got) == 12 else name in failing
    assert target.verifier.num_losses == 0
    target.idle(3.0)
    assert held(target) == [0] * NUM_STAGES


def test_behind_sockets_the_log_of_the_stage_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ValueError("no such law")
    let_laws_fail(monkeypatch, 8, error)
    got: dict[str, list[EngineOutput]] = {name: [] for name in PROMPTS}
    with capture_logs() as logs, serving(toy_stages(2)) as servers, pipe_of(addresses(servers)) as verifier:
        engine = TargetEngine(verifier, Words(), NoDrafts(), TargetConfig(prefill_chunk=5), TargetStats())
        for name, prompt in PROMPTS.items():
            engine.submit(RequestId(name), RequestSpec(prompt, SAMPLINGS[name], max_tokens=NUM_TOKENS))
        while engine.has_work:
            for output in engine.step().values():
                got[output.request_id].append(output)
        verifier.close()
    for name, parts in got.items():
        tokens = [token for part in parts for token in part.token_ids]
        assert [*PROMPTS[name], *tokens] == plain(2, PROMPTS[name], SAMPLINGS[name], len(tokens))
        assert parts[-1].finish_reason == ("error" if name == "b" else "length")
    at_stage, at_target = (each for each in logs if each["log_level"] == "error")
    assert at_stage["exc_info"] is error
    assert str(at_target["exc_info"]) == "the last stage could not judge a window: ValueError: no such law"


def test_an_error_is_no_answer_about_a_window_on_refused_tokens() -> None:
    def asked(prefix_len: int, root: int) -> list[Asked]:
        judge = Judge(Law(GREEDY, None, None), EMPTY_TREE, prefix_len, TokenCounts((), ()))
        return [Asked(0, RowLease(1), root, judge)]

    def landing(verdict: VerdictOf) -> Landing:
        return Landing(1, 1, [verdict], (StageWork(0.0, 0.0, 0, 0, 0, 1),))

    check = LandingCheck(VOCAB, [(0, 1)])

    def complaint(verdict: VerdictOf, window: list[Asked]) -> str | None:
        return check.complaint(landing(verdict), window, lambda *_: True)

    assert complaint(VerdictOf([7]), asked(3, 2)) is None
    assert complaint(VerdictOf(), asked(4, 7)) == "no tokens for a window"
    assert complaint(VerdictOf(error="it fails"), asked(4, 7)) is None
    assert complaint(VerdictOf(error="it fails"), asked(5, 1)) == "tokens for a window on refused ones"
    assert complaint(VerdictOf(), asked(5, 1)) is None
