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
from transformers import AutoModelForCausalLM

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.attention.rotary import rotary_table
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import Segment

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TOLERANCE = {"atol": 5e-5, "rtol": 2e-4}  # float32: only the order of sums differs
TREE = (-1, 0, 0, 1, 1, 2)


def make_runner(family="llama", dtype=torch.float32, **changes):
    name = str(dtype).removeprefix("torch.")
    return FusedRunner(make_model(family, dtype, **changes), make_config(name), make_info(), pack_dense)


def mixed_batch(runner):
    """A prompt, a chain across a key block, a tree, decodes: everything a forward may hold."""
    rows = [prefill(runner, prompt_ids(length, seed=length)) for length in (0, 62, 63, 5, 30, 64)]
    return [
        Segment(rows[0], prompt_ids(40, seed=1), 1),
        Segment(rows[1], prompt_ids(5, seed=2), 5),
        Segment(rows[2], prompt_ids(6, seed=3), 6, TREE),
        *(Segment(row, prompt_ids(1, seed=row), 1) for row in rows[3:]),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_and_hugging_face_agree_on_a_mixed_batch(family):
    fused = make_runner(family)
    unfused = TransformersRunner(make_model(family), make_config(), make_info())
    logits, expected = fused.forward(mixed_batch(fused)).logits, unfused.forward(mixed_batch(unfused)).logits
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("runner_class", [FusedRunner, TransformersRunner])
def test_features_are_the_hidden_states_of_transformers_for_all_new_tokens(runner_class):
    model, ids = make_model(), prompt_ids(40, seed=1)
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states  # embeddings, layer 0, final norm
    runner = make_runner() if runner_class is FusedRunner else TransformersRunner(model, make_config(), make_info())
    row, other = prefill(runner, ids[:30]), runner.cache.lease()
    segments = [Segment(other, ids[:20], 0), Segment(row, ids[30:], 1)]
    output = runner.forward(segments, (2, 0, 1))
    expected = torch.cat([states[layer][0] for layer in (2, 0, 1)], dim=-1)
    torch.testing.assert_close(output.features, torch.cat([expected[:20], expected[30:]]), **TOLERANCE)
    assert runner.forward(segments).features is None
    with pytest.raises(ValueError, match="hidden states 0 to 2, not 3"):
        runner.forward(segments, (3,))


def test_asking_for_features_changes_no_bit_of_the_logits():
    runner = make_runner(dtype=torch.bfloat16)
    segments = mixed_batch(runner)
    assert torch.equal(runner.forward(segments, (0, 1, 2)).logits, runner.forward(segments).logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_float32_as_hugging_face_is(dtype):
    exact = TransformersRunner(make_model(dtype=dtype).float(), make_config(), make_info())
    name = str(dtype).removeprefix("torch.")
    unfused = TransformersRunner(make_model(dtype=dtype), make_config(name), make_info())
    fused = make_runner(dtype=dtype)
    expected = exact.forward(mixed_batch(exact)).logits
    error = (fused.forward(mixed_batch(fused)).logits.float() - expected).square().mean()
    usual = (unfused.forward(mixed_batch(unfused)).logits.float() - expected).square().mean()
    assert error < 1.5 * usual


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_is_that_of_generate(family):
    plain, runner = make_model(family), make_runner(family)
    for length in (1, 30, 70):
        ids = prompt_ids(length, seed=length)
        assert decode_greedily(runner, ids, 40) == generate(plain, ids, 40)


@pytest.mark.parametrize("heads", [(4, 1), (4, 4), (8, 2)])
def test_any_grouping_of_heads_agrees_with_plain_transformers(heads):
    shape = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    runner, plain = make_runner(**shape), make_model(**shape)
    ids = prompt_ids(80)
    row = prefill(runner, ids[:70])
    logits = runner.forward([Segment(row, ids[70:], 10)]).logits
    torch.testing.assert_close(logits, plain_logits(plain, ids)[70:], **TOLERANCE)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        LLAMA3,
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_scaled_rotary_agrees_with_plain_transformers(rope):
    runner, plain = make_runner(rope_parameters=rope), make_model(rope_parameters=rope)
    ids = prompt_ids(90)
    row = prefill(runner, ids[:-1])
    logits = runner.forward([Segment(row, ids[-1:], 1)]).logits
    torch.testing.assert_close(logits[0], plain_logits(plain, ids)[-1], **TOLERANCE)


def test_a_forward_without_logits_still_writes_the_cache():
    runner = make_runner()
    row = prefill(runner, prompt_ids(3))
    assert runner.forward([Segment(row, [1, 2], 0)]).logits.shape == (0, VOCAB_SIZE)
    assert runner.cache.values[1][row, :, 3:5].abs().min() > 0


def test_the_originals_are_let_go():
    model = make_model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    runner = FusedRunner(model, make_config(), make_info(), pack_dense)
    left = sum(parameter.numel() for parameter in model.model.layers.parameters())
    assert left == 0
    per_token_bytes = 4 * (parameters - VOCAB_SIZE * 96)  # all but the embedding; norms are not linears
    assert runner.info.num_weight_bytes == pytest.approx(per_token_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"hidden_act": "gelu"}, "gelu"),
        ("gpt2", {}, "gpt2"),
    ],
)
def test_models_outside_the_family_are_refused_with_the_reason(family, changes, reason):
    model = make_model("llama" if family == "gpt2" else family, **changes)
    if family == "gpt2":
        model.config.model_type = "gpt2"
    with pytest.raises(ModelError, match=reason):
        FusedRunner(model, make_config(), make_info(), pack_dense)


@pytest.mark.model
def test_smollm2_fused_agrees_with_transformers_in_float32(smollm2):
    plain = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    runner = load_runner(ModelConfig(model=str(smollm2), dtype="float32", max_model_len=256, numerics="fast"))
    unfused = TransformersRunner(plain, make_config(), make_info(max_model_len=256))
    ids = load_tokenizer(str(smollm2)).encode("The star is bright, and the hub that feeds it is small. " * 8)
    rows = [prefill(each, ids[:-9]) for each in (runner, unfused)]
    logits, expected = (
        each.forward([Segment(row, ids[-9:], 9)]).logits for each, row in zip((runner, unfused), rows, strict=True)
    )
    plain.set_attn_implementation("sdpa")
    for right in (expected, plain_logits(plain, ids)[-9:]):
        torch.testing.assert_close(logits, right, atol=2e-3, rtol=1e-3)  # 30 layers, logits up to 30
        assert torch.equal(logits.argmax(-1), right.argmax(-1))


@pytest.mark.model
def test_smollm2_greedy_decoding_is_that_of_generate_in_float32(smollm2):
    plain = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    runner = load_runner(ModelConfig(model=str(smollm2), dtype="float32", max_model_len=256))
    tokenizer = load_tokenizer(str(smollm2))
    for prompt in ("The capital of France is", "def fibonacci(n):", "Once upon a time"):
        ids = tokenizer.encode(prompt)
        assert decode_greedily(runner, ids, 24) == generate(plain, ids, 24)


@pytest.mark.parametrize("prefix_len", [0, 62, 64])
def test_a_tree_forwarded_layer_by_layer_agrees_with_hugging_face_at_once(prefix_len):
    fused, unfused = make_runner(), TransformersRunner(make_model(), make_config(), make_info())
    prefix, nodes = prompt_ids(prefix_len), prompt_ids(len(TREE), seed=1)
    expected = unfused.forward([Segment(prefill(unfused, prefix), nodes, len(nodes), TREE)]).logits
    row, other = prefill(fused, prefix), prefill(fused, prompt_ids(9))
    parts = []
    for first, last in ((0, 1), (1, 3), (3, 6)):
        beside = Segment(other, prompt_ids(1, seed=last), 0)
        segment = Segment(row, nodes[:last], last - first, TREE[:last], num_forwarded=first)
        parts.append(fused.forward([beside, segment]).logits)
    torch.testing.assert_close(torch.cat(parts), expected, **TOLERANCE)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500000.0},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
        LLAMA3,
    ],
    ids=lambda rope: rope["rope_type"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_rotary_angles_are_those_of_the_models_own_module(family, rope):
    model = make_model(family, rope_parameters=rope)
    for dtype in (torch.float32, torch.bfloat16):
        expected = model.model.rotary_emb(torch.empty(0, dtype=dtype), torch.arange(300).unsqueeze(0))
        found = rotary_table(model.config, 300, dtype, torch.device("cpu"))
        assert torch.equal(found, torch.stack(expected).squeeze(1))
