"""The reference itself, checked by hand, because the fast modules are compared with it."""

from __future__ import annotations

import math

import pytest

from starspec.sampling import reference
from starspec.sampling.spec import SamplingSpec

LOGITS = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]


@pytest.mark.parametrize(
    ("sampling", "probs"),
    [
        (SamplingSpec(), [0.4, 0.3, 0.2, 0.1]),
        (SamplingSpec(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (SamplingSpec(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (SamplingSpec(top_p=0.69), [4 / 7, 3 / 7, 0, 0]),
        (SamplingSpec(top_p=0.71), [4 / 9, 3 / 9, 2 / 9, 0]),
        (SamplingSpec(min_p=0.49), [4 / 9, 3 / 9, 2 / 9, 0]),
        (SamplingSpec(top_k=3, top_p=0.5), [4 / 7, 3 / 7, 0, 0]),  # 0.4 / 0.9 < 0.5: top-p is of what top-k leaves
        (SamplingSpec(top_p=0.69, min_p=0.76), [1, 0, 0, 0]),
    ],
)
def test_probabilities_by_hand(sampling, probs):
    assert reference.probabilities(LOGITS, sampling) == pytest.approx(probs)


def test_penalties_bias_and_min_tokens_by_hand():
    sampling = SamplingSpec(repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={0: 1.0})
    assert reference.adjust([1.0, 4.0, -1.0, 0.5], sampling, [1], [2, 2]) == [2.0, 2.0, -3.0, 0.5]
    sampling = SamplingSpec(min_tokens=2, end_token_ids=(3,))
    assert reference.adjust([1.0, 1.0], SamplingSpec(min_tokens=2, end_token_ids=(1,)), [0], [0]) == [1.0, -math.inf]
    assert reference.adjust([1.0, 1.0], sampling, [0], [0, 0]) == [1.0, 1.0]


def test_a_draw_is_the_largest_logit_and_noise():
    noise = [reference.gumbel(9, 2, token_id) for token_id in range(4)]
    perturbed = [logit + each for logit, each in zip(LOGITS, noise, strict=True)]
    assert reference.next_token(LOGITS, SamplingSpec(seed=9), [0], [0]) == perturbed.index(max(perturbed))
