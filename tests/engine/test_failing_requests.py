"""What one request brings may raise: its grammar, its law, its text. Its own answer ends, and no other one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from structlog.testing import capture_logs
from test_engine import OracleDrafts, finish, plain, spec_of
from toy import VOCAB_SIZE, HashRunner, WordTokenizer

from starspec.config import BatchingMethod, TargetConfig
from starspec.engine.drafts import Drafts, NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.errors import OurBug
from starspec.grammars.matcher import FittedDraft
from starspec.harness.decode import Job, decode
from starspec.ids import PeerId, RequestId
from starspec.log_limit import LINES
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.snapshot import Choice, RoundSnapshot
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import verify
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.windows import judging
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import EngineOutput

PROMPTS = {"a": [1, 2, 3], "b": [4, 2], "c": [5], "d": [6, 7, 8, 9, 10, 11, 12]}
NUM_TOKENS = 12


class Panic(BaseException):
    """What a library in Rust raises where it panics: no Exception either."""


class ForcedDrafts(OracleDrafts):
    """As a hub's: tokens that a grammar forces are drafted, too."""

    drafts_forced = True


class Grammar:
    """Allows everything; one of its methods raises once, late or at the start. As GrammarMatcher."""

    has_ended, complaint = False, ""

    def __init__(self, failing: str, num_before: int, error: BaseException) -> None:
        self._failing, self._num_left, self._error = failing, num_before, error

    def _call(self, method: str) -> None:
        if method == self._failing:
            self._num_left -= 1
            if self._num_left < 0:
                raise self._error

    @property
    def failure(self) -> str:
        self._call("failure")
        return ""

    def allowed(self, path: Sequence[int]) -> torch.Tensor:
        self._call("allowed")
        return torch.ones(VOCAB_SIZE, dtype=torch.bool)

    def forced(self, most: int) -> list[int]:
        self._call("forced")
        return []

    def fit(self, tree: DraftTree, max_forced_depth: int, before: Sequence[int] = ()) -> FittedDraft:
        self._call("fit")
        return FittedDraft(tree, tree.num_draft_tokens)

    def commit(self, token_id: int) -> None:
        self._call("commit")

    def take_spent_s(self) -> float:
        self._call("take_spent_s")
        return 0.0


class PickyTokenizer(WordTokenizer):
    """Raises for one token."""

    bad: int | None = None

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        if self.bad in token_ids:
            raise OverflowError("out of range")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


def engine_of(
    drafts: Drafts | None = None, method: BatchingMethod = "ragged", num_rows: int = 4, **config: int
) -> TargetEngine:
    settings = TargetConfig(prefill_chunk=5, max_num_seqs=num_rows, **config)  # type: ignore[arg-type]
    verifier = LocalVerifier(HashRunner(num_rows=num_rows), method)
    return TargetEngine(verifier, PickyTokenizer(), drafts or ForcedDrafts(), settings, TargetStats())


def check(answers: dict[str, list[EngineOutput]], failing: Sequence[str], engine: TargetEngine) -> None:
    """All answers are those of plain decoding; those that fail end before, and say so. No row is held."""
    assert answers.keys() == PROMPTS.keys()
    for name, parts in answers.items():
        tokens = [token for part in parts for token in part.token_ids]
        assert tokens == plain(PROMPTS[name], NUM_TOKENS)[: len(tokens)]
        end = (parts[-1].finish_reason, parts[-1].stop_reason)
        assert end == (("error", "internal error") if name in failing else ("length", None))
        assert len(tokens) < NUM_TOKENS if name in failing else len(tokens) == NUM_TOKENS
    assert engine.verifier.cache.num_free_rows == 4
    engine.check_integrity()


@pytest.mark.parametrize("error", [KeyError("no such rule"), Panic()], ids=type)
@pytest.mark.parametrize("method", ["forced", "fit", "allowed", "commit", "failure", "take_spent_s"])
@pytest.mark.parametrize("num_before", [0, 2])
@pytest.mark.parametrize("failing", ["b", "ac", "abcd"])
def test_a_grammar_that_raises_ends_its_own_request_alone(
    failing: str, num_before: int, method: str, error: BaseException
) -> None:
    engine = engine_of(OracleDrafts() if method == "allowed" else ForcedDrafts(num_true=1))
    for name, prompt in PROMPTS.items():
        grammar = Grammar(method, num_before, error) if name in failing else Grammar("", 0, error)
        engine.submit(RequestId(name), spec_of(prompt, NUM_TOKENS), grammar=grammar)  # type: ignore[arg-type]
    with capture_logs() as logs:
        check(finish(engine), failing, engine)
    assert [each["exc_info"] for each in logs] == [error] * len(failing)


def test_one_that_fails_when_it_is_admitted_leaves_its_row_to_the_next() -> None:
    engine = engine_of(num_rows=1)
    for name, prompt in PROMPTS.items():
        grammar = Grammar("" if name == "d" else "forced", 0, KeyError())
        engine.submit(RequestId(name), spec_of(prompt, NUM_TOKENS), grammar=grammar)  # type: ignore[arg-type]
    answers = finish(engine)
    assert {name: parts[-1].finish_reason for name, parts in answers.items()} == {
        **dict.fromkeys("abc", "error"),
        "d": "length",
    }


@pytest.mark.parametrize("drafts", ["true", "ngram"])
@pytest.mark.parametrize("method", ["ragged", "rollback"])
def test_a_text_that_cannot_be_decoded_ends_its_own_request_alone(
    method: BatchingMethod, drafts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ngram = NgramDrafts(FixedLength(DraftBudget.chain(4)), 1, 3, TargetStats())
    engine = engine_of(ngram if drafts == "ngram" else OracleDrafts(), method)
    others = {token for name in "acd" for token in (*PROMPTS[name], *plain(PROMPTS[name], NUM_TOKENS))}
    for name, prompt in PROMPTS.items():
        engine.submit(RequestId(name), spec_of(prompt, NUM_TOKENS))
    bad = next(token for token in plain(PROMPTS["b"], NUM_TOKENS)[2:] if token not in others)
    monkeypatch.setattr(PickyTokenizer, "bad", bad)
    check(finish(engine), "b", engine)


def test_a_prompt_that_cannot_be_decoded_is_refused_and_nobody_gives_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(num_rows=1, max_num_queued_reqs=2)
    first, second = PeerId(b"first"), PeerId(b"second")
    for name in "abc":
        engine.submit(RequestId(name), spec_of(PROMPTS[name]), first, "one")
    monkeypatch.setattr(PickyTokenizer, "bad", PROMPTS["d"][-1])
    with pytest.raises(OverflowError):
        engine.submit(RequestId("d"), spec_of(PROMPTS["d"]), second, "other")
    assert engine.stats.num_rejected == 1
    monkeypatch.setattr(PickyTokenizer, "bad", None)
    assert engine.requests_of(first) == ["a", "b", "c"]
    assert engine.submit(RequestId("d"), spec_of(PROMPTS["d"]), second, "other") is not None
    assert {name: parts[-1].finish_reason for name, parts in finish(engine).items()} == dict.fromkeys("abd", "length")


def test_log_probabilities_that_cannot_be_told_end_the_request_that_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def top_logprobs(*_: object) -> None:
        raise IndexError

    monkeypatch.setattr(judging, "top_logprobs", top_logprobs)
    engine = engine_of()
    for name, prompt in PROMPTS.items():
        engine.submit(RequestId(name), spec_of(prompt, NUM_TOKENS, logprobs=1 if name == "b" else None))
    check(finish(engine), "b", engine)


class FailingPolicy:
    """Raises for one length of the prompt."""

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        if any(each.num_tokens > 8 for each in snapshot.sequences):
            raise ZeroDivisionError
        return FixedLength(DraftBudget.chain(4)).choose(snapshot)


def test_a_length_policy_that_raises_ends_no_answer() -> None:
    engine = engine_of(NgramDrafts(FailingPolicy(), 1, 3, TargetStats()))
    for name, prompt in PROMPTS.items():
        engine.submit(RequestId(name), spec_of(prompt, NUM_TOKENS))
    with capture_logs() as logs:
        check(finish(engine), "", engine)
    assert 0 < len(logs) <= LINES
    assert {type(each["exc_info"]) for each in logs} == {ZeroDivisionError}


def test_a_measurement_is_told_of_a_request_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_token(*_: object) -> int:
        raise ValueError("no such law")

    jobs = [
        Job(name, tuple(prompt), SamplingSpec(temperature=float(name == "b"), seed=1), NUM_TOKENS)
        for name, prompt in PROMPTS.items()
    ]
    assert all(len(each.token_ids) == NUM_TOKENS for each in decode(engine_of(), jobs, batch_size=4))
    monkeypatch.setattr(verify, "next_token", next_token)
    with pytest.raises(OurBug, match="the target failed on job-1; the log says why"):
        decode(engine_of(), jobs, batch_size=4)
