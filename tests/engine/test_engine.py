"""Corners of one target, with every source of drafts, against plain decoding of the toy."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import LANDINGS, LateVerifier
from msgspec.structs import replace
from toy import VOCAB_SIZE, HashRunner, WordTokenizer, next_of

from starspec.config import BatchingConfig, BatchingMethod, TargetConfig
from starspec.engine.drafts import NgramDrafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.errors import ContextTooLong, QueueFull, RequestError
from starspec.grammars.matcher import FittedDraft
from starspec.ids import PeerId, RequestId, RequestKey
from starspec.policy.length.fixed import FixedLength
from starspec.sampling import draw
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import verify
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.speculation.verify import VerifyResult
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Verifier
from starspec.windows.window import Verdict
from starspec.wire.messages import EngineOutput, RequestSpec


class OracleDrafts(NoDrafts):
    """Proposes the toy's own continuation, or lies after `num_true` tokens; as a chain or as a bushy tree."""

    def __init__(self, length: int = 4, num_true: int = 99, is_tree: bool = False) -> None:
        self.length, self.num_true, self.is_tree = length, num_true, is_tree

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [self._tree(each) for each in batch]

    def _tree(self, answer: TargetSequence) -> DraftTree:
        path, chain = list(answer.token_ids), []
        for depth in range(self.length):
            token = next_of(path) if depth < self.num_true else (next_of(path) + 1) % VOCAB_SIZE
            chain.append(token)
            path.append(token)
        if not self.is_tree:
            return DraftTree.chain(chain)
        decoys = [(token + 3) % VOCAB_SIZE for token in chain]  # a wrong sibling before every right one
        token_ids = [token for pair in zip(decoys, chain, strict=True) for token in pair]
        parents = [parent for depth in range(self.length) for parent in [2 * depth - 1] * 2]
        return DraftTree(tuple(token_ids), tuple(parents))


class Landing:
    """When verdicts land in the test that runs."""

    late: tuple[int, int] | None = None


@pytest.fixture(scope="module", autouse=True, params=LANDINGS, ids=str)
def landing(request: pytest.FixtureRequest) -> None:
    """Nearly all tests of this file hold however late verdicts land."""
    Landing.late = request.param


def verifier_of(runner: HashRunner) -> Verifier:
    local = LocalVerifier(runner)
    return local if Landing.late is None else LateVerifier(local, *Landing.late)


DRAFTS = {
    "none": NoDrafts,
    "true": OracleDrafts,
    "half true": lambda: OracleDrafts(num_true=2),
    "lying": lambda: OracleDrafts(num_true=0),
    "tree": lambda: OracleDrafts(is_tree=True),
    "ngram": lambda: NgramDrafts(FixedLength(DraftBudget.chain(4)), 1, 3, TargetStats()),
}
every_draft = pytest.mark.parametrize("drafts", DRAFTS)


def engine_of(drafts: str, runner: HashRunner | None = None, **config: int) -> TargetEngine:
    settings_ = TargetConfig(prefill_chunk=5, **config)  # type: ignore[arg-type]
    return TargetEngine(
        verifier_of(runner or HashRunner()), WordTokenizer(), DRAFTS[drafts](), settings_, TargetStats()
    )


def spec_of(prompt: list[int], max_tokens: int = 12, *, stop: tuple[str, ...] = (), **sampling: object) -> RequestSpec:
    sampling.setdefault("temperature", 0.0)
    logprobs = sampling.pop("logprobs", None)
    return RequestSpec(prompt, SamplingSpec(**sampling), max_tokens=max_tokens, stop=stop, logprobs=logprobs)  # type: ignore[arg-type]


def finish(engine: TargetEngine) -> dict[str, list[EngineOutput]]:
    """Run to the end; integrity is checked after every step."""
    outputs: dict[str, list[EngineOutput]] = {}
    for _ in range(1000):
        if not engine.has_work:
            break
        for each in engine.step().values():
            outputs.setdefault(each.request_id, []).append(each)
        engine.check_integrity()
    assert not engine.has_work
    return outputs


def answer(engine: TargetEngine, spec: RequestSpec) -> tuple[list[int], str, EngineOutput]:
    engine.submit(RequestId("r"), spec)
    parts = finish(engine)["r"]
    return [t for part in parts for t in part.token_ids], "".join(part.text for part in parts), parts[-1]


def plain(prompt: list[int], num: int) -> list[int]:
    path = list(prompt)
    for _ in range(num):
        path.append(next_of(path))
    return path[len(prompt) :]


PROMPT = list(range(1, 12))


def check_counts(last: EngineOutput, num_tokens: int) -> None:
    """Each round has one token of the target's own; the last one may end before it."""
    assert last.stats is not None
    acceptance = last.stats.acceptance
    assert acceptance.num_emitted_tokens == num_tokens
    assert num_tokens - acceptance.num_accepted_tokens in (acceptance.num_forwards - 1, acceptance.num_forwards)
    assert sum(acceptance.num_accepted_tokens_per_pos) == acceptance.num_accepted_tokens


@every_draft
def test_greedy_tokens_are_the_toys_own(drafts: str) -> None:
    tokens, text, last = answer(engine_of(drafts), spec_of(PROMPT))
    assert tokens == plain(PROMPT, 12)
    assert text == WordTokenizer().decode(tokens)
    assert last.finish_reason == "length"


@every_draft
def test_sampled_tokens_do_not_depend_on_the_draft(drafts: str) -> None:
    spec = spec_of(PROMPT, temperature=1.0, seed=7, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5)
    assert answer(engine_of(drafts), spec)[0] == answer(engine_of("none"), spec)[0]


@every_draft
def test_max_tokens_is_kept_inside_an_accepted_run(drafts: str) -> None:
    for num in range(1, 8):
        tokens, text, last = answer(engine_of(drafts), spec_of(PROMPT, num))
        assert (tokens, last.finish_reason) == (plain(PROMPT, num), "length")
        assert text == WordTokenizer().decode(tokens)
        check_counts(last, num)


@every_draft
def test_end_token_inside_an_accepted_run_ends_text_usage_and_logprobs(drafts: str) -> None:
    own = plain(PROMPT, 12)
    for end in (own[0], own[2], own[7]):
        engine = engine_of(drafts, HashRunner(eos_token_ids=(end,)))
        tokens, text, last = answer(engine, spec_of(PROMPT, end_token_ids=(end,), logprobs=2))
        assert tokens == own[: own.index(end) + 1]
        assert text == WordTokenizer().decode(tokens[:-1])
        assert (last.finish_reason, last.stop_reason) == ("stop", None)
        assert last.logprobs is not None
        assert len(last.logprobs) == len(last.token_ids)
        check_counts(last, len(tokens))


class OneTrack:
    """A trace that remembers one track."""

    def __init__(self, track: str) -> None:
        self.track = track
        self.all: list[tuple[float, float, dict[str, str | float]]] = []

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        if track == self.track:
            self.all.append((start_s, end_s, args))


def test_the_trace_shows_answers_from_arrival_to_end() -> None:
    trace, ticks = OneTrack("answers"), itertools.count(0.0)
    verifier = verifier_of(HashRunner())
    settings_, stats = TargetConfig(prefill_chunk=5), TargetStats()
    engine = TargetEngine(
        verifier, WordTokenizer(), NoDrafts(), settings_, stats, functools.partial(next, ticks), trace=trace
    )
    answer(engine, spec_of(PROMPT))
    ((start_s, end_s, args),) = trace.all
    assert args == {"tokens": 12}
    assert end_s - start_s > 12.0  # each round asks for the time


def test_the_trace_shows_how_long_drafts_were_to_be_and_why_no_longer() -> None:
    trace, stats = OneTrack("verify"), TargetStats()
    drafts = NgramDrafts(FixedLength(DraftBudget.chain(4)), 1, 3, stats)
    verifier = LocalVerifier(HashRunner())
    engine = TargetEngine(verifier, WordTokenizer(), drafts, TargetConfig(prefill_chunk=5), stats, trace=trace)
    for name, num_draft_tokens in (("a", None), ("b", 2)):
        engine.submit(RequestId(name), replace(spec_of([1, 2, 3], 12), num_draft_tokens=num_draft_tokens))
    finish(engine)
    shown = [args for _, _, args in trace.all if "wanted" in args]
    assert "4 cap, 2 cap" in {args["wanted"] for args in shown}
    drafted = [int(each) for args in shown for each in str(args["drafted"]).split(", ")]
    assert sum(drafted) == stats.acceptance.num_draft_tokens > 0


@pytest.mark.parametrize("drafts", ["true", "tree"])
@pytest.mark.parametrize("end", ["max_tokens", "eos", "stop"])
def test_a_row_holds_no_more_than_the_answer_at_its_end(drafts: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(PROMPT, 12)[:7]  # rounds of five tokens: it ends inside the second
    runner = HashRunner(eos_token_ids=(expected[-1],) if end == "eos" else ())
    assert expected[-1] not in expected[:-1]
    lengths: list[int] = []
    free = runner.cache.free

    def look_and_free(row: int) -> None:
        lengths.append(runner.cache.lengths[row])
        free(row)

    monkeypatch.setattr(runner.cache, "free", look_and_free)
    spec = {
        "max_tokens": spec_of(PROMPT, 7),
        "eos": spec_of(PROMPT, end_token_ids=(expected[-1],)),
        "stop": spec_of(PROMPT, stop=(WordTokenizer().decode(expected[-1:]),)),
    }[end]
    tokens, _, last = answer(engine_of(drafts, runner), spec)
    assert (tokens, last.finish_reason) == (expected, "length" if end == "max_tokens" else "stop")
    assert lengths == [len(PROMPT) + 7 - 1]  # the last token was never forwarded


@every_draft
def test_the_first_of_several_end_tokens_ends_the_answer(drafts: str) -> None:
    own = plain(PROMPT, 12)
    engine = engine_of(drafts, HashRunner(eos_token_ids=(own[6], own[3])))
    tokens, _, last = answer(engine, spec_of(PROMPT, end_token_ids=(own[6], own[3], own[4])))
    assert tokens == own[:4]
    assert last.stop_reason is None


@every_draft
def test_a_stop_token_that_is_no_eos_is_named(drafts: str) -> None:
    own = plain(PROMPT, 12)
    _, _, last = answer(engine_of(drafts), spec_of(PROMPT, end_token_ids=(own[5],)))
    assert last.stop_reason == own[5]


@every_draft
def test_end_token_inside_the_prompt_ends_nothing(drafts: str) -> None:
    runner = HashRunner(eos_token_ids=(PROMPT[3],))
    own = plain(PROMPT, 6)
    assert PROMPT[3] not in own
    tokens, _, last = answer(engine_of(drafts, runner), spec_of(PROMPT, 6, end_token_ids=(PROMPT[3],)))
    assert (tokens, last.finish_reason) == (own, "length")


@every_draft
def test_min_tokens_keeps_end_tokens_from_being_drawn(drafts: str) -> None:
    end = plain(PROMPT, 1)[0]
    tokens, _, _ = answer(engine_of(drafts), spec_of(PROMPT, 8, end_token_ids=(end,), min_tokens=5))
    assert end not in tokens[:5]
    assert tokens == answer(engine_of("none"), spec_of(PROMPT, 8, end_token_ids=(end,), min_tokens=5))[0]


@every_draft
def test_stop_string_inside_an_accepted_run_cuts_text_and_tokens(drafts: str) -> None:
    own = plain(PROMPT, 12)
    stop = f"w{own[2]} w{own[3]}"
    tokens, text, last = answer(engine_of(drafts), spec_of(PROMPT, stop=(stop,)))
    assert tokens == own[:4]
    assert text == WordTokenizer().decode(own[:2])
    assert (last.finish_reason, last.stop_reason) == ("stop", stop)
    check_counts(last, 4)


@every_draft
def test_context_ends_the_answer_before_the_cache_does(drafts: str) -> None:
    runner = HashRunner(max_len=20)
    tokens, _, last = answer(engine_of(drafts, runner), spec_of(PROMPT, 500))
    assert (tokens, last.finish_reason) == (plain(PROMPT, 20 - len(PROMPT)), "length")


@every_draft
def test_a_prompt_of_one_token_works(drafts: str) -> None:
    assert answer(engine_of(drafts), spec_of([5], 6))[0] == plain([5], 6)


@every_draft
def test_an_answer_of_one_token_takes_one_forward_and_says_why_it_ended(drafts: str) -> None:
    first = plain(PROMPT, 1)
    ended = {"length": spec_of(PROMPT, 1), "stop": spec_of(PROMPT, 9, end_token_ids=tuple(first))}
    for reason, spec in ended.items():
        tokens, _, last = answer(engine_of(drafts), spec)
        assert (tokens, last.finish_reason) == (first, reason)
        assert last.stats is not None
        assert (last.stats.acceptance.num_forwards, last.stats.acceptance.num_emitted_tokens) == (1, 1)


class EndingDrafts(NoDrafts):
    """Believes that the answer ends after one more token."""

    def __init__(self, end_token_id: int) -> None:
        self._end_token_id = end_token_id

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return [DraftTree.chain([next_of(each.token_ids), self._end_token_id]) for each in batch]


def test_a_draft_that_hits_eos_early_ends_nothing() -> None:
    expected = plain(PROMPT, 12)
    end_token_id = next(each for each in range(VOCAB_SIZE) if each not in expected)
    settings_ = TargetConfig(prefill_chunk=5)
    engine = TargetEngine(
        verifier_of(HashRunner()), WordTokenizer(), EndingDrafts(end_token_id), settings_, TargetStats()
    )
    tokens, text, last = answer(engine, spec_of(PROMPT, 12, end_token_ids=(end_token_id,)))
    assert (tokens, text, last.finish_reason) == (expected, WordTokenizer().decode(expected), "length")
    assert last.stats is not None
    assert last.stats.acceptance.num_accepted_tokens == 6


def test_bonus_token_is_kept() -> None:
    engine = engine_of("true")
    tokens, _, last = answer(engine, spec_of(PROMPT, 10))
    assert len(tokens) == 10
    assert last.stats is not None
    assert last.stats.acceptance.num_forwards == 2  # 4 accepted + 1 bonus, twice
    assert last.stats.acceptance_histogram == [0, 0, 0, 0, 2]


def test_lying_drafts_cost_no_token_and_are_counted() -> None:
    _, _, last = answer(engine_of("lying"), spec_of(PROMPT, 6))
    assert last.stats is not None
    assert last.stats.acceptance.num_accepted_tokens == 0
    assert last.stats.acceptance.num_drafts == 6
    assert last.stats.acceptance.acceptance_length == 1.0


def test_impossible_requests_are_refused_in_a_sentence() -> None:
    engine = engine_of("none", HashRunner(max_len=20))
    with pytest.raises(RequestError, match="empty"):
        engine.submit(RequestId("a"), spec_of([]))
    with pytest.raises(ContextTooLong, match="20 tokens, and this model's context holds 20"):
        engine.submit(RequestId("a"), spec_of([1] * 20))
    with pytest.raises(RequestError, match="0 to 63"):
        engine.submit(RequestId("a"), spec_of([64]))
    with pytest.raises(RequestError, match="a prediction has at most 20 tokens here"):
        engine.submit(RequestId("a"), replace(spec_of([1]), prediction=[1] * 21))
    assert not engine.has_work


def test_a_full_waiting_line_refuses_and_a_full_cache_waits() -> None:
    engine = engine_of("true", HashRunner(num_rows=2), max_num_queued_reqs=1)
    assert engine.max_num_requests == 3
    for name in "abc":  # two rows are free, one waits
        engine.submit(RequestId(name), spec_of(PROMPT))
    with pytest.raises(QueueFull, match=r"^1 requests are waiting"):
        engine.submit(RequestId("d"), spec_of(PROMPT))
    engine.step()
    with pytest.raises(QueueFull):
        engine.submit(RequestId("e"), spec_of(PROMPT))
    done = finish(engine)
    assert {name: [t for part in parts for t in part.token_ids] for name, parts in done.items()} == {
        name: plain(PROMPT, 12) for name in "abc"
    }


def test_two_peers_may_use_the_same_request_id() -> None:
    engine = engine_of("true", HashRunner(num_rows=2))
    name, first, second = RequestId("a"), PeerId(b"first"), PeerId(b"second")
    engine.submit(name, spec_of([1, 2]), first)
    engine.submit(name, spec_of([3]), second)
    with pytest.raises(RequestError, match="request id a is in use"):
        engine.submit(name, spec_of([3]), second)
    assert engine.requests_of(second) == [name]
    engine.abort(name, second)
    tokens: dict[RequestKey, list[int]] = {}
    while engine.has_work:
        for key, output in engine.step().items():
            assert output.request_id == name
            tokens.setdefault(key, []).extend(output.token_ids)
    assert tokens == {RequestKey(first, name): plain([1, 2], 12)}
    engine.check_integrity()


def test_an_exception_in_a_step_fails_its_requests_and_no_other() -> None:
    engine = engine_of("true", HashRunner(num_rows=1))
    engine.submit(RequestId("a"), spec_of(PROMPT))
    engine.submit(RequestId("b"), spec_of(PROMPT))
    engine.step()
    failed = engine.fail_step("internal error")
    assert [(each.request_id, each.finish_reason) for each in failed.values()] == [("a", "error")]
    engine.check_integrity()
    assert list(finish(engine)) == ["b"]


class FailsOnce(HashRunner):
    """A forward that a segment's number of tokens makes fail."""

    bad_num_tokens: int | None = None

    def forward(self, segments, feature_layers=()):
        if any(len(each.token_ids) == self.bad_num_tokens for each in segments):
            raise RuntimeError("out of memory")
        return super().forward(segments, feature_layers)


def test_a_prompt_that_cannot_be_read_ends_its_own_request_alone() -> None:
    runner = FailsOnce(num_rows=2)
    engine = engine_of("none", runner)
    engine.submit(RequestId("a"), spec_of([1, 2, 3]))
    got = [token for each in engine.step().values() for token in each.token_ids]
    runner.bad_num_tokens = 4  # but for its last token, which the first round forwards
    engine.submit(RequestId("b"), spec_of([1, 2, 3, 4, 5]))

    def step_on() -> None:
        for _ in range(9):  # a step may have to wait for a landing
            got.extend(token for each in engine.step().values() for token in each.token_ids)

    with pytest.raises(RuntimeError):
        step_on()
    assert [each.request_id for each in engine.fail_step("internal error").values()] == ["b"]
    engine.check_integrity()
    (parts,) = finish(engine).values()
    assert [*got, *(token for part in parts for token in part.token_ids)] == plain([1, 2, 3], 12)


@pytest.mark.parametrize("method", ["ragged", "rollback"])
@pytest.mark.parametrize("broken", [("b",), ("a", "c"), ("a", "b", "c")])
def test_a_request_whose_own_law_fails_ends_alone(broken: tuple[str, ...], method: BatchingMethod, monkeypatch) -> None:
    def next_token(row, sampling: SamplingSpec, *args: object) -> int:
        if sampling.seed == 13 and len(args[1].last_output) > 2:
            raise ValueError("no such law")
        return draw.next_token(row, sampling, *args)

    monkeypatch.setattr(verify, "next_token", next_token)
    verifier, config = LocalVerifier(HashRunner(num_rows=3), method), TargetConfig(prefill_chunk=5)
    engine = TargetEngine(verifier, WordTokenizer(), DRAFTS["half true"](), config, TargetStats())
    for number, name in enumerate("abc"):
        law = {"temperature": 1e-9, "seed": 13, "presence_penalty": 1e-9} if name in broken else {}
        engine.submit(RequestId(name), spec_of([number + 1, 2, 3], 30, **law))
    got = finish(engine)
    for number, name in enumerate("abc"):
        assert got[name][-1].finish_reason == ("error" if name in broken else "length")
        tokens = [token for part in got[name] for token in part.token_ids]
        assert tokens == plain([number + 1, 2, 3], 30)[: len(tokens)]


def test_a_round_that_fails_ends_those_that_were_in_it() -> None:
    """Two of ExSpec's window of four; the others go on."""
    runner = FailsOnce(num_rows=4)
    batching = BatchingConfig(method="exspec", window=4)
    config = TargetConfig(max_num_seqs=2, batching=batching, prefill_chunk=5)
    engine = TargetEngine(verifier_of(runner), WordTokenizer(), OracleDrafts(2), config, TargetStats())
    for name in "abcd":
        engine.submit(RequestId(name), spec_of([ord(name) % 60], 30))
    while len(engine.step()) < 2:
        pass
    runner.bad_num_tokens = 3
    with pytest.raises(RuntimeError):
        engine.step()
    ended = engine.fail_step("internal error").values()
    failed = {each.request_id for each in ended if each.finish_reason == "error"}
    runner.bad_num_tokens = None
    engine.check_integrity()
    assert len(failed) == 2
    assert finish(engine).keys() == set("abcd") - failed


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(DRAFTS)))
def test_joining_leaving_and_aborting_at_any_moment_change_no_token(seed: int, drafts: str) -> None:
    chance = random.Random(seed)
    engine = engine_of(drafts, HashRunner(num_rows=3))
    wanted, got, aborted = {}, {}, set()
    for step in range(60):
        if step < 30 and chance.random() < 0.4:
            prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 14))]
            name, num = f"r{step}", chance.randrange(1, 15)
            engine.submit(RequestId(name), spec_of(prompt, num))
            wanted[name] = plain(prompt, num)
        if wanted and chance.random() < 0.1:
            name = chance.choice(sorted(wanted))
            engine.abort(RequestId(name))
            aborted.add(name)
        for each in engine.step().values():
            got.setdefault(each.request_id, []).extend(each.token_ids)
        engine.check_integrity()
    for each in finish(engine).items():
        got.setdefault(each[0], []).extend(t for part in each[1] for t in part.token_ids)
    for name, tokens in wanted.items():
        have = got.get(name, [])
        assert have == tokens[: len(have)]
        assert name in aborted or have == tokens
    assert engine.verifier.cache.num_free_rows == 3


@pytest.mark.parametrize("after_s", [1.0, 4.0, 5.0, 60.0])
def test_the_rate_is_of_the_last_seconds_or_of_all_that_there_were(after_s: float) -> None:
    now = 100.0
    engine = TargetEngine(
        LocalVerifier(HashRunner(max_len=2000)), WordTokenizer(), NoDrafts(), TargetConfig(), TargetStats(), lambda: now
    )
    engine.refresh_rate()
    assert engine.stats.tokens_per_s == 0.0
    engine.submit(RequestId("a"), RequestSpec([1, 2], SamplingSpec(temperature=0.0), max_tokens=1900))
    for _ in range(round(after_s / 0.1)):
        now += 0.1
        engine.step()
    assert engine.stats.tokens_per_s == pytest.approx(10.0, abs=1.1)  # the first step prefills


@pytest.mark.parametrize(
    ("num_before", "accepted", "num_emitted", "num_accepted", "num_forced"),
    [
        (0, (0, 2, 3), 4, 1, 2),  # nodes 2 and 3 are forced, in place of node 1 of a draft of two tokens
        (0, (0, 2, 3), 2, 1, 1),
        (0, (0, 2, 3), 1, 1, 0),
        (2, (0, 1, 2), 4, 1, 2),  # nodes 0 and 1 are forced, before the draft
        (2, (0, 1, 2, 4), 5, 1, 3),  # and node 4 behind it
        (2, (0, 1, 2, 4), 2, 0, 2),
    ],
)
def test_what_a_grammar_forces_is_no_part_of_the_draft_that_is_learned_from(
    num_before: int, accepted: tuple[int, ...], num_emitted: int, num_accepted: int, num_forced: int
) -> None:
    tokens = (7, 5, 6, 9, 8)[: len(accepted) + 1]
    added = RoundOutput(token_ids=list(tokens[:num_emitted]))
    fitted = FittedDraft(EMPTY_TREE, 2, num_before)
    added.note_draft(2, fitted, Verdict(VerifyResult(accepted, tokens), [], (), None))
    assert (added.num_steps, added.num_draft_tokens) == (2, 2)
    assert (added.num_accepted, added.num_forced) == (num_accepted, num_forced)
