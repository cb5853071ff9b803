"""Answers that a client predicts: the same tokens, in fewer forwards, and without the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from toy import VOCAB_SIZE, WordTokenizer, next_of
from toy_hub import CHAINS_OF_FOUR, STEP_S, SlowRunner, ToyHub, VirtualClock

from starspec.config import LengthConfig, ModelConfig, Policy, SpeculativeConfig, TargetConfig
from starspec.engine.drafts import DraftsForSome, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.predicted_drafts import MAX_STEPS, with_predictions
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import RequestError
from starspec.ids import LOCAL, LinkId, RequestId
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer, prompt_ids_of_chat
from starspec.policy.length.fixed import InSmallBatches
from starspec.policy.length.snapshot import LengthPolicy
from starspec.policy.plain_speed import MIN_ROUNDS
from starspec.sampling.spec import SamplingSpec
from starspec.stats import RequestStats, TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import PROTOCOL_VERSION, EngineOutput, RequestSpec, Welcome

PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 60
FIXED = SpeculativeConfig(length=LengthConfig(policy="fixed"))


def truth(prompt: list[int] = PROMPT, num: int = NUM_TOKENS) -> list[int]:
    """The toy's own continuation of the prompt."""
    path = list(prompt)
    for _ in range(num):
        path.append(next_of(path))
    return path[len(prompt) :]


def edited(answer: list[int]) -> list[int]:
    """The text before the change that the answer makes: a token less, two others, and an end that is not said."""
    other = [(each + 1) % VOCAB_SIZE for each in answer]
    return [*answer[:20], *answer[21:40], *other[40:42], *answer[42:], 5, 6, 7]


class Bench:
    """One engine under a virtual clock."""

    def __init__(
        self,
        others: DraftsForSome | None = None,
        speculative: SpeculativeConfig = FIXED,
        hub_policy: LengthPolicy = CHAINS_OF_FOUR,
    ) -> None:
        self.clock = VirtualClock()
        self.hub = ToyHub(self.clock)
        self.stats = TargetStats()
        self.by_hub = RemoteDrafts(self.hub, hub_policy, self.stats, self.clock)
        drafts = with_predictions(others or self.by_hub, speculative, 4, self.stats, self.clock)
        self.runner = self.make_runner()
        config = TargetConfig()
        verifier = LocalVerifier(self.runner)
        self.engine = TargetEngine(verifier, WordTokenizer(), drafts, config, self.stats, self.clock)
        self.tokens: dict[str, list[int]] = {}
        self.request_stats: dict[str, RequestStats] = {}

    def make_runner(self) -> SlowRunner:
        return SlowRunner(self.clock)

    def submit(self, name: str, prompt: list[int], prediction: list[int] | None = None, **given: Any) -> None:
        spec = RequestSpec(prompt, SamplingSpec(temperature=0.0), max_tokens=NUM_TOKENS, prediction=prediction, **given)
        self.engine.submit(RequestId(name), spec)

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()

    def step(self) -> None:
        for key, output in self.engine.step().items():
            self.tokens.setdefault(key.request_id, []).extend(output.token_ids)
            if output.stats is not None:
                self.request_stats[key.request_id] = output.stats
        self.engine.check_integrity()

    def answer(self, prediction: list[int] | None, **given: int | None) -> RequestStats:
        """The statistics of one answer, whose tokens are those of the target alone."""
        self.submit("a", PROMPT, prediction, **given)
        self.finish()
        assert self.tokens == {"a": truth()}
        return self.request_stats["a"]


@pytest.mark.parametrize("others", [NoDrafts(), None], ids=["no drafts", "hub"])
def test_an_answer_that_was_predicted_takes_few_forwards(others: DraftsForSome | None) -> None:
    stats = Bench(others).answer(truth())
    assert stats.acceptance.num_forwards == 2  # 32 draft tokens and one more, and the rest
    assert (stats.num_prediction_tokens, stats.num_accepted_prediction_tokens) == (MAX_STEPS + 26, MAX_STEPS + 26)


def test_where_the_answer_leaves_the_prediction_it_comes_back_to_it() -> None:
    stats = Bench().answer(edited(truth()))
    assert stats.acceptance.num_forwards < NUM_TOKENS / 5
    assert stats.num_accepted_prediction_tokens > NUM_TOKENS * 3 / 4
    assert stats.num_prediction_tokens > stats.num_accepted_prediction_tokens


@pytest.mark.parametrize("policy", ["fixed", "goodput"])
@pytest.mark.parametrize("prediction", [[], [0], [7] * 90, truth()[::-1]], ids=["empty", "one", "same", "backwards"])
def test_a_wrong_prediction_costs_no_token(prediction: list[int], policy: Policy) -> None:
    bench = Bench(speculative=SpeculativeConfig(length=LengthConfig(policy=policy)))
    stats = bench.answer(prediction)
    assert stats.num_accepted_prediction_tokens < NUM_TOKENS / 2


def test_a_request_without_speculation_has_no_drafts_from_its_prediction() -> None:
    stats = Bench().answer(truth(), num_draft_tokens=0)
    assert (stats.num_prediction_tokens, stats.acceptance.num_forwards) == (0, NUM_TOKENS)


def test_a_hub_drafts_for_the_others_of_a_batch_only() -> None:
    bench, others = Bench(), [1, 2, 3]
    bench.submit("predicted", PROMPT, truth())
    bench.submit("other", others)
    bench.finish()
    assert bench.tokens == {"predicted": truth(), "other": truth(others)}
    assert bench.hub.num_opens == 1
    assert bench.request_stats["predicted"].acceptance.num_forwards == 2
    assert 2 < bench.request_stats["other"].acceptance.num_forwards < NUM_TOKENS / 2
    assert bench.request_stats["other"].num_prediction_tokens == 0


@pytest.mark.parametrize("asked", get_args(Policy))
@pytest.mark.parametrize("others", [NoDrafts(), None], ids=["no drafts", "hub"])
def test_whatever_policy_is_asked_for_a_prediction_is_used_and_its_neighbours_are_answered(
    others: DraftsForSome | None, asked: Policy
) -> None:
    bench, neighbours = Bench(others, SpeculativeConfig()), {"n0": [1, 2, 3], "n1": [4, 5, 6]}
    for name, prompt in neighbours.items():
        bench.submit(name, prompt)
    bench.submit("predicted", PROMPT, truth(), length_policy=asked)
    bench.finish()
    assert bench.tokens == {"predicted": truth(), **{name: truth(prompt) for name, prompt in neighbours.items()}}
    assert bench.request_stats["predicted"].num_accepted_prediction_tokens > NUM_TOKENS / 2


class Polled(NoDrafts):
    """Counts how often it could keep a connection."""

    num_polls = 0

    def poll(self) -> None:
        self.num_polls += 1


def test_a_hub_whose_target_runs_nothing_but_predicted_answers_is_not_left_alone() -> None:
    others = Polled()
    bench = Bench(others)
    bench.submit("a", PROMPT, [])
    num_steps = 0
    while bench.engine.has_work:
        bench.engine.step()
        num_steps += 1
    assert others.num_polls >= num_steps > NUM_TOKENS / 2


def test_rounds_of_too_many_sequences_draft_nothing_from_predictions_either() -> None:
    bench = Bench(NoDrafts(), SpeculativeConfig(length=LengthConfig(policy="fixed"), disable_by_batch_size=1))
    bench.submit("other", [1, 2, 3])
    bench.submit("predicted", PROMPT, truth())
    bench.finish()
    assert bench.tokens["predicted"] == truth()
    assert bench.request_stats["predicted"].num_prediction_tokens <= 2  # it ends last, alone


@pytest.mark.parametrize("num_predicted", [1, 2])
def test_a_hub_drafts_only_while_the_whole_round_is_small_enough(num_predicted: int) -> None:
    bench = Bench(hub_policy=InSmallBatches(CHAINS_OF_FOUR, 2))
    predicted = [f"predicted {number}" for number in range(num_predicted)]
    for name in predicted:
        bench.submit(name, PROMPT, [])
    bench.submit("other", [1, 2, 3])
    for _ in range(8):
        bench.step()
    assert bench.hub.num_opens == (num_predicted == 1)
    for name in predicted:
        bench.engine.abort(RequestId(name))
    bench.finish()
    assert bench.tokens["other"] == truth([1, 2, 3])
    assert bench.hub.num_opens == 1


class ByTokens(SlowRunner):
    """Each token makes a forward longer."""

    def forward(self, segments: Sequence[Any], feature_layers: Sequence[int] = ()) -> Any:
        self.clock.now += TOKEN_S * sum(len(each.token_ids) for each in segments)
        return super().forward(segments, feature_layers)


class DearBench(Bench):
    """Drafts from predictions make a round several times as long."""

    def make_runner(self) -> SlowRunner:
        return ByTokens(self.clock)

    def submit_absent(self, *names: str) -> None:
        """Of those that have ended, begin these again. Those whose names begin with "p" are predicted."""
        for name in names:
            if name not in self.engine.requests_of(LOCAL):
                prompt = [ord(name[-1]) % VOCAB_SIZE, len(self.tokens.get(name, ())) % VOCAB_SIZE, *PROMPT]
                self.submit(name, prompt, truth(prompt) if name.startswith("p") else None)


TOKEN_S = 0.001


def plain_speed(num_sequences: int) -> float:
    """Of one sequence, in tokens a second."""
    return 1.0 / (STEP_S + num_sequences * TOKEN_S)


def test_a_round_in_which_a_prediction_is_verified_is_not_taken_for_a_plain_one() -> None:
    bench = DearBench()
    bench.submit("other", [1, 2, 3], num_draft_tokens=0)
    for number in range(8):
        bench.submit(f"predicted {number}", [number, *PROMPT], truth([number, *PROMPT]))
        while f"predicted {number}" not in bench.request_stats:
            bench.step()
    assert bench.stats.plain_tokens_per_s == pytest.approx(plain_speed(1))


def test_a_hub_that_pays_is_not_charged_with_the_verification_of_predictions() -> None:
    bench = DearBench()
    bench.submit("plain", PROMPT, num_draft_tokens=0)
    bench.finish()
    bench.hub.share_wrong = 0.2
    end_s = bench.clock.now + 30.0
    while bench.clock.now < end_s:
        bench.submit_absent("p0", "p1", "other")
        bench.step()
    account = bench.by_hub._cost.account
    assert account is not None
    assert account.num_rests == 0


def test_the_speed_without_drafts_is_measured_in_rounds_in_which_nobody_has_one() -> None:
    bench, known = DearBench(), list[float]()
    bench.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("l"), 1, "toy", 64, 10.0, is_plain_speed_wanted=True)
    bench.submit_absent("p0", "p1", "other")
    while bench.engine.has_work:
        bench.step()
        known.append(bench.stats.plain_tokens_per_s)
    slowest = min(filter(None, known))
    assert plain_speed(3) <= slowest * 1.001 < plain_speed(1)
    for name in ("p0", "p1"):
        assert bench.request_stats[name].acceptance.num_forwards <= 2 + 2 * MIN_ROUNDS


def test_a_prediction_of_other_tokens_than_the_targets_is_refused() -> None:
    with pytest.raises(RequestError, match="token ids of a prediction must be 0 to 63"):
        Bench().submit("a", PROMPT, [VOCAB_SIZE])


AREA = """def area(w, h):
    total = w * h
    print("Area:", total)
    return total
"""
PRICE = """def price(items):
    total = 0
    for item in items:
        total = total + item.price
    print("Price:", total)
    return total
"""
ASK = "Write this code again, with `total` renamed to `{}`.\n\n```python\n{}```"


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_model_edits_code_in_fewer_forwards_if_it_gets_the_code_as_prediction(smollm2: Path) -> None:
    runner = load_runner(ModelConfig(model=str(smollm2), dtype="float32", max_model_len=512, num_rows=1))
    tokenizer = load_tokenizer(str(smollm2))
    shown = AREA.replace("total", "result")  # a model of this size needs an example, and leaves a line out all the same
    chat = [ASK.format("result", AREA), f"```python\n{shown}```", ASK.format("amount", PRICE)]
    roles = ("user", "assistant", "user")
    prompt = prompt_ids_of_chat(tokenizer, [{"role": r, "content": c} for r, c in zip(roles, chat, strict=True)])
    sampling = SamplingSpec(temperature=0.0, end_token_ids=runner.info.eos_token_ids)

    def answer(prediction: str | None) -> EngineOutput:
        stats = TargetStats()
        drafts = with_predictions(NoDrafts(), FIXED, 1, stats)
        engine = TargetEngine(LocalVerifier(runner), tokenizer, drafts, TargetConfig(), stats)
        predicted = None if prediction is None else tokenizer.encode(prediction, add_special_tokens=False)
        engine.submit(RequestId("a"), RequestSpec(prompt, sampling, max_tokens=80, prediction=predicted))
        outputs = [output for _ in range(90) for output in engine.step().values()]
        text = "".join(output.text for output in outputs)
        return replace(outputs[-1], text=text, token_ids=[each for output in outputs for each in output.token_ids])

    plain, predicted = answer(None), answer(f"```python\n{PRICE}```")
    assert PRICE not in plain.text
    assert "for item in items" in plain.text
    assert (predicted.text, predicted.token_ids) == (plain.text, plain.token_ids)
    assert plain.stats is not None
    assert predicted.stats is not None
    assert plain.stats.acceptance.num_forwards == len(plain.token_ids)
    assert predicted.stats.acceptance.num_forwards < len(plain.token_ids) / 3
    assert predicted.stats.num_accepted_prediction_tokens > len(plain.token_ids) / 2
