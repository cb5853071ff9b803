import pytest
from tiny import make_config, make_info, make_model

from starspec.errors import ModelError
from starspec.models.hf import TransformersRunner
from starspec.models.numerics.reference_logits import check_reference_logits, reference_logits


def test_a_runner_of_the_same_model_agrees_and_gives_its_row_back():
    model = make_model()
    expected = reference_logits(model)
    runner = TransformersRunner(model, make_config(), make_info())
    check_reference_logits("tiny", runner, expected)
    assert runner.cache.num_free_rows == runner.cache.num_rows


def test_a_model_that_computes_something_else_is_refused():
    expected = reference_logits(make_model(rope_parameters={"rope_type": "default", "rope_theta": 3.0}))
    runner = TransformersRunner(make_model(), make_config(), make_info())
    with pytest.raises(ModelError, match="is not causal attention over keys and values"):
        check_reference_logits("tiny", runner, expected)


def test_attention_that_wants_more_than_keys_and_values_is_refused_by_name():
    model = make_model()
    expected = reference_logits(model)
    runner = TransformersRunner(model, make_config(), make_info())
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
        layer.self_attn.training = True
    with pytest.raises(ModelError, match="'tiny' is not supported: its attention uses a mask or dropout of its own"):
        check_reference_logits("tiny", runner, expected)
