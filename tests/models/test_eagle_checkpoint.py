import json
import os
from pathlib import Path

import pytest
import torch
from eagle_checkpoints import (
    DIALECTS,
    EVERY_DIALECT,
    LAYERS,
    TARGET,
    TOKEN_IDS,
    make_head,
    safeailab,
    specforge,
    speculators,
    vllm,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from transformers import LlamaConfig, LlamaForCausalLM

from starspec.config import SpeculativeConfig
from starspec.errors import ModelError
from starspec.models.heads.checkpoint import read_feature_layers, read_head
from starspec.models.heads.load import TargetTensors, with_borrowed
from starspec.models.heads.spec import HeadWeights, TargetShape
from starspec.models.heads.tensors import draft_token_mask, offsets_of, token_ids_of
from starspec.models.heads.write import write_head
from starspec.models.resolve import resolve_draft

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LISTED = "eagle_aux_hidden_state_layer_ids"


def assert_same(found, expected):
    assert found.spec == expected.spec
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype, name
        assert torch.equal(found.tensors[name], tensor), name
    assert (found.draft_token_ids is None) == (expected.draft_token_ids is None)
    if expected.draft_token_ids is not None:
        assert torch.equal(found.draft_token_ids, expected.draft_token_ids)


def names_in(folder):
    return sorted(each.name for each in folder.iterdir())


def head_of(method):
    return make_head(method, without=() if method == "eagle" else ("fc.bias",))


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(("method", "dialect"), EVERY_DIALECT)
def test_a_head_is_the_same_in_every_dialect(method, dialect, pickled, tmp_path):
    head = head_of(method)
    folder = write(tmp_path, *DIALECTS[method][dialect](head), pickled=pickled)
    assert_same(read_head(str(folder), target=TARGET), head)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("eagle3", {}),
        ("eagle3", {"norm_before_residual": True, "target_name": "someone/target"}),
        ("eagle3", {"rope_scaling": LLAMA3_SCALING}),
        ("eagle3", {"target_hidden_size": 20, "feature_layers": (1, 4, 6, 9)}),
        ("eagle", {}),
        ("eagle", {"has_input_norm": True, "target_name": "someone/target"}),
        ("eagle", {"rope_scaling": LLAMA3_SCALING}),
    ],
)
def test_what_is_written_is_read_bit_by_bit_without_its_target(method, changes, tmp_path):
    head = make_head(method, **changes)
    write_head(tmp_path / "new", head, {"steps": 7})
    assert_same(read_head(tmp_path / "new"), head)
    assert json.loads((tmp_path / "new" / "provenance.json").read_text()) == {"steps": 7}


def test_an_eagle1_head_may_have_a_vocabulary_of_its_own(tmp_path):
    spec = make_head("eagle", draft_vocab_size=len(TOKEN_IDS))
    head = HeadWeights(spec.spec, spec.tensors, TOKEN_IDS)
    write_head(tmp_path, head, {})
    assert_same(read_head(tmp_path), head)


def test_what_a_head_leaves_to_its_target_is_not_written(tmp_path):
    head = make_head(without=("fc.bias", "lm_head.weight", "embed_tokens.weight"))
    write_head(tmp_path, head, {})
    assert_same(read_head(tmp_path), head)


def test_float32_is_written_as_bfloat16(tmp_path):
    head = make_head()
    precise = HeadWeights(head.spec, {name: each.float() for name, each in head.tensors.items()}, head.draft_token_ids)
    write_head(tmp_path, precise, {})
    assert_same(read_head(tmp_path), head)


def test_a_tied_head_is_written_with_both(tmp_path):
    head = make_head(draft_vocab_size=40)
    head.tensors["lm_head.weight"] = head.tensors["embed_tokens.weight"]
    tied = HeadWeights(head.spec, head.tensors, None)
    write_head(tmp_path, tied, {})
    assert_same(read_head(tmp_path), tied)


def test_a_written_layer_config_is_one_of_transformers(tmp_path):
    scaling = {"rope_type": "linear", "factor": 2.0}
    write_head(tmp_path, make_head(rope_scaling=scaling), {})
    layer = LlamaConfig(**json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"])
    assert layer.rope_parameters == {"rope_theta": 5000.0, **scaling}
    assert (layer.num_hidden_layers, layer.head_dim, layer.vocab_size) == (1, 6, 40)


def test_writing_again_replaces_a_head_and_leaves_the_rest(tmp_path):
    write_head(tmp_path, make_head(), {"run": 1})
    (tmp_path / "README.md").write_text("a card")
    head = make_head("eagle")
    write_head(tmp_path, head, {"run": 2})
    assert_same(read_head(tmp_path), head)
    assert names_in(tmp_path) == ["README.md", "config.json", "model.safetensors", "provenance.json"]


def test_a_write_that_fails_leaves_the_head_that_was_there(tmp_path, monkeypatch):
    head = make_head()
    write_head(tmp_path, head, {})
    real = Path.write_bytes

    def full(self, data):
        if "config" in self.name:
            raise OSError("no space left on device")
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        write_head(tmp_path, make_head("eagle"), {})
    assert_same(read_head(tmp_path), head)
    assert names_in(tmp_path) == ["config.json", "model.safetensors", "provenance.json"]


def test_provenance_that_is_not_json_leaves_the_head_that_was_there(tmp_path):
    head = make_head()
    write_head(tmp_path, head, {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_head(tmp_path, make_head("eagle"), {"folder": Path()})
    assert_same(read_head(tmp_path), head)


def test_a_head_that_does_not_fit_its_spec_is_not_written(tmp_path):
    head = make_head()
    del head.tensors["norm.weight"]
    with pytest.raises(ModelError, match=r"the first is norm\.weight"):
        write_head(tmp_path / "new", head, {})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("method", "dialect"), EVERY_DIALECT)
def test_a_head_is_recognised_by_its_config_unless_it_is_safeailabs_eagle1(method, dialect, tmp_path):
    folder = write(tmp_path, *DIALECTS[method][dialect](head_of(method)))
    is_recognised = (method, dialect) != ("eagle", "SafeAILab")
    assert (resolve_draft(SpeculativeConfig(method="draft_model", model=str(folder))).kind == "head") == is_recognised
    assert resolve_draft(SpeculativeConfig(method=method, model=str(folder))).kind == "head"


@pytest.mark.parametrize(
    ("architecture", "is_recognised"),
    [
        ("LlamaForCausalLMEagle", True),
        ("EagleLlamaForCausalLM", True),
        ("Eagle3Qwen3ForCausalLM", True),
        ("LlamaForCausalLM", False),
        ("GPT2LMHeadModel", False),
    ],
)
def test_a_head_is_recognised_by_its_architecture(architecture, is_recognised, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": [architecture]}))
    assert (resolve_draft(SpeculativeConfig(method="draft_model", model=str(tmp_path))).kind == "head") == is_recognised


class TestVocabulary:
    @given(st.data())
    def test_offsets_and_ids_are_each_others_inverse(self, data):
        vocab_size = data.draw(st.integers(1, 60))
        ids = torch.tensor(data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, unique=True)))
        assert torch.equal(token_ids_of("head", offsets_of(ids), draft_token_mask(ids, vocab_size), vocab_size), ids)
        assert torch.equal(draft_token_mask(ids, vocab_size).nonzero().flatten(), ids.sort().values)

    @settings(max_examples=20)
    @given(order=st.permutations(range(len(TOKEN_IDS))))
    def test_tokens_in_any_order_are_the_same_head(self, order, tmp_path_factory):
        head = make_head()
        config, tensors = speculators(head)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][list(order)]
        tensors["d2t"] = offsets_of(TOKEN_IDS[list(order)])
        folder = write(tmp_path_factory.mktemp("head"), config, tensors)
        assert_same(read_head(folder, target=TARGET), head)

    def test_all_tokens_of_the_target_are_no_vocabulary_of_its_own(self, tmp_path):
        head = make_head(draft_vocab_size=40)
        config, tensors = speculators(HeadWeights(head.spec, head.tensors, None))
        expected = HeadWeights(head.spec, head.tensors, None)
        assert_same(read_head(write(tmp_path / "without", config, tensors), target=TARGET), expected)
        tensors["d2t"] = torch.zeros(40, dtype=torch.int64)
        assert_same(read_head(write(tmp_path / "with", config, tensors), target=TARGET), expected)

    @pytest.mark.parametrize(
        ("offsets", "complaint"),
        [
            ([0, 0, 0, 0, 0, 0, 0, 33], "leads to token 40 of a target with 40"),
            ([-1, 0, 0, 0, 0, 0, 0, 0], "leads to token -1"),
            ([0, 0, 0, 0, 0, 0, 0, -1], "same token of the target twice"),
            ([0, 0, 0, 0, 0, 0, 0, 0], "d2t and t2d name different tokens"),
            ([0.0] * 8, "d2t should be a list of integers"),
            ([0] * 7, r"d2t should be \[8\], but is \[7\]"),
        ],
    )
    def test_offsets_that_cannot_be_are_corrupt(self, offsets, complaint, tmp_path):
        config, tensors = speculators(make_head())
        tensors["d2t"] = torch.tensor(offsets)
        with pytest.raises(ModelError, match=complaint):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_a_mask_of_another_size_is_corrupt(self, tmp_path):
        config, tensors = speculators(make_head())
        tensors["t2d"] = tensors["t2d"][:-1].clone()
        with pytest.raises(ModelError, match=r"t2d should be \[40\], but is \[39\]"):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_a_smaller_vocabulary_needs_its_offsets(self, tmp_path):
        config, tensors = specforge(make_head())
        del tensors["d2t"]
        with pytest.raises(ModelError, match="d2t is missing, which maps its 8 tokens to the target's 40 tokens"):
            read_head(write(tmp_path, config, tensors), target=TARGET)


class TestBorrowing:
    @pytest.fixture
    def target(self, tmp_path):
        shape = {"hidden_size": 16, "vocab_size": 40, "num_hidden_layers": 10}
        config = LlamaConfig(**shape, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2)
        LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
        return TargetTensors.of(str(tmp_path / "target"))

    @pytest.mark.parametrize("dialect", DIALECTS["eagle3"])
    def test_a_head_without_an_lm_head_uses_its_targets_and_says_so_loudly(self, dialect, target, tmp_path):
        head = make_head(without=("fc.bias", "lm_head.weight", "embed_tokens.weight"))
        folder = write(tmp_path / "head", *DIALECTS["eagle3"][dialect](head))
        with capture_logs() as logs:
            found = with_borrowed(read_head(folder, target=target.shape), target)
        assert torch.equal(found.tensors["lm_head.weight"], target.lm_head()[TOKEN_IDS])
        assert torch.equal(found.tensors["embed_tokens.weight"], target.embedding())
        [line] = logs
        assert line["log_level"] == "warning"
        assert "no LM head of its own" in line["event"]

    def test_a_head_with_both_borrows_nothing_and_says_nothing(self, target, tmp_path):
        head = make_head()
        folder = write(tmp_path / "head", *vllm(head))
        with capture_logs() as logs:
            assert_same(with_borrowed(read_head(folder, target=target.shape), target), head)
        assert logs == []


class TestFeatureLayers:
    @pytest.mark.parametrize("dialect", DIALECTS["eagle3"])
    def test_without_a_list_all_dialects_mean_the_same_layers(self, dialect, tmp_path):
        folder = write(tmp_path, *DIALECTS["eagle3"][dialect](make_head()))
        assert read_feature_layers(folder, target=TARGET).layers == LAYERS
        assert read_feature_layers(folder, target=TargetShape(num_layers=32, hidden_size=16, vocab_size=40)).layers == (
            2,
            16,
            29,
        )

    @pytest.mark.parametrize(
        ("dialect", "layers", "other"),
        [
            ("speculators", (1, 4, 6), (2, 5, 7)),
            ("vLLM", (1, 4, 6), (2, 5, 7)),
            ("SafeAILab", (1, 4, 6), (2, 5, 7)),
            ("SpecForge", (2, 5, 7), (1, 4, 6)),
        ],
    )
    @pytest.mark.parametrize("nested", [False, True])
    def test_a_list_is_inputs_of_layers_or_outputs_by_dialect(self, dialect, layers, other, nested, tmp_path):
        config, tensors = DIALECTS["eagle3"][dialect](make_head())
        config |= {"eagle_config": {LISTED: [1, 4, 6]}} if nested else {LISTED: [1, 4, 6]}
        folder = write(tmp_path, config, tensors)
        reading = read_feature_layers(folder)
        assert (reading.layers, reading.other) == (layers, other)
        assert read_head(folder).spec.feature_layers == layers
        assert read_head(folder, feature_layers=other).spec.feature_layers == other

    @pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
    def test_a_list_of_specforge_is_its_own_whatever_the_family(self, family, tmp_path):
        config, tensors = DIALECTS["eagle3"]["SpecForge"](make_head())
        config |= {LISTED: [1, 4, 6], "architectures": [f"{family}ForCausalLMEagle3"]}
        assert read_feature_layers(write(tmp_path, config, tensors)).layers == (2, 5, 7)

    @pytest.mark.parametrize("dialect", DIALECTS["eagle"])
    def test_eagle1_reads_the_last_hidden_state(self, dialect, tmp_path):
        folder = write(tmp_path, *DIALECTS["eagle"][dialect](head_of("eagle")))
        reading = read_feature_layers(folder, target=TARGET)
        assert (reading.layers, reading.other) == ((10,), None)

    def test_eagle1_reads_no_more_than_one(self, tmp_path):
        folder = write(tmp_path, *next(iter(DIALECTS["eagle"].values()))(head_of("eagle")))
        with pytest.raises(ModelError, match=r"an EAGLE-1 head, which takes one hidden state, not \[2, 5\]"):
            read_head(folder, target=TARGET, feature_layers=(2, 5))

    def test_another_reading_beyond_the_target_is_none(self, tmp_path):
        config, tensors = vllm(make_head())
        folder = write(tmp_path, config | {LISTED: [2, 5, 10]}, tensors)
        reading = read_feature_layers(folder, target=TARGET)
        assert (reading.layers, reading.other) == ((2, 5, 10), None)

    @pytest.mark.parametrize(
        ("listed", "complaint"),
        [
            ([5, 2, 7], "should be increasing"),
            ([2, 5, 11], "its target has 0 to 10"),
            ([-1, 5, 7], "its target has 0 to 10"),
            ([2, 5], r"takes 3 of the target's hidden states as input, not \[2, 5\]"),
            ("2,5,7", "not a list of layers"),
            ([], "not a list of layers"),
        ],
    )
    def test_a_list_that_cannot_be_is_refused(self, listed, complaint, tmp_path):
        config, tensors = vllm(make_head())
        with pytest.raises(ModelError, match=complaint):
            read_head(write(tmp_path, config | {LISTED: listed}, tensors), target=TARGET)

    def test_layers_given_must_be_as_many_as_the_head_reads(self, tmp_path):
        folder = write(tmp_path, *vllm(make_head()))
        with pytest.raises(ModelError, match=r"takes 3 of the target's hidden states as input, not \[4\]"):
            read_head(folder, target=TARGET, feature_layers=(4,))

    def test_a_head_without_a_list_needs_its_target(self, tmp_path):
        folder = write(tmp_path, *vllm(make_head()))
        with pytest.raises(ModelError, match="name its target"):
            read_head(folder)
        assert read_head(folder, feature_layers=(1, 2, 3)).spec.feature_layers == (1, 2, 3)

    def test_a_target_too_small_for_eagle3_is_refused(self, tmp_path):
        folder = write(tmp_path, *vllm(make_head()))
        with pytest.raises(ModelError, match=r"\[2, 2, 1\], which should be increasing"):
            read_head(folder, target=TargetShape(num_layers=4, hidden_size=16, vocab_size=40))


class TestConfig:
    def test_what_a_config_leaves_out_is_what_a_llama_has(self, tmp_path):
        head = make_head(intermediate_size=11008, head_dim=4, num_key_value_heads=4, max_position_embeddings=2048)
        config, tensors = speculators(head)
        for key in ("intermediate_size", "head_dim", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"):
            del config["transformer_layer_config"][key]
        del config["transformer_layer_config"]["rope_theta"]
        spec = read_head(write(tmp_path, config, tensors), target=TARGET).spec
        assert (spec.intermediate_size, spec.head_dim, spec.num_key_value_heads) == (11008, 4, 4)
        assert (spec.rms_norm_eps, spec.rope_theta) == (1e-6, 10000.0)

    @pytest.mark.parametrize(
        ("rope", "theta", "scaling"),
        [
            ({"rope_theta": 7.0, "rope_scaling": None}, 7.0, None),
            ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, None),
            (
                {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
                7.0,
                {"rope_type": "linear", "factor": 2.0},
            ),
            (
                {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 7.0}},
                7.0,
                {"rope_type": "yarn", "factor": 2.0},
            ),
        ],
    )
    def test_rotary_settings_are_read_from_old_and_new_configs(self, rope, theta, scaling, tmp_path):
        config, tensors = vllm(make_head())
        del config["rope_theta"]
        spec = read_head(write(tmp_path, config | rope, tensors), target=TARGET).spec
        assert (spec.rope_theta, spec.rope_scaling) == (theta, scaling)

    @pytest.mark.parametrize("share", [1.0, None])
    def test_a_head_that_says_that_it_turns_all_of_each_head_is_read(self, share, tmp_path):
        config, tensors = vllm(make_head())
        scaling, whole = {"rope_type": "linear", "factor": 2.0}, {"partial_rotary_factor": share}
        folder = write(tmp_path, config | {"rope_scaling": scaling | whole, **whole}, tensors)
        assert read_head(folder, target=TARGET).spec.rope_scaling == scaling

    @pytest.mark.parametrize("kind", ["default", "linear", "yarn"])
    @pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", None])
    def test_a_head_that_turns_a_part_of_each_head_is_refused(self, kind, place, tmp_path):
        config, tensors = vllm(make_head())
        scaling = {"rope_type": kind, "factor": 2.0}
        partial = {"partial_rotary_factor": 0.5}
        change = {"rope_scaling": scaling, **partial} if place is None else {place: {**scaling, **partial}}
        with pytest.raises(ModelError, match=r"it rotates only a part of each head \(0\.5 of it\)"):
            read_head(write(tmp_path, config | change, tensors), target=TARGET)

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"norm_output": True}, "EAGLE 3.1"),
            ({"fc_norm": True}, "EAGLE 3.1"),
            ({"eagle_config": {"norm_before_fc": True}}, "norms the features before fc"),
            ({"eagle_config": {"use_aux_hidden_state": False}}, "takes no layers of its target"),
            ({"attention_bias": True}, "its attention has biases"),
            ({"mlp_bias": True}, "its MLP has biases"),
            ({"quantization_config": {"quant_method": "awq"}}, "stored quantized"),
            ({"hidden_act": "gelu"}, "its hidden_act is gelu, not silu"),
            ({"num_hidden_layers": 2}, "it has 2 layers, and only one is supported"),
            ({"hidden_size": "16"}, "has hidden_size '16' where a positive number should be"),
            ({"num_attention_heads": 0}, "has num_attention_heads 0 where a positive number should be"),
            ({"num_key_value_heads": 3}, "4 attention heads over 3 key-value heads of size 6"),
            ({"head_dim": 5}, "4 attention heads over 2 key-value heads of size 5"),
            ({"rope_parameters": "plain"}, "has rotary settings that are not a JSON object"),
            ({"rms_norm_eps": -1}, "has rms_norm_eps -1 where a positive number should be"),
            ({"rope_scaling": {"rope_type": "longrope"}}, "rotary type 'longrope'"),
            ({"rope_scaling": {"rope_type": "llama3"}}, "'llama3' without factor and low_freq_factor and high_freq"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": "x"}}, "has factor 'x' in its rotary settings, where a"),
            ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "has factor 0 in its rotary settings, where a"),
            ({"rope_theta": float("inf")}, "has rope_theta inf where a positive number should be"),
            ({"rope_parameters": {"rope_theta": float("nan")}}, "has rope_theta nan where a positive number should be"),
            ({"rms_norm_eps": 10**400}, "where a positive number should be"),
            ({"max_position_embeddings": 1}, "max_position_embeddings 1, which should be 16 or more"),
            ({"architectures": ["LlamaForCausalLMEagel3"]}, "did you mean 'LlamaForCausalLMEagle3'"),
            (
                {"architectures": ["LlamaForCausalLMPEagle"]},
                r"LlamaForCausalLMPEagle \(peagle\), and only EAGLE-1 to 3",
            ),
            ({"architectures": ["Qwen3DFlash"]}, r"Qwen3DFlash \(dflash\)"),
            ({"speculators_model_type": "mtp"}, "a head of 'mtp', and only EAGLE-1 to 3 are supported"),
            ({"speculators_model_type": "eagle33"}, "unknown kind 'eagle33'; did you mean 'eagle3'"),
            ({"speculators_model_type": "eagle3", "transformer_layer_config": []}, "not a JSON object"),
        ],
    )
    def test_what_is_not_supported_is_refused_with_its_reason(self, change, complaint, tmp_path):
        config, tensors = vllm(make_head())
        with pytest.raises(ModelError, match=complaint):
            read_head(write(tmp_path, config | change, tensors), target=TARGET)

    def test_a_language_model_is_no_head(self, tmp_path):
        config, tensors = safeailab(make_head("eagle"))
        del tensors["fc.weight"]
        with pytest.raises(ModelError, match=r"is not an EAGLE head: it has no tensor fc\.weight"):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_an_eagle1_head_of_another_width_than_its_target_is_refused(self, tmp_path):
        config, tensors = speculators(make_head("eagle", target_hidden_size=20))
        folder = write(tmp_path, config | {"target_hidden_size": 20}, tensors)
        with pytest.raises(ModelError, match=r"an EAGLE-1 head .* its hidden size is 16 and the target's is 20"):
            read_head(folder, target=TargetShape(num_layers=10, hidden_size=20, vocab_size=40))

    def test_a_head_of_another_target_is_refused(self, tmp_path):
        folder = write(tmp_path, *vllm(make_head()))
        with pytest.raises(ModelError, match="features of size 16, and the target's are of size 32"):
            read_head(folder, target=TargetShape(num_layers=10, hidden_size=32, vocab_size=40))
        with pytest.raises(ModelError, match="made for 40 tokens, and the target has 41"):
            read_head(folder, target=TargetShape(num_layers=10, hidden_size=16, vocab_size=41))


class TestTensors:
    @pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize(("method", "dialect"), EVERY_DIALECT)
    def test_a_number_that_is_not_finite_is_refused(self, method, dialect, number, tmp_path):
        head = make_head(method)
        head.tensors["layers.0.mlp.up_proj.weight"][3, 5] = number
        folder = write(tmp_path, *DIALECTS[method][dialect](head))
        with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight holds numbers that are NaN or infinite"):
            read_head(folder, target=TARGET)

    @pytest.mark.parametrize(
        ("name", "complaint"),
        [
            ("mask_hidden", "P-EAGLE"),
            ("input_norm.weight", "norms the features before fc"),
            ("fc_norm.0.weight", "EAGLE 3.1"),
            ("layers.0.self_attn.q_norm.weight", "norms queries and keys"),
            ("layers.0.self_attn.q_proj.bias", "its attention has biases"),
            ("layers.1.mlp.up_proj.weight", "more than one layer"),
            ("midlayer.mlp.experts.0.up_proj.weight", "mixture of experts"),
            ("extra.weight", r"starspec does not know this tensor \(tensor extra\.weight\)"),
        ],
    )
    def test_a_tensor_beyond_the_known_ones_is_refused(self, name, complaint, tmp_path):
        config, tensors = vllm(make_head())
        with pytest.raises(ModelError, match=complaint):
            read_head(write(tmp_path, config, tensors | {name: torch.zeros(2)}), target=TARGET)

    @pytest.mark.parametrize("name", ["fc.weight", "layers.0.hidden_norm.weight", "norm.weight"])
    def test_a_missing_tensor_is_named(self, name, tmp_path):
        config, tensors = vllm(make_head())
        del tensors[name]
        with pytest.raises(ModelError, match=f"is incomplete: 1 tensors are missing, the first is {name}"):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_a_wrong_shape_is_named_with_both(self, tmp_path):
        config, tensors = specforge(make_head())
        tensors["midlayer.self_attn.k_proj.weight"] = torch.zeros(12, 16)
        expected = r"layers\.0\.self_attn\.k_proj\.weight should be \[12, 32\], but is \[12, 16\]"
        with pytest.raises(ModelError, match=expected):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_weights_that_are_no_plain_numbers_are_refused(self, tmp_path):
        config, tensors = vllm(make_head())
        tensors["norm.weight"] = torch.zeros(16, dtype=torch.int8)
        with pytest.raises(ModelError, match=r"norm\.weight is stored as torch\.int8"):
            read_head(write(tmp_path, config, tensors), target=TARGET)

    def test_a_narrow_head_cannot_borrow_from_its_target(self, tmp_path):
        head = make_head(without=("fc.bias", "embed_tokens.weight"), target_hidden_size=20)
        config, tensors = vllm(head)
        with pytest.raises(
            ModelError, match=r"embed_tokens\.weight is missing.* the head's hidden size is 16 and the target's is 20"
        ):
            read_head(write(tmp_path, config | {"target_hidden_size": 20}, tensors), feature_layers=LAYERS)


class TestFiles:
    def test_no_config(self, tmp_path):
        with pytest.raises(ModelError, match=r"has no config\.json"):
            read_head(tmp_path)

    def test_no_weights(self, tmp_path):
        write(tmp_path, *vllm(make_head()))
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
            read_head(tmp_path, target=TARGET)

    def test_no_folder(self, tmp_path):
        with pytest.raises(ModelError, match="there is no model at"):
            read_head(tmp_path / "nowhere")
        (tmp_path / "head.gguf").touch()
        with pytest.raises(ModelError, match="is a file; give the folder"):
            read_head(tmp_path / "head.gguf")

    @pytest.mark.parametrize("text", ["{", "[1]", b"\xff", '{"a":' + "[" * 200_000])
    def test_a_config_that_is_no_object(self, text, tmp_path):
        write(tmp_path, *vllm(make_head()))
        (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ModelError, match=r"the config\.json of"):
            read_head(tmp_path)

    @pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
    @pytest.mark.parametrize("keep", [0, 10, 900])
    def test_corrupt_weights(self, name, keep, tmp_path):
        write(tmp_path, *vllm(make_head()), pickled=name.endswith(".bin"))
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:keep])
        with pytest.raises(ModelError, match=f"the weights of .* cannot be read: {name}"):
            read_head(tmp_path)

    def test_a_pickle_that_would_run_code_is_refused(self, tmp_path):
        config, tensors = vllm(make_head())
        write(tmp_path, config, tensors | {"trap": Trap(tmp_path / "ran")}, pickled=True)
        with pytest.raises(ModelError, match=r"cannot be read: pytorch_model\.bin"):
            read_head(tmp_path)
        assert not (tmp_path / "ran").exists()

    def test_a_pickle_of_something_else_is_refused(self, tmp_path):
        write(tmp_path, vllm(make_head())[0], [torch.zeros(2)], pickled=True)
        with pytest.raises(ModelError, match="something other than named tensors"):
            read_head(tmp_path)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
