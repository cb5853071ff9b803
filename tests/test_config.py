"""What a speculative config asks for, and the sentences that refuse one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from starspec.config import GatewayConfig, SpeculativeConfig
from starspec.config.model import check_there
from starspec.config.speculative import DOUBT
from starspec.draft_methods import DRAFT_METHODS, DraftMethod
from starspec.errors import ConfigError
from starspec.speculation.budget import NO_DRAFT, DraftBudget


@pytest.mark.parametrize(
    ("values", "budget"),
    [
        ({}, DraftBudget.chain(8)),
        ({"length": {"policy": "fixed"}}, DraftBudget.chain(4)),
        ({"eagle_topk": 2}, DraftBudget(14, 4, 2)),
        ({"num_speculative_tokens": 0}, NO_DRAFT),
        ({"num_steps": 3}, DraftBudget.chain(3)),
        ({"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}, DraftBudget.chain(3)),  # as SGLang counts
        ({"num-steps": 4, "eagle-topk": 3, "num-draft-tokens": 13}, DraftBudget(12, 4, 3)),
        ({"num_speculative_tokens": 5, "eagle_topk": 2}, DraftBudget(18, 5, 2)),
        ({"num_steps": 9, "eagle_topk": 8}, DraftBudget(64, 9, 8)),
        ({"num_speculative_tokens": 9, "draft-p-min": 0.3}, DraftBudget.chain(9, 0.3)),
        ({"num_steps": 4, "eagle_topk": 3, "num_draft_tokens": 13, "draft_p_min": 0.3}, DraftBudget(12, 4, 3, 0.3)),
        ({"num_steps": 2, "eagle_topk": 2, "num_draft_tokens": 60}, DraftBudget(6, 2, 2)),
        ({"num_steps": 3, "num_speculative_tokens": 3}, DraftBudget.chain(3)),
        ({"num_steps": 0, "eagle_topk": 4}, NO_DRAFT),
    ],
)
def test_tree_keys_mean_what_they_mean_in_sglang(values: dict, budget: DraftBudget) -> None:
    is_goodput = "length" not in values and budget.num_draft_tokens > 0
    doubt = budget.p_min or (DOUBT if is_goodput else 0.0)  # the policy's, unless it is given
    # from the log-probabilities of its nodes, goodput learns how large a tree pays
    expected = replace(budget, p_min=doubt, has_logprobs=is_goodput and not budget.is_chain)
    assert SpeculativeConfig.from_mapping(values).budget == expected


@pytest.mark.parametrize(
    ("values", "p_min"),
    [
        ({}, DOUBT),
        ({"draft_p_min": 0.6}, 0.6),
        ({"rejection_sample_method": "rejection"}, 0.0),
        ({"method": "ngram"}, 0.0),
        ({"length": {"policy": "fixed"}}, 0.0),
        ({"length": {"policy": "confidence"}}, DOUBT),
    ],
)
def test_drafts_end_in_doubt_as_the_policy_has_it(values: dict, p_min: float) -> None:
    assert SpeculativeConfig.from_mapping(values).budget.p_min == p_min


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"eagle_top_k": 2}, "did you mean 'eagle_topk'"),
        ({"eagle_topk": 0}, "eagle_topk must be 1 to 16"),
        ({"eagle_topk": 17}, "eagle_topk must be 1 to 16"),
        ({"num_steps": 65}, "num_steps must be 0 to 64"),
        ({"eagle_topk": 8, "num_steps": 10}, "forwards 72 nodes a round; at most 64 fit"),
        ({"eagle_topk": 2, "num_draft_tokens": 1}, "must be 2 to 65"),
        ({"num_steps": 3, "num_draft_tokens": 12}, "a chain of 3 steps has 4 with its root"),
        ({"num_steps": 3, "num_speculative_tokens": 8}, "num_speculative_tokens 8 and num_steps 3 are two words for"),
        ({"num_steps": 0, "eagle_topk": 4, "num_draft_tokens": 5}, "is 5, but 0 steps draft nothing: leave one out"),
        ({"method": "ngram", "eagle_topk": 2}, "method 'ngram' drafts chains"),
        ({"draft_p_min": 1.5}, "draft_p_min is a probability, 0 to 1, got 1.5"),
        ({"draft_p_min": float("nan")}, "draft_p_min is a probability"),
        ({"method": "ngram", "draft_p_min": 0.5}, "method 'ngram' knows no probabilities"),
        ({"length": {"policy": "best"}}, "length: policy 'best' is unknown"),
        ({"length": {"policy": "goodputt"}}, "did you mean 'goodput'"),
        ({"method": "ngram", "length": {"policy": "dsde"}}, "length.policy 'dsde' needs a draft that knows prob"),
        ({"eagle_topk": 2, "length": {"policy": "adaedl"}}, "'adaedl' is for chains"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 65]]}, r"row \[1, 4, 65\] must be"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4, 3], [4, 8, 2]]}, r"row \[4, 8, 2\] must be"),
        ({"num_speculative_tokens_per_batch_size": [[0, 4, 3]]}, "at least 1"),
        ({"num_speculative_tokens_per_batch_size": [[1, 4]]}, "num_speculative_tokens_per_batch_size"),
        ({"rejection_sample_method": "strict"}, "rejection_sample_method"),
    ],
)
def test_a_tree_that_cannot_be_grown_is_refused_in_one_sentence(values: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        SpeculativeConfig.from_mapping(values)


def test_a_requests_own_length_makes_a_tree_less_deep_and_a_chain_shorter() -> None:
    assert DraftBudget(12, 4, 3).with_steps(2) == DraftBudget(12, 2, 3)
    assert DraftBudget.chain(4, 0.5).with_steps(2) == DraftBudget.chain(2, 0.5)
    assert DraftBudget(12, 4, 3).with_steps(0).num_draft_tokens == 0
    assert DraftBudget(12, 4, 3).limited(num_draft_tokens=6, num_steps=9) == DraftBudget(6, 4, 3)
    assert DraftBudget.chain(9, 0.5).limited(num_draft_tokens=6, num_steps=4) == DraftBudget.chain(4, 0.5)


def test_of_every_method_it_is_said_what_is_true_of_it() -> None:
    assert set(DRAFT_METHODS) == set(get_args(DraftMethod))


def test_a_target_of_a_gateway_is_given_once() -> None:
    with pytest.raises(ConfigError, match="--endpoint tcp://a:1 is given twice"):
        GatewayConfig(targets=("tcp://a:1", "tcp://b:1", "tcp://a:1"))


@pytest.mark.parametrize(
    ("files", "device", "is_there"),
    [
        ([], "cpu", True),
        ([], "cuda", False),
        (["nvidia0", "nvidiactl"], "cuda", True),
        (["nvidia0", "nvidia1"], "cuda:1", True),
        (["nvidia0", "nvidia1"], "cuda:2", False),
        (["kfd"], "cuda:7", True),
    ],
)
def test_a_device_that_is_certainly_not_there_is_refused(
    tmp_path: Path, files: list[str], device: str, is_there: bool
) -> None:
    for each in files:
        (tmp_path / each).touch()
    if is_there:
        check_there(device, tmp_path)
        return
    with pytest.raises(ConfigError, match=f"device '{device}' is not there"):
        check_there(device, tmp_path)
