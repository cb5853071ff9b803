import pytest
import torch
from tiny import (
    FAMILIES,
    VOCAB_SIZE,
    decode_greedily,
    generate,
    make_config,
    make_info,
    make_model,
    plain_logits,
    prefill,
    prompt_ids,
)
from transformers import MarianConfig, MarianForCausalLM

from starspec.errors import CacheRangeError, ForwardAborted, ModelError
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner, ragged_attention
from starspec.models.linear.dense import pack_dense
from starspec.models.runner import Segment

TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}  # float32: only the order of sums differs

TREE = (-1, 0, 0, 1, 1, 2)
PATHS = ((0, 1, 3), (0, 1, 4), (0, 2, 5))


def make_runner(family="llama", **changes):
    return TransformersRunner(make_model(family), make_config(**changes), make_info())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_that_was_given_up_has_changed_nothing(family):
    runner, looks = make_runner(family), iter((False, True))
    row = prefill(runner, prompt_ids(5))
    expected = runner.forward([Segment(row, [3, 4], 2)]).logits
    with pytest.raises(ForwardAborted):
        runner.forward([Segment(row, [6, 7], 2)], is_obsolete=lambda: next(looks))
    assert torch.equal(runner.forward([Segment(row, [3, 4], 2)], is_obsolete=lambda: False).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_batches_agree_with_plain_transformers(family):
    runner, plain = make_runner(family), make_model(family)
    sequences = [prompt_ids(length, seed=length) for length in (1, 5, 63, 64, 65, 130)]
    rows = [prefill(runner, ids[: len(ids) // 2]) for ids in sequences]
    segments = [Segment(row, ids[len(ids) // 2 :], 1) for row, ids in zip(rows, sequences, strict=True)]
    logits = runner.forward(segments).logits
    expected = torch.stack([plain_logits(plain, ids)[-1] for ids in sequences])
    torch.testing.assert_close(logits, expected, **TOLERANCE)


@pytest.mark.parametrize("prefix_len", [3, 62, 64])
def test_a_tree_agrees_with_each_of_its_paths(prefix_len):
    runner, plain = make_runner(), make_model()
    prefix, nodes = prompt_ids(prefix_len), prompt_ids(len(TREE), seed=1)
    row = prefill(runner, prefix)
    logits = runner.forward([Segment(row, nodes, len(nodes), TREE)]).logits
    for path in PATHS:
        expected = plain_logits(plain, prefix + [nodes[node] for node in path])[prefix_len:]
        torch.testing.assert_close(logits[list(path)], expected, **TOLERANCE)


def test_a_committed_path_continues_as_if_it_had_been_decoded():
    runner, plain = make_runner(), make_model()
    prefix, nodes, after = prompt_ids(20), prompt_ids(len(TREE), seed=1), prompt_ids(3, seed=2)
    row = prefill(runner, prefix)
    runner.forward([Segment(row, nodes, len(nodes), TREE)])
    runner.cache.commit(row, PATHS[2])
    logits = runner.forward([Segment(row, after, 3)]).logits
    whole = prefix + [nodes[node] for node in PATHS[2]] + after
    torch.testing.assert_close(logits, plain_logits(plain, whole)[-3:], **TOLERANCE)


def test_a_rejected_draft_leaves_no_trace():
    runner = make_runner()
    row = prefill(runner, prompt_ids(20))
    token = [5]
    before = runner.forward([Segment(row, token, 1)]).logits
    runner.forward([Segment(row, [9, 8, 7, 6], 4)])
    assert torch.equal(runner.forward([Segment(row, token, 1)]).logits, before)


def test_prompts_in_chunks_agree_with_prompts_at_once():
    plain, ids = make_model(), prompt_ids(150)
    for chunk in (17, 64, 150):
        runner = make_runner()
        row = prefill(runner, ids[:-1], chunk)
        logits = runner.forward([Segment(row, ids[-1:], 1)]).logits
        torch.testing.assert_close(logits[0], plain_logits(plain, ids)[-1], **TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_is_that_of_generate(family):
    plain, runner = make_model(family), make_runner(family)
    for length in (1, 30, 70):
        ids = prompt_ids(length, seed=length)
        assert decode_greedily(runner, ids, 40) == generate(plain, ids, 40)


def test_only_wanted_logits_come_back_in_segment_order():
    runner = make_runner()
    rows = [prefill(runner, prompt_ids(6, seed)) for seed in range(3)]
    tokens = [4, 5, 6]
    alone = [runner.forward([Segment(row, tokens, 3)]).logits for row in rows]
    together = runner.forward(
        [Segment(rows[0], tokens, 1), Segment(rows[1], tokens, 0), Segment(rows[2], tokens, 2)]
    ).logits
    torch.testing.assert_close(together, torch.cat([alone[0][2:], alone[2][1:]]), **TOLERANCE)
    assert runner.forward([]).logits.shape == (0, VOCAB_SIZE)
    assert runner.forward([Segment(rows[0], tokens, 0)]).logits.shape == (0, VOCAB_SIZE)


def test_malformed_segments_are_refused_before_anything_is_written():
    runner = make_runner()
    row = prefill(runner, prompt_ids(6))
    before = runner.cache.keys[0].clone()
    fine = Segment(row, [1], 1)
    for wrong, error in (
        (Segment(row, [1] * 1000, 0), CacheRangeError),
        (Segment(row + 1, [1], 1), CacheRangeError),
        (fine, CacheRangeError),
        (Segment(row, [], 0), ValueError),
        (Segment(row, [1], 2), ValueError),
        (Segment(row, [1], -1), ValueError),
    ):
        with pytest.raises(error):
            runner.forward([fine, wrong])
    with pytest.raises(ValueError, match="parents must come first"):
        runner.forward([Segment(row, [1, 2], 2, (-1, 1))])
    assert torch.equal(runner.cache.keys[0], before)


def test_a_window_that_a_layer_keeps_to_its_own_mask_is_refused_by_name():
    model = make_model("llama")
    model.config.sliding_window = 8  # Llama's layers do not tell attention of it
    with pytest.raises(ModelError, match=r"'tiny' is not supported: layer 0 .* 8 tokens.*use --max-model-len 8"):
        TransformersRunner(model, make_config(), make_info())
    assert TransformersRunner(model, make_config(), make_info(max_model_len=8)).info.max_model_len == 8


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 256),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
            64,
        ),
    ],
    ids=["dynamic", "longrope"],
)
@pytest.mark.parametrize("path", ["fused", "transformers"])
def test_rotary_frequencies_that_would_depend_on_the_batch_are_refused_with_the_length_that_works(path, rope, length):
    def make(max_model_len):
        model, info = make_model(rope_parameters=rope), make_info(max_model_len=max_model_len)
        if path == "fused":
            return FusedRunner(model, make_config(num_rows=1), info, pack_dense)
        return TransformersRunner(model, make_config(num_rows=1), info)

    with pytest.raises(ModelError, match=f"'tiny' is not supported .*{rope['rope_type']}.*--max-model-len {length} or"):
        make(length + 1)
    runner, ids = make(length), prompt_ids(length - 1)
    row = prefill(runner, ids[:-1])
    # drafts at positions beyond the longest sequence change no frequency
    runner.forward([Segment(row, [1] * 20, 20)])
    logits = runner.forward([Segment(row, ids[-1:], 1)]).logits
    expected = plain_logits(make_model(rope_parameters=rope), ids)[-1]
    torch.testing.assert_close(logits[0], expected, **TOLERANCE)


class NotCausal(torch.nn.Module):
    layer_idx = 0
    is_causal = False


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"position_bias": torch.zeros(1)}, "its attention uses position_bias"),
        ({"is_causal": False}, "a mask or dropout of its own"),
        ({"dropout": 0.1}, "a mask or dropout of its own"),
        ({"module": NotCausal()}, "a mask or dropout of its own"),
        ({"module": torch.nn.Module()}, "its layers do not say which of them they are"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_attention_that_is_not_computed_here_is_refused(changes, complaint):
    module = make_model().model.layers[0].self_attn
    x = torch.zeros(1, 2, 1, 16)
    with pytest.raises(ModelError, match=complaint):
        ragged_attention(**{"module": module, "query": x, "key": x, "value": x, "attention_mask": None, **changes})


def test_layers_that_do_not_attend_through_the_interface_are_refused_by_name():
    model = make_model()
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    model.model.layers[0].self_attn.layer_idx = 1
    with pytest.raises(ModelError, match="'tiny' is not supported: not all of its layers attend through"):
        TransformersRunner(model, make_config(), make_info())


def test_code_that_counts_the_tokens_of_a_forward_itself_is_refused_by_name():
    config = MarianConfig(
        vocab_size=VOCAB_SIZE, d_model=16, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=16,
        is_decoder=True, is_encoder_decoder=False, pad_token_id=0,
    )  # fmt: skip
    with pytest.raises(ModelError, match="'tiny' is not supported: its code takes no positions"):
        TransformersRunner(MarianForCausalLM(config).eval(), make_config(), make_info())


def test_a_layer_that_attends_twice_is_refused_by_name():
    model = make_model()
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ModelError, match="'tiny' is not supported: its layer 0 attends more than once"):
        TransformersRunner(model, make_config(), make_info())


@pytest.mark.parametrize("prefix_len", [0, 3, 62, 64])
@pytest.mark.parametrize("layers", [(1, 3, 6), (2, 4, 5, 6)])
def test_a_tree_forwarded_layer_by_layer_is_the_tree_forwarded_at_once(prefix_len, layers):
    runner = make_runner(num_rows=2)
    prefix, nodes = prompt_ids(prefix_len), prompt_ids(len(TREE), seed=1)
    at_once = runner.forward([Segment(prefill(runner, prefix), nodes, len(nodes), TREE)]).logits
    row = prefill(runner, prefix)
    parts = []
    for first, last in zip((0, *layers), layers, strict=False):
        segment = Segment(row, nodes[:last], last - first, TREE[:last], num_forwarded=first)
        parts.append(runner.forward([segment]).logits)
    torch.testing.assert_close(torch.cat(parts), at_once, **TOLERANCE)


@pytest.mark.parametrize(("num_forwarded", "num_logits"), [(-1, 0), (3, 0), (2, 2)])
def test_a_segment_without_new_tokens_or_with_logits_of_old_ones_is_refused(num_forwarded, num_logits):
    runner = make_runner()
    with pytest.raises(ValueError, match="new tokens cannot give"):
        runner.forward([Segment(runner.cache.lease(), [1, 2, 3], num_logits, None, num_forwarded)])
