"""The .gguf files of other families than Llama: the weights that transformers reads are those that were written."""

import gguf
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    NemotronConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.loading.load import load_runner
from starspec.models.runner import Segment

HIDDEN, HEADS, LAYERS, INNER = 64, 4, 2, 96
TOKENS = [chr(code) for code in range(33, 127)] + ["ab", "<unk>", "<bos>", "<pad>", "<eos>", "<|endoftext|>"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path / "cache"))


def add_vocabulary(writer):
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(TOKENS) - 1)


def gguf_of(model, path, *, arch, facts):
    """A .gguf file of a tiny transformers model, with the names and the offsets of norms that llama.cpp gives it."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    theta = config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"]
    writer.add_rope_freq_base(theta)
    facts(writer)
    add_vocabulary(writer)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[arch], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, dot, suffix = name.rpartition(".")
        offset = 1.0 if "norm" in name and suffix == "weight" and arch in ("gemma2", "gemma3", "nemotron") else 0.0
        writer.add_tensor(names.get_name(stem) + dot + suffix, tensor.float().numpy() + offset)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def window_and_head(writer):
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_sliding_window(8)
    writer.add_layer_norm_rms_eps(1e-6)


def of_gemma2(writer):
    window_and_head(writer)
    writer.add_attn_logit_softcapping(2.0)
    writer.add_final_logit_softcapping(3.0)


def of_gemma3(writer):
    window_and_head(writer)
    writer.add_rope_freq_base_swa(20000.0)


BY_LAYER_TYPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 50000.0},
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
OF_FAMILIES = {
    "gemma2": (
        Gemma2Config,
        {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        of_gemma2,
    ),
    "gemma3": (
        Gemma3TextConfig,
        {**GEMMA, "num_hidden_layers": 6, "rope_parameters": BY_LAYER_TYPE},
        of_gemma3,
    ),
    "qwen2": (Qwen2Config, {}, lambda writer: writer.add_layer_norm_rms_eps(1e-6)),
    "qwen3": (
        Qwen3Config,
        {"head_dim": 24},  # not that of all published sizes, which transformers takes for granted
        lambda writer: (
            writer.add_layer_norm_rms_eps(1e-6),
            writer.add_key_length(24),
            writer.add_value_length(24),
        ),
    ),
    "phi3": (
        Phi3Config,
        {"pad_token_id": 0, "sliding_window": 8},
        lambda writer: (
            writer.add_layer_norm_rms_eps(1e-5),
            writer.add_sliding_window(8),
            writer.add_rope_scaling_orig_ctx_len(128),
            writer.add_rope_dimension_count(HIDDEN // HEADS),
            writer.add_pad_token_id(0),
        ),
    ),
    "stablelm": (StableLmConfig, {}, lambda writer: writer.add_layer_norm_eps(1e-5)),
    "nemotron": (NemotronConfig, {}, lambda writer: writer.add_layer_norm_eps(1e-5)),
}


@pytest.mark.parametrize("arch", OF_FAMILIES)
def test_a_file_of_a_family_gives_the_weights_that_were_written(arch, tmp_path):
    config_class, own, facts = OF_FAMILIES[arch]
    torch.manual_seed(3)
    config = config_class(
        vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=HEADS,
        num_key_value_heads=2, max_position_embeddings=128, **{"num_hidden_layers": LAYERS, **own},
    )  # fmt: skip
    plain = AutoModelForCausalLM.from_config(config).eval()
    for parameter in plain.parameters():  # exact in bfloat16, and norms that are not all ones
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).mul(16).round().div(16)
    path = gguf_of(plain, tmp_path / "tiny.gguf", arch=arch, facts=facts)
    runner = load_runner(ModelConfig(model=str(path), dtype="float32", max_model_len=64, numerics="fast"))
    token_ids = list(range(3, 33))
    logits = runner.forward([Segment(runner.cache.lease(), token_ids, len(token_ids))]).logits
    torch.testing.assert_close(logits, plain(torch.tensor([token_ids])).logits[0], atol=1e-3, rtol=1e-3)


def test_a_gpt_oss_file_is_refused_since_transformers_reads_no_experts_of_it(tmp_path):
    config = GptOssConfig(
        vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=8, head_dim=64,
        num_key_value_heads=8, num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gpt-oss")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_head_count(8)
    writer.add_head_count_kv(8)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_rope_freq_base(150000.0)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, 1)
    for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items():
        stem, dot, suffix = name.rpartition(".")
        if name.endswith("sinks"):
            writer.add_tensor("blk.0.attn_sinks.weight", tensor.numpy())
        elif "experts" not in name:
            writer.add_tensor(names.get_name(stem) + dot + suffix, tensor.numpy())
    for expert in ("gate", "up", "down"):
        shape = (4, HIDDEN, INNER) if expert == "down" else (4, INNER, HIDDEN)
        writer.add_tensor(f"blk.0.ffn_{expert}_exps.weight", torch.randn(shape).numpy())
        writer.add_tensor(f"blk.0.ffn_{expert}_exps.bias", torch.randn(shape[:2]).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelError, match=r"transformers does not read all of this family: model.layers.0.mlp.* missing"
    ):
        load_runner(ModelConfig(model=str(tmp_path / "tiny.gguf"), max_model_len=64, numerics="fast"))
