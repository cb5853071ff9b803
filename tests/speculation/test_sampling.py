"""The draw against the float64 reference, and what must hold of it whatever the numbers."""

from __future__ import annotations

from math import exp, fsum, inf, log, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_strategies import DTYPES, laws, positions, rows, tensors
from torch import Tensor

from starspec.speculation import reference
from starspec.speculation.counts import TokenCounts
from starspec.speculation.law import TokenLaw
from starspec.speculation.noise import gumbel
from starspec.speculation.sampling import Support, draw, next_token, propose_token, propose_tokens, support

BIG_LAWS = {
    "unfiltered": TokenLaw(temperature=0.7, seed=1),
    "hot": TokenLaw(temperature=20.0, seed=2),
    "top-k": TokenLaw(temperature=0.7, top_k=50, seed=3),
    "top-p": TokenLaw(temperature=0.7, top_p=0.95, seed=4),
    "hot top-p": TokenLaw(temperature=3.0, top_p=0.9, seed=5),
    "almost all": TokenLaw(temperature=1.0, top_p=1 - 1e-9, seed=6),
    "all filters": TokenLaw(temperature=1.0, top_k=40, top_p=0.8, min_p=0.02, seed=7),
    "greedy": TokenLaw(temperature=0.0),
}


def exhaustive_draw(tokens: Support, seed: int, position: int) -> int:
    """Every token's exact noise, no bounds."""
    return int(tokens.token_ids[(tokens.scaled + gumbel(seed, position, tokens.token_ids)).argmax()])


def big_row(kind: str, vocab_size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    spread = {"flat": 0.01, "wide": 12.0}.get(kind, 3.0)
    row = torch.randn(vocab_size, generator=generator) * spread
    if kind == "peaked":
        row[vocab_size // 2] += 30
    return row.to(dtype)


@given(data=st.data(), vocab_size=st.integers(1, 7), prompt_len=st.integers(0, 3))
@settings(max_examples=400)
def test_next_token_is_the_references(data, vocab_size, prompt_len):
    token_ids = st.lists(st.integers(0, vocab_size - 1), max_size=4)
    (row,) = data.draw(tensors(1, vocab_size))
    law, prompt, output = data.draw(laws(vocab_size)), data.draw(token_ids), data.draw(token_ids)
    ours = next_token(row, law, len(prompt) + len(output), TokenCounts(prompt, output))
    assert ours == reference.next_token(row.tolist(), law, prompt, output)


@given(data=st.data(), vocab_size=st.integers(1, 12))
def test_support_is_the_references(data, vocab_size):
    law = data.draw(laws(vocab_size).filter(lambda law: not law.is_greedy))
    row = torch.tensor(data.draw(rows(vocab_size)), dtype=torch.float64)
    ours = support((row - row.max()) / law.temperature, law)
    expected = reference.support(row.tolist(), law)
    assert dict(zip(ours.token_ids.tolist(), ours.scaled.tolist(), strict=True)) == expected


@pytest.mark.parametrize("law", BIG_LAWS.values(), ids=BIG_LAWS.keys())
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "wide"])
def test_next_token_is_the_references_over_a_big_vocabulary(kind, law):
    row = big_row(kind, 20_011, torch.bfloat16)
    logits = row.tolist()
    for position in (0, 1000):
        assert next_token(row, law, position) == reference.next_token(logits, law, [0] * position, [])


@given(seed=st.integers(0, 2**63 - 1), position=positions, spread=st.floats(0, 30), size=st.integers(1, 3000))
def test_leaving_out_hopeless_tokens_never_changes_the_draw(seed, position, spread, size):
    scaled = torch.linspace(0, -spread, size, dtype=torch.float64)
    tokens = Support(torch.arange(5, 5 + size), scaled)
    assert draw(tokens, seed, position) == exhaustive_draw(tokens, seed, position)


@given(scaled=st.lists(st.floats(-45, 0), min_size=1, max_size=60), top_p=st.floats(1e-6, 1, exclude_max=True))
def test_top_p_keeps_the_smallest_set_that_reaches_p(scaled, top_p):
    scaled[0] = 0.0
    kept = support(torch.tensor(scaled, dtype=torch.float64), TokenLaw(top_p=top_p))
    probs = [exp(value) / fsum(map(exp, scaled)) for value in scaled]
    kept_probs = sorted(probs[token_id] for token_id in kept.token_ids)
    dropped = [probs[token_id] for token_id in range(len(probs)) if token_id not in kept.token_ids]
    slack = 1e-10  # mass is counted in units of 2**-40 of the largest probability
    assert fsum(kept_probs) >= top_p - slack
    assert fsum(kept_probs[1:]) < top_p + slack
    assert max(dropped, default=0.0) <= kept_probs[0]


def test_top_p_is_exact_where_mass_meets_p_exactly():
    assert support(torch.zeros(8, dtype=torch.float64), TokenLaw(top_p=0.5)).token_ids.tolist() == [0, 1, 2, 3]
    assert len(support(torch.zeros(8, dtype=torch.float64), TokenLaw(top_p=0.5000001)).token_ids) == 5


def test_tokens_tied_with_the_kth_stay():
    scaled = torch.tensor([-1.0, 0.0, -1.0, -2.0], dtype=torch.float64)
    assert support(scaled, TokenLaw(top_k=2)).token_ids.tolist() == [0, 1, 2]


def test_min_p_keeps_tokens_that_meet_it_exactly():
    scaled = torch.tensor([0.0, log(0.25), log(0.25) - 1e-12], dtype=torch.float64)
    assert support(scaled, TokenLaw(min_p=0.25)).token_ids.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [[1.0, 3.0, 3.0, 2.0, 3.0], [-inf, -inf, 0.0], [-5.0] * 100])
def test_greedy_takes_the_lowest_of_equals(row, dtype):
    logits = torch.tensor(row, dtype=dtype)
    assert next_token(logits, TokenLaw(temperature=0.0), 5) == row.index(max(row))
    assert propose_token(logits, TokenLaw(temperature=0.0), 5) == row.index(max(row))


@pytest.mark.parametrize("row", [[0.0, nan, 1.0], [0.0, inf, 1.0], [-inf, nan, -inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_gives_its_argmax_and_no_error(row, temperature):
    law = TokenLaw(temperature=temperature)
    assert next_token(torch.tensor(row), law, 0) == propose_token(torch.tensor(row), law, 0) == 1


@given(data=st.data())
def test_tokens_of_no_probability_are_never_drawn(data):
    row = torch.tensor(data.draw(rows(6)))
    law = TokenLaw(temperature=5.0, seed=data.draw(st.integers(0, 100)))
    assert row[next_token(row, law, data.draw(positions))] > -inf


@given(data=st.data())
def test_the_same_row_gives_the_same_token_in_any_company(data):
    law, counts = data.draw(laws(9)), TokenCounts([0, 1], [2, 2])
    logits = data.draw(tensors(3, 9))
    elsewhere = logits.new_zeros(5, 17)[1:4, 3:12].copy_(logits)  # the same values, other strides and alignment
    for row, twin in zip(logits, elsewhere, strict=True):
        alone = next_token(row.clone(), law, 4, counts)
        assert next_token(row, law, 4, counts) == next_token(twin, law, 4, counts) == alone


def test_half_precision_is_read_exactly():
    row = big_row("normal", 5000, torch.bfloat16)
    for law in BIG_LAWS.values():
        assert next_token(row, law, 3) == next_token(row.float(), law, 3) == next_token(row.double(), law, 3)


@given(data=st.data(), vocab_size=st.integers(1, 9))
def test_a_guess_among_all_tokens_is_the_draw(data, vocab_size):
    (row,) = data.draw(tensors(1, vocab_size))
    law, position = data.draw(laws(vocab_size)), data.draw(st.integers(3, 50))
    counts = TokenCounts([0, 0, 0], [0] * (position - 3))
    assert propose_token(row, law, position, counts) == next_token(row, law, position, counts)


def test_a_guess_is_nearly_always_the_draw_when_the_logits_are_the_targets():
    row = big_row("peaked", 5000, torch.float32)
    law = TokenLaw(temperature=1.0, top_p=0.9, seed=8)
    row[:20] += 6
    same = [propose_token(row, law, position) == next_token(row, law, position) for position in range(50)]
    assert sum(same) >= 45


@given(data=st.data(), num_candidates=st.integers(1, 4))
def test_a_guess_is_the_draw_among_the_likeliest_tokens(data, num_candidates):
    values = torch.tensor(data.draw(st.lists(st.integers(-9, 9), min_size=4, max_size=9, unique=True))).float()
    law = data.draw(laws(len(values)).map(lambda law: TokenLaw(temperature=0.9, top_p=law.top_p, seed=law.seed)))
    others = values.argsort(descending=True)[num_candidates:]
    masked = values.index_fill(0, others, -inf)
    assert propose_token(values, law, 6, num_candidates=num_candidates) == next_token(masked, law, 6)


@given(data=st.data(), vocab_size=st.integers(1, 12), num_tokens=st.integers(1, 14))
@settings(max_examples=300)
def test_the_first_of_several_guesses_is_the_guess_and_their_order_is_that_of_the_perturbed_logits(
    data, vocab_size, num_tokens
):
    (row,) = data.draw(tensors(1, vocab_size))
    law, position = data.draw(laws(vocab_size)), data.draw(positions)
    counts = TokenCounts([0], [0])
    guesses = propose_tokens(row, law, position, counts, num_tokens=num_tokens)
    token_ids = [token_id for token_id, _ in guesses]
    confidences = [exp(log_confidence) for _, log_confidence in guesses]
    assert token_ids[0] == propose_token(row, law, position, counts)
    assert 1 <= len(set(token_ids)) == len(token_ids) <= num_tokens
    assert confidences == sorted(confidences, reverse=True)
    assert fsum(confidences) <= 1 + 1e-9


def test_without_temperature_confidence_is_the_softmax_of_the_logits():
    row = torch.tensor([0.5, 2.0, 1.0, -1.0])
    guesses = propose_tokens(row, TokenLaw(temperature=0.0), 3, num_tokens=2)
    assert [token_id for token_id, _ in guesses] == [1, 2]
    assert [exp(each) for _, each in guesses] == pytest.approx(row.softmax(0)[[1, 2]].tolist())


def test_confidence_is_how_often_a_target_whose_logits_differ_by_gumbel_noise_says_the_token():
    law = TokenLaw(temperature=0.7, seed=11)
    row = torch.tensor([1.0, 1.5, 0.2, -0.3], dtype=torch.float64)
    guesses = dict(propose_tokens(row, law, 5, num_tokens=4))
    rate = torch.distributions.Gumbel(torch.zeros(100_000, 4, dtype=torch.float64), 1.0)
    torch.manual_seed(0)
    perturbed = row + rate.sample() + law.temperature * gumbel(law.seed, 5, torch.arange(4))
    shares = perturbed.argmax(1).bincount(minlength=4) / 100_000
    for token_id, log_confidence in guesses.items():
        assert exp(log_confidence) == pytest.approx(float(shares[token_id]), abs=0.006)  # 4 standard errors


def test_what_the_law_rules_out_at_the_draft_is_guessed_after_what_it_lets_pass():
    row = torch.tensor([2.0, 2.1, -3.0, 1.9])
    for law in (TokenLaw(temperature=1.0, top_p=0.3, seed=5), TokenLaw(temperature=1.0, top_k=1, seed=5)):
        guesses = propose_tokens(row, law, 5, num_tokens=3)
        assert guesses[0][0] == propose_token(row, law, 5)
        assert len(guesses) == 3


def test_rows_and_laws_without_probabilities_give_one_guess():
    assert propose_tokens(torch.tensor([nan, 1.0]), TokenLaw(temperature=1.0), 0, num_tokens=8) == [(0, 0.0)]
    assert len(propose_tokens(torch.randn(50), TokenLaw(temperature=1e308, seed=1), 0, num_tokens=8)) == 1
