"""Two readings of a head's list of layers are compared where exactly one of them is right."""

import pytest
from scipy import stats

from starspec.doctor.drafts import ERROR_RATE, LayerChoice, choose_layers, p_value
from starspec.doctor.text import _layers_sentence

OWN, OTHER = (1, 14, 26), (2, 15, 27)


def compare(*, both: int, only_own: int, only_other: int, neither: int) -> LayerChoice:
    counts = {(True, True): both, (True, False): only_own, (False, True): only_other, (False, False): neither}
    outcomes = [pair for pair, num in counts.items() for _ in range(num)]
    return choose_layers(OWN, "as listed", OTHER, [own for own, _ in outcomes], [other for _, other in outcomes])


def test_a_small_difference_that_is_no_chance_decides() -> None:
    """Of 1,152 positions 69% against 72%, as a real head has it."""
    choice = compare(both=737, only_own=58, only_other=93, neither=264)
    assert (choice.used.feature_layers, choice.is_settled, choice.num_positions) == (OTHER, True, 1152)
    assert choice.used.first_choice_rate - choice.other.first_choice_rate < 0.04
    assert 'put "feature_layers": [2, 15, 27]' in _layers_sentence(choice)


def test_the_heads_own_reading_is_kept_only_where_that_is_shown() -> None:
    choice = compare(both=737, only_own=93, only_other=58, neither=264)
    assert (choice.used.feature_layers, choice.is_settled) == (OWN, True)
    assert _layers_sentence(choice).endswith("alone at 93 and 58 of 1152 positions: keep")


@pytest.mark.parametrize(("only_own", "only_other"), [(34, 45), (45, 34), (0, 7), (0, 0)])
def test_a_difference_that_chance_may_make_asks_for_more_prompts(only_own: int, only_other: int) -> None:
    choice = compare(both=168, only_own=only_own, only_other=only_other, neither=137)
    assert (choice.used.feature_layers, choice.is_settled) == (OWN, False)
    sentence = _layers_sentence(choice)
    assert "give more prompts" in sentence
    assert "keep" not in sentence


def test_equals_are_told_apart_no_more_often_than_stated() -> None:
    for num in (5, 20, 151):
        wrong = sum(stats.binom.pmf(one, num, 0.5) for one in range(num + 1) if p_value(one, num - one) <= ERROR_RATE)
        assert wrong <= ERROR_RATE


def test_the_p_value_is_that_of_the_binomial_test() -> None:
    for one, other in ((0, 8), (3, 3), (58, 93), (1400, 1600)):
        assert p_value(one, other) == pytest.approx(stats.binomtest(one, one + other).pvalue)
