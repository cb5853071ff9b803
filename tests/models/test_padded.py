"""In a padded rectangle every sequence gets the logits that it has alone, whatever the other sequences are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCAB_SIZE, make_config, make_info, make_model, plain_logits, prompt_ids

from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.linear.packer import make_packer
from starspec.models.padded import PaddedRunner, padded_mask
from starspec.models.runner import Segment
from starspec.stats import BatchStats

MODEL = make_model("qwen3")


def make_base(kind="fused", dtype="float32"):
    config, model = make_config(dtype), make_model("qwen3", getattr(torch, dtype))
    if kind == "fused":
        return FusedRunner(model, config, make_info(), make_packer(config, VOCAB_SIZE))
    return TransformersRunner(model, config, make_info())


BASES = {kind: make_base(kind) for kind in ("fused", "transformers")}


def make_runner(base=BASES["fused"]):
    stats = BatchStats()
    return PaddedRunner(base, stats), stats


def prefill(runner, token_ids):
    row = runner.cache.lease()
    if token_ids:
        runner.forward([Segment(row, token_ids, 0)])
        runner.cache.append(row, len(token_ids))
    return row


@pytest.mark.parametrize("kind", BASES)
@settings(max_examples=12)
@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=5), data=st.data())
def test_ragged_rounds_give_the_logits_of_each_sequence_alone(kind, lengths, data):
    """Three rounds of chains of any sizes and any acceptance; transformers computes each text from the beginning."""
    runner, _ = make_runner(BASES[kind])
    texts = [prompt_ids(length, seed) for seed, length in enumerate(lengths)]
    rows = [prefill(runner, text) for text in texts]
    for _ in range(3):
        chains = [prompt_ids(data.draw(st.integers(1, 5)), data.draw(st.integers(0, 99))) for _ in rows]
        wanted = [data.draw(st.integers(1, len(chain))) for chain in chains]
        segments = [Segment(row, chain, num) for row, chain, num in zip(rows, chains, wanted, strict=True)]
        found = torch.split(runner.forward(segments).logits, wanted)
        for index, (row, chain, num) in enumerate(zip(rows, chains, wanted, strict=True)):
            expected = plain_logits(MODEL, [*texts[index], *chain])[-num:]
            torch.testing.assert_close(found[index], expected, atol=2e-4, rtol=1e-4)  # float32, other sums
            accepted = data.draw(st.integers(0, len(chain)))
            runner.cache.commit(row, range(accepted))
            texts[index] = [*texts[index], *chain[:accepted]]
        runner.cache.check_integrity()


def test_trees_give_each_node_the_logits_of_its_path():
    (runner, _), text = make_runner(), prompt_ids(9, 1)
    rows = [prefill(runner, prompt_ids(20, 2)), prefill(runner, text)]
    tree, parents = [5, 6, 7, 8, 9], (-1, 0, 0, 2, 1)
    logits = runner.forward([Segment(rows[0], [3], 1), Segment(rows[1], tree, 5, parents)]).logits[1:]
    for node, path in enumerate(([5], [5, 6], [5, 7], [5, 7, 8], [5, 6, 9])):
        torch.testing.assert_close(logits[node], plain_logits(MODEL, [*text, *path])[-1], atol=2e-4, rtol=1e-4)
    runner.cache.commit(rows[1], (0, 2, 3))
    after = runner.forward([Segment(rows[0], [3], 1), Segment(rows[1], [4], 1)]).logits[1]
    torch.testing.assert_close(after, plain_logits(MODEL, [*text, 5, 7, 8, 4])[-1], atol=2e-4, rtol=1e-4)


def test_features_are_those_of_tokens_and_not_of_padding():
    runner, _ = make_runner()
    texts = [prompt_ids(12, 3), prompt_ids(4, 4)]
    rows = [prefill(runner, text) for text in texts]
    chains = [[7, 8, 9], [10]]
    together = runner.forward([Segment(row, chain, 1) for row, chain in zip(rows, chains, strict=True)], (0, 2))
    alone = [runner.forward([Segment(row, chain, 1)], (0, 2)) for row, chain in zip(rows, chains, strict=True)]
    torch.testing.assert_close(together.features, torch.cat([each.features for each in alone]), atol=1e-4, rtol=1e-4)


def test_masks_are_of_columns_and_positions_begin_at_the_first_content_token():
    mask = padded_mask([Segment(0, [1, 2], 1), Segment(1, [1], 1)], (1, 0), 3, 2)
    assert mask.int().tolist() == [[[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]], [[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]]


def test_prompts_are_not_counted_as_realigned():
    runner, stats = make_runner()
    rows = [prefill(runner, prompt_ids(length, 5)) for length in (3, 50, 20)]
    assert stats == BatchStats()
    runner.forward([Segment(row, [1, 2], 2) for row in rows])
    assert stats.num_realigned_rounds == 1
    assert stats.realign_kv_s > 0
    assert stats.realign_pad_s > 0


def test_a_round_that_needs_no_realignment_is_charged_none():
    runner, stats = make_runner()
    rows = [prefill(runner, prompt_ids(9, seed)) for seed in (1, 2)]
    runner.forward([Segment(row, [1, 2], 2) for row in rows])  # concatenated
    copied_s = stats.copy_s
    for row in rows:
        runner.cache.append(row, 2)
    runner.forward([Segment(row, [1, 2], 2) for row in rows])  # as they lie
    assert copied_s > 0
    assert (stats.num_realigned_rounds, stats.realign_s) == (0, 0)


def test_half_precision_gives_no_nan_for_padding():
    runner, _ = make_runner(make_base(dtype="bfloat16"))
    rows = [prefill(runner, prompt_ids(length, 6)) for length in (0, 90)]
    logits = runner.forward([Segment(rows[0], [1], 1), Segment(rows[1], [1, 2, 3], 3)]).logits
    assert logits.isfinite().all()


def test_a_segment_that_does_not_fit_writes_nothing():
    runner, _ = make_runner()
    row = prefill(runner, prompt_ids(5, 7))
    with pytest.raises(Exception, match="do not fit"):
        runner.forward([Segment(row, [1] * 300, 1)])
    with pytest.raises(ValueError, match="hidden states"):
        runner.forward([Segment(row, [1], 1)], (9,))
    assert runner.cache.lengths[row] == 5
