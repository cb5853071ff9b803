from __future__ import annotations

import pytest

from starspec.sampling.spec import SamplingSpec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", {3: 101.0}),
        ("seed", -1),
        ("seed", 2**63),
        ("min_tokens", -1),
        ("bad_words", ((),)),
        ("bad_words", ((1,) * 65,)),
        ("bad_words", ((1,),) * 2049),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("end_token_ids", (1,) * 2049),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        SamplingSpec(**{name: value})


@pytest.mark.parametrize(
    "sampling",
    [
        {"presence_penalty": 0.1},
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
        {"bad_words": ((1,),)},
        {"temperature": 0.5},
    ],
)
def test_only_greedy_without_adjustments_is_a_plain_argmax(sampling):
    assert SamplingSpec(temperature=0.0, top_k=3, top_p=0.5).is_plain_argmax
    assert not SamplingSpec(**{"temperature": 0.0} | sampling).is_plain_argmax
