"""Ranges of layers: what users write, and whether several stages have each layer once."""

import re

import pytest

from starspec.errors import ConfigError
from starspec.models.layers import LayerRange, check_ranges


def stages(*texts, num_layers=12):
    return [(name, LayerRange.parse(text, num_layers)) for name, text in zip("abcd", texts, strict=False)]


def refusal(listed):
    with pytest.raises(ConfigError) as raised:
        check_ranges(listed)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_range_knows_its_ends():
    first, middle, last = (layers for _, layers in stages("0:4", " 4 : 7 ", "7:12"))
    assert [each.size for each in (first, middle, last)] == [4, 3, 5]
    assert [each.is_first for each in (first, middle, last)] == [True, False, False]
    assert [each.is_last for each in (first, middle, last)] == [False, False, True]
    assert LayerRange.whole(12).is_whole
    assert not last.is_whole


@pytest.mark.parametrize("text", ["", "4", "4:", ":4", "a:b", "0-4", "1:2:3", "-1:4", "0:99999999"])
def test_whatever_is_no_range_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match=re.escape(f"layers '{text}' are not a range")):
        LayerRange.parse(text, 12)


@pytest.mark.parametrize("text", ["3:3", "4:3", "0:13", "12:13"])
def test_layers_that_the_model_does_not_have_are_refused(text):
    with pytest.raises(ConfigError, match=f"layers {text} do not exist: the model has layers 0:12"):
        LayerRange.parse(text, 12)


@pytest.mark.parametrize("texts", [("0:12",), ("0:1", "1:12"), ("0:4", "4:7", "7:12")])
def test_stages_with_each_layer_once_are_fine(texts):
    check_ranges(stages(*texts))


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ((), "a target needs at least one stage"),
        (("1:12",), "no stage has layers 0:1, before a (1:12); list stages in their layers' order"),
        (("0:4", "5:12"), "no stage has layers 4:5, between a (0:4) and b (5:12); list stages in their layers' order"),
        (("0:4", "4:11"), "no stage has layers 11:12, behind b (4:11)"),
        (
            ("0:4", "3:12"),
            "stages a (0:4) and b (3:12) overlap, or are not in the order of their layers: the second should begin "
            "with layer 4",
        ),
        (("6:12", "0:6"), "no stage has layers 0:6, before a (6:12); list stages in their layers' order"),
    ],
)
def test_gaps_and_overlaps_are_named(texts, complaint):
    assert refusal(stages(*texts)) == complaint


def test_a_stage_that_is_listed_twice_is_refused():
    [one, *_] = stages("0:6")
    assert refusal([one, ("a", LayerRange(6, 12, 12))]) == "stage a is listed twice"


def test_stages_of_models_with_other_numbers_of_layers_are_refused():
    listed = [("a", LayerRange(0, 6, 12)), ("b", LayerRange(6, 24, 24))]
    assert refusal(listed) == "stage a has a model of 12 layers, and stage b one of 24"
