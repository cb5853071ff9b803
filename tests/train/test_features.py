"""What is read out of a target before a head learns from it."""

from __future__ import annotations

import pytest
import torch

from starspec.errors import ConfigError
from starspec.train.answer_files import TrainingAnswer
from starspec.train.features import collect_features, load_target


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_hidden_states_that_are_no_numbers_are_said_before_anything_is_learnt(target_folder, tmp_path, bad):
    target = load_target(str(target_folder), torch.bfloat16, "cpu")
    answers = [TrainingAnswer(index=index, prompt_ids=[5, 6], answer_ids=[7, 8, 9 + index]) for index in range(3)]
    with torch.no_grad():
        target.embedding[11] = bad  # the third answer alone says it
    with pytest.raises(ConfigError, match=r"not finite numbers, in answers to prompts 0 to 2.*another --dtype"):
        collect_features(target, answers, (1, 2), tmp_path / "features", lambda _: None)
    assert not list((tmp_path / "features").glob("*.safetensors"))
    assert len(collect_features(target, answers[:2], (1, 2), tmp_path / "features", lambda _: None)) == 2
