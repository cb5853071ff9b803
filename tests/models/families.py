"""Tiny random models of the families that run with transformers' own modules, and what is special about each."""

from __future__ import annotations

import torch
import transformers as hf

VOCAB_SIZE = 64
WINDOW = 8  # positions, far fewer than the tests decode
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
FAMILIES = {
    "Mistral with a window": (hf.MistralConfig, {"sliding_window": WINDOW, "head_dim": 8}),
    "Qwen2 with a window": (hf.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 1, **ALTERNATING}),
    "Gemma 2": (
        hf.Gemma2Config,
        {**ALTERNATING, "head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    ),
    "Gemma 3": (hf.Gemma3TextConfig, {**ALTERNATING, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt-oss": (
        hf.GptOssConfig,
        {**ALTERNATING, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "Cohere": (hf.CohereConfig, {"use_qk_norm": True}),
    "Cohere 2": (hf.Cohere2Config, ALTERNATING),
    "EXAONE 4": (hf.Exaone4Config, ALTERNATING),
    "DeepSeek V2": (hf.DeepseekV2Config, LATENT),
    "DeepSeek V3": (hf.DeepseekV3Config, LATENT),
    "StableLM": (hf.StableLmConfig, {"qk_layernorm": True}),
    "Phi-3 with longrope": (
        hf.Phi3Config,
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [2.0, 3.0, 4.0, 5.0],
                "original_max_position_embeddings": 128,
            },
            "original_max_position_embeddings": 128,
        },
    ),
    "Llama with dynamic rotary": (
        hf.LlamaConfig,
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            "max_position_embeddings": 128,
        },
    ),
    "Nemotron": (hf.NemotronConfig, {}),
}


def make_family(name):
    """A model of the family in float32. Whatever starts as a constant is random too, so that forgetting it shows."""
    config_class, own = FAMILIES[name]
    torch.manual_seed(7)
    model = hf.AutoModelForCausalLM.from_config(config_class(**{**COMMON, **own})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or parameter.std() == 0:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model
