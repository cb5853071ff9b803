import pytest
from tiny import make_config, make_info, make_model

from starspec.errors import CacheRangeError
from starspec.harness.step_profile import StepProfile, step_profile
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.linear.packer import make_packer
from starspec.models.linear.swapped import swap_linears


def fused():
    return FusedRunner(make_model(), make_config(), make_info(), pack_dense)


def unfused():
    return TransformersRunner(make_model(), make_config(), make_info())


def swapped():
    model, config = make_model(), make_config()
    swap_linears(model, make_packer(config, model.config.vocab_size))
    return TransformersRunner(model, config, make_info())


@pytest.mark.parametrize("make_runner", [fused, unfused, swapped])
def test_a_step_takes_longer_than_its_linears_and_reads_all_their_weights(make_runner):
    runner = make_runner()
    profile = step_profile(runner, num_tokens=3, context_len=20, num_repeats=5)
    assert 0 < profile.linears_ms < profile.step_ms
    assert 0 < profile.other_share < 1
    linears = [name for name, _ in make_model().named_parameters() if "proj" in name or "lm_head" in name]
    sizes = dict(make_model().named_parameters())
    expected = 4 * sum(sizes[name].numel() for name in linears)
    assert profile.weight_bytes == pytest.approx(expected, rel=0.02)  # with or without biases
    assert runner.cache.num_free_rows == runner.cache.num_rows


def test_a_context_that_does_not_fit_frees_the_row_again():
    runner = fused()
    with pytest.raises(CacheRangeError):
        step_profile(runner, context_len=10_000)
    assert runner.cache.num_free_rows == runner.cache.num_rows


def test_shares_and_rates_follow_from_the_times():
    profile = StepProfile(num_tokens=1, context_len=0, step_ms=10.0, linears_ms=8.0, weight_bytes=80_000_000)
    assert profile.other_share == pytest.approx(0.2)
    assert profile.weight_gigabytes_per_s == pytest.approx(10.0)
