"""The forecast: replayed rounds against brute force, eq. 3 against its closed form, and theorems of the model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.config import FIXED_LENGTH, ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import CausalScorer, Sample, measure_agreement, overlap
from starspec.doctor.outlook import (
    DecodedChains,
    Forecast,
    Replayed,
    StepTimes,
    agreement_rate,
    best_forecast,
    count_rounds,
    expected_accepted,
    forecast,
)
from starspec.engine.drafts import NoDrafts
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.workbench import GREEDY, Sampling, Workbench
from starspec.models.loading.load import load_runner
from starspec.sampling import reference
from starspec.sampling.spec import SamplingSpec

BITS = st.lists(st.booleans(), max_size=40)
LENGTHS = st.integers(0, 9)


@given(BITS, LENGTHS)
def test_every_round_emits_one_token_to_k_plus_one(agreements: list[bool], length: int) -> None:
    num_rounds = count_rounds(agreements, length)
    assert num_rounds * (length + 1) >= len(agreements) >= num_rounds


@given(BITS)
def test_without_draft_tokens_every_token_is_a_round(agreements: list[bool]) -> None:
    assert count_rounds(agreements, 0) == len(agreements)


@given(st.integers(0, 50), LENGTHS)
def test_a_perfect_draft_fills_every_round_and_a_wrong_one_none(num_tokens: int, length: int) -> None:
    assert count_rounds([True] * num_tokens, length) == -(-num_tokens // (length + 1))
    assert count_rounds([False] * num_tokens, length) == num_tokens


@given(BITS, LENGTHS)
def test_more_agreement_never_takes_more_rounds_of_a_perfect_draft(agreements: list[bool], length: int) -> None:
    assert count_rounds([True] * len(agreements), length) <= count_rounds(agreements, length)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.7)], ids=lambda each: each.name)
@pytest.mark.parametrize("length", [1, 3, 6])
def test_the_replay_counts_the_rounds_that_an_engine_really_runs(length: int, sampling: Sampling) -> None:
    options = "vocab=128,step_ms=0,alpha=0.7"
    bench = Workbench(ModelConfig(model=f"synthetic:{options}", max_model_len=256, num_rows=1))
    draft = ModelConfig(model=f"synthetic:{options},role=draft", max_model_len=256, num_rows=1)
    drafts = bench.drafts(SpeculativeConfig(model=draft.model, num_speculative_tokens=length, length=FIXED_LENGTH))
    job = Job("job", (5, 6, 7), bench.sampling_spec(sampling, seed=1), 60)
    (answer,) = decode(make_engine(bench.runner, bench.tokenizer, drafts), [job], batch_size=1)
    agreement = measure_agreement(CausalScorer(load_runner(draft)), Sample("one", [job], [answer]))
    assert count_rounds(agreement.first[0], length) == answer.stats.acceptance.num_forwards
    assert agreement.first_rate < agreement.branches_rate


@pytest.mark.parametrize("sampling", [SamplingSpec(), SamplingSpec(temperature=0.7, top_k=3), SamplingSpec(top_p=0.8)])
def test_beta_is_what_the_target_and_the_draft_have_in_common(sampling: SamplingSpec) -> None:
    rows = torch.randn(2, 8, generator=torch.Generator().manual_seed(3)) * 2
    p, q = (reference.probabilities(row.tolist(), sampling) for row in rows)
    assert overlap(rows[0], rows[1], sampling, 5) == pytest.approx(sum(map(min, p, q)), abs=1e-6)
    assert overlap(rows[0], rows[0], sampling, 5) == pytest.approx(1.0)
    assert overlap(rows[0], torch.full((8,), float("-inf")), sampling, 5) == 0.0, "a draft that says nothing"


def test_beta_of_a_greedy_request_is_the_share_of_equal_first_choices() -> None:
    options = "vocab=128,step_ms=0,alpha=0.7"
    bench = Workbench(ModelConfig(model=f"synthetic:{options}", max_model_len=256, num_rows=2))
    draft = load_runner(ModelConfig(model=f"synthetic:{options},role=draft", max_model_len=256, num_rows=1))
    found = {}
    for sampling in (GREEDY, Sampling(temperature=0.7)):
        job = Job("job", (5, 6, 7), bench.sampling_spec(sampling, seed=1), 200)
        answers = decode(make_engine(bench.runner, bench.tokenizer, NoDrafts()), [job], batch_size=1)
        sample = Sample("one", [job], answers)
        found[sampling.name] = measure_agreement(CausalScorer(draft), sample, CausalScorer(bench.runner))
        assert measure_agreement(CausalScorer(draft), sample).beta is None
    assert found["greedy"].beta == found["greedy"].first_rate
    warm = found["T=0.7"]
    assert warm.beta is not None
    least = warm.beta / (2 - warm.beta)
    assert least - 0.1 < warm.first_rate < warm.beta + 0.1, "200 positions"


@given(st.floats(0.0, 0.99), st.integers(0, 12))
def test_eq_3_is_its_closed_form(rate: float, length: int) -> None:
    assert expected_accepted(rate, length) == pytest.approx(rate * (1 - rate**length) / (1 - rate), abs=1e-9)


def test_eq_3_at_certain_acceptance_is_k() -> None:
    assert expected_accepted(1.0, 5) == 5.0


@given(st.lists(BITS, min_size=1, max_size=4), st.integers(0, 4))
def test_no_forecast_is_faster_than_its_bound(agreements: list[list[bool]], length: int) -> None:
    times = StepTimes(draft_s=0.003, verify_s=[0.010, 0.011, 0.012, 0.013, 0.014], link_s=0.002)
    found = forecast(Replayed(agreements), times, length)
    assert found.speed_up <= (length + 1) * times.verify_s[0] / times.round_s(length) + 1e-9
    assert found.round_ms == pytest.approx(times.round_s(length) * 1e3)


def test_plain_decoding_is_the_unit_and_needs_no_hub() -> None:
    times = StepTimes(draft_s=0.003, verify_s=[0.010, 0.012], link_s=0.5)
    assert forecast(Replayed([[True, False, True]]), times, 0).speed_up == 1.0


def test_a_round_is_k_draft_steps_a_round_trip_and_a_verification() -> None:
    times = StepTimes(draft_s=0.002, verify_s=[0.010, 0.011, 0.013], link_s=0.001)
    assert times.round_s(2) == pytest.approx(2 * 0.002 + 0.001 + 0.013)


def test_a_draft_that_does_not_pay_is_not_recommended() -> None:
    slow = StepTimes(draft_s=0.010, verify_s=[0.010, 0.011, 0.012])
    right = [[True] * 30]
    forecasts = [forecast(Replayed(right), slow, length) for length in range(3)]
    assert best_forecast(forecasts) is None


def test_the_fastest_length_is_recommended() -> None:
    times = StepTimes(draft_s=0.001, verify_s=[0.010, 0.010, 0.010, 0.010])
    forecasts = [forecast(Replayed([[True, True, False] * 20]), times, length) for length in range(4)]
    best = best_forecast(forecasts)
    assert isinstance(best, Forecast)
    assert best.num_draft_tokens == 2


@given(st.lists(BITS, max_size=5))
def test_the_rate_is_that_of_all_positions(agreements: list[list[bool]]) -> None:
    bits = [bit for answer in agreements for bit in answer]
    assert agreement_rate(agreements) == (sum(bits) / len(bits) if bits else 0.0)


def test_no_answers_forecast_nothing() -> None:
    times = StepTimes(draft_s=0.001, verify_s=[0.010, 0.010])
    assert forecast(Replayed([]), times, 1).tokens_per_round == 1.0


def test_decoded_chains_tell_each_depth_its_own_chance() -> None:
    seen = DecodedChains(num_rounds=10, accepted_by_depth=[8, 3])
    assert seen.first_rate == 0.8
    assert [seen.tokens_per_round(length) for length in range(4)] == pytest.approx([1.0, 1.8, 2.1, 2.1])
    assert DecodedChains(0, []).tokens_per_round(3) == 1.0


@pytest.mark.parametrize("length", [1, 4])
def test_decoded_chains_are_exact_for_the_length_that_was_run(length: int) -> None:
    options = "vocab=128,step_ms=0,alpha=0.7"
    bench = Workbench(ModelConfig(model=f"synthetic:{options}", max_model_len=256, num_rows=1))
    drafts = bench.drafts(
        SpeculativeConfig(model=f"synthetic:{options},role=draft", num_speculative_tokens=length, length=FIXED_LENGTH)
    )
    job = Job("job", (5, 6, 7), bench.sampling_spec(GREEDY, seed=1), 60)
    (answer,) = decode(make_engine(bench.runner, bench.tokenizer, drafts), [job], batch_size=1)
    stats = answer.stats.acceptance
    seen = DecodedChains(stats.num_forwards, stats.num_accepted_tokens_per_pos)
    assert seen.tokens_per_round(length) == pytest.approx(stats.block_efficiency)
