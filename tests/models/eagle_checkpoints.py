"""One tiny EAGLE head, and its checkpoint in each dialect."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

from starspec.models.heads.spec import HeadSpec, HeadWeights, TargetShape
from starspec.models.heads.tensors import draft_token_mask, offsets_of, tensor_shapes

TARGET = TargetShape(num_layers=10, hidden_size=16, vocab_size=40)
LAYERS = (2, 5, 7)  # EAGLE-3's own of 10
TOKEN_IDS = torch.tensor([0, 3, 4, 9, 17, 25, 31, 39])


def make_spec(method="eagle3", **changes):
    is_eagle3 = method == "eagle3"
    return HeadSpec(
        **{
            "method": method,
            "hidden_size": 16,
            "target_hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
            "vocab_size": 40,
            "draft_vocab_size": len(TOKEN_IDS) if is_eagle3 else 40,
            "feature_layers": LAYERS if is_eagle3 else (10,),
            "max_position_embeddings": 64,
            "rope_theta": 5000.0,
            "rms_norm_eps": 1e-5,
            **changes,
        }
    )


def make_head(method="eagle3", without=("fc.bias",), **changes):
    """A head with random tensors in bfloat16; an EAGLE-1 head has the target's whole vocabulary."""
    spec = make_spec(method, **changes)
    torch.manual_seed(3)
    shapes = tensor_shapes(spec)
    tensors = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items() if name not in without}
    return HeadWeights(spec, tensors, TOKEN_IDS if method == "eagle3" else None)


def llama_config(spec, **changes):
    """The layer's settings that all dialects share, with the names of Hugging Face."""
    return {
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_theta": spec.rope_theta,
        "rms_norm_eps": spec.rms_norm_eps,
        **changes,
    }


def renamed(tensors, **prefixes):
    def instead(name):
        for ours, theirs in prefixes.items():
            if name.startswith(f"{ours}."):
                return theirs + name.removeprefix(ours)
        return name

    return {instead(name): tensor for name, tensor in tensors.items()}


def vocabulary(head):
    if head.draft_token_ids is None:
        return {}
    ids = head.draft_token_ids
    return {"d2t": offsets_of(ids), "t2d": draft_token_mask(ids, head.spec.vocab_size)}


def speculators(head):
    spec = head.spec
    kinds = {"eagle3": "Eagle3Speculator", "eagle": "EagleSpeculator"}
    config = {
        "architectures": [kinds[spec.method]],
        "speculators_model_type": spec.method,
        "speculators_config": {"algorithm": spec.method, "verifier": {"name_or_path": None, "architectures": []}},
        "transformer_layer_config": llama_config(spec),
    }
    if spec.method == "eagle":
        config |= {"layernorms": False, "fusion_bias": True}
        return config, renamed(head.tensors, fc="fusion_fc", **{"layers.0": "transformer"})
    config |= {"draft_vocab_size": spec.draft_vocab_size, "norm_before_residual": spec.norm_before_residual}
    copies = {"verifier_norm.weight": torch.ones(spec.hidden_size)}
    return config, {**head.tensors, **vocabulary(head), **copies}


def specforge(head):
    config = llama_config(
        head.spec, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=head.spec.draft_vocab_size
    )
    return config, {**renamed(head.tensors, **{"layers.0": "midlayer"}), **vocabulary(head)}


def vllm(head):
    config = llama_config(
        head.spec, architectures=["Eagle3LlamaForCausalLM"], draft_vocab_size=head.spec.draft_vocab_size
    )
    return config, {**head.tensors, **vocabulary(head)}


def safeailab(head):
    """The config names only the target's class: the tensors distinguish EAGLE-1 and EAGLE-3."""
    config = llama_config(head.spec, architectures=["LlamaForCausalLM"])
    if head.spec.method == "eagle":
        return config | {"bias": True}, dict(head.tensors)
    config["draft_vocab_size"] = head.spec.draft_vocab_size
    return config, {**renamed(head.tensors, **{"layers.0": "midlayer"}), **vocabulary(head)}


def vllm_wrapper(head):
    config, tensors = safeailab(head)
    return {"model_type": "eagle", "model": config, "eagle_fc_bias": True}, tensors


DIALECTS = {
    "eagle3": {"speculators": speculators, "SpecForge": specforge, "vLLM": vllm, "SafeAILab": safeailab},
    "eagle": {"speculators": speculators, "SafeAILab": safeailab, "vLLM": vllm_wrapper},
}
EVERY_DIALECT = [(method, dialect) for method, dialects in DIALECTS.items() for dialect in dialects]


def write(folder, config, tensors, pickled=False):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
