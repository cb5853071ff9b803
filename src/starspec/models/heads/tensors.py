"""The tensors of an EAGLE head: their names in each dialect, their shapes, and its reduced vocabulary.

d2t [Vd] int64   offsets: the head's token i is the target's token i + d2t[i]
t2d [V] bool     whether the head has a token of the target
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.heads.spec import HeadSpec
from starspec.models.loading.tensors import check_finite

OPTIONAL: Final = ("fc.bias", "lm_head.weight", "embed_tokens.weight")
PREFIXES: Final = {"model.": "", "midlayer.": "layers.0.", "transformer.": "layers.0.", "fusion_fc.": "fc."}
# copies of the target's tensors, or computed
IGNORED: Final = ("verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")

# a part of a tensor's name -> why a head that has it is not supported
UNSUPPORTED: Final = {
    "mask_hidden": "it drafts all tokens in parallel (P-EAGLE)",
    "input_norm.": "it norms the features before fc",
    "fc_norm.": "it norms the features before fc (EAGLE 3.1)",
    "q_norm.": "its attention norms queries and keys",
    "k_norm.": "its attention norms queries and keys",
    "embed_layernorm.": "it has norms around fc (HASS)",
    "embedding_layernorm.": "it has norms around fc (HASS)",
    "lm_head_layernorm.": "it has norms around fc (HASS)",
    "self_attn.q_proj.bias": "its attention has biases",
    "self_attn.k_proj.bias": "its attention has biases",
    "self_attn.v_proj.bias": "its attention has biases",
    "self_attn.o_proj.bias": "its attention has biases",
    "_scale": "its weights are stored quantized",
    "qweight": "its weights are stored quantized",
    "experts.": "its layer is a mixture of experts",
}


def canonical_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of any dialect under the names of `HeadWeights`, without copies of the target's own."""
    return {_canonical(name): tensor for name, tensor in tensors.items() if not name.endswith(IGNORED)}


def _canonical(name: str) -> str:
    for prefix, instead in PREFIXES.items():
        if name.startswith(prefix):
            name = instead + name.removeprefix(prefix)
    return name


def tensor_shapes(spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that a head of this spec can have; those in `OPTIONAL` may be missing."""
    size, inner = spec.hidden_size, spec.intermediate_size
    is_eagle3 = spec.is_eagle3
    layer_input = 2 * size if is_eagle3 else size
    queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    norms = ["layers.0.hidden_norm", "norm"] if is_eagle3 else []
    if is_eagle3 or spec.has_input_norm:
        norms.append("layers.0.input_layernorm")
    return {
        "fc.weight": (size, spec.feature_size if is_eagle3 else size + spec.feature_size),
        "fc.bias": (size,),
        "layers.0.self_attn.q_proj.weight": (queries, layer_input),
        "layers.0.self_attn.k_proj.weight": (keys, layer_input),
        "layers.0.self_attn.v_proj.weight": (keys, layer_input),
        "layers.0.self_attn.o_proj.weight": (size, queries),
        "layers.0.mlp.gate_proj.weight": (inner, size),
        "layers.0.mlp.up_proj.weight": (inner, size),
        "layers.0.mlp.down_proj.weight": (size, inner),
        "layers.0.post_attention_layernorm.weight": (size,),
        **{f"{norm}.weight": (size,) for norm in norms},
        "lm_head.weight": (spec.draft_vocab_size, size),
        "embed_tokens.weight": (spec.vocab_size, size),
    }


def check_tensors(head: str, spec: HeadSpec, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that do not fit the spec.

    Raises: ModelError that names the first tensor that is missing, unknown, not finite, or of the wrong shape or type.
    """
    if spec.num_attention_heads % spec.num_key_value_heads or spec.head_dim % 2:
        raise ModelError(
            f"'{head}' is corrupt: its config.json says {spec.num_attention_heads} attention heads over "
            f"{spec.num_key_value_heads} key-value heads of size {spec.head_dim}"
        )
    if not spec.is_eagle3 and spec.hidden_size != spec.target_hidden_size:
        raise ModelError(
            f"'{head}' is not supported: an EAGLE-1 head uses features of the target's size, but its hidden size is "
            f"{spec.hidden_size} and the target's is {spec.target_hidden_size}"
        )
    expected = tensor_shapes(spec)
    for name in sorted(tensors):
        if name not in expected:
            raise ModelError(f"'{head}' is not supported: {_why_unknown(name)}")
    missing = [name for name in expected if name not in tensors and name not in OPTIONAL]
    if missing:
        raise ModelError(f"'{head}' is incomplete: {len(missing)} tensors are missing, the first is {missing[0]}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise ModelError(
                f"'{head}' does not fit its config.json: {name} should be {list(expected[name])}, "
                f"but is {list(tensor.shape)}"
            )
        if not tensor.is_floating_point() or tensor.element_size() == 1:
            raise ModelError(f"'{head}' is not supported: {name} is stored as {tensor.dtype}, not as plain numbers")
    check_finite(head, tensors.items())
    _check_borrowed(head, spec, tensors)


def _check_borrowed(head: str, spec: HeadSpec, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a head that would borrow a tensor from a target of another hidden size."""
    if spec.hidden_size == spec.target_hidden_size:
        return
    for name in ("lm_head.weight", "embed_tokens.weight"):
        if name not in tensors:
            raise ModelError(
                f"'{head}' is incomplete: {name} is missing, and the target's cannot replace it, "
                f"because the head's hidden size is {spec.hidden_size} and the target's is {spec.target_hidden_size}"
            )


def _why_unknown(name: str) -> str:
    known = (why for part, why in UNSUPPORTED.items() if part in name)
    why = next(known, "starspec does not know this tensor")
    if name.startswith("layers.") and not name.startswith("layers.0."):
        why = "it has more than one layer"
    return f"{why} (tensor {name})"


def offsets_of(token_ids: Tensor) -> Tensor:
    """The `d2t` of a head whose token i is the target's `token_ids[i]`."""
    return token_ids - torch.arange(len(token_ids))


def draft_token_mask(token_ids: Tensor, vocab_size: int) -> Tensor:
    """The `t2d` of a head whose tokens are the target's `token_ids`."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[token_ids] = True
    return mask


def token_ids_of(head: str, offsets: Tensor, mask: Tensor | None, vocab_size: int) -> Tensor:
    """The target's id of each token of a head, in the order of the head's tokens.

    Args:
        head: name for error messages.
        offsets: `d2t` as stored.
        mask: `t2d` as stored, or None.
        vocab_size: of the target.
    Raises: ModelError if an id is outside the target's vocabulary, occurs twice, or contradicts `t2d`.
    """
    if offsets.dim() != 1 or offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise ModelError(f"'{head}' is corrupt: d2t should be a list of integers, but is {_describe(offsets)}")
    token_ids = offsets.long() + torch.arange(len(offsets))
    outside = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if len(outside):
        raise ModelError(f"'{head}' is corrupt: d2t leads to token {int(outside[0])} of a target with {vocab_size}")
    if not bool((token_ids.sort().values.diff() > 0).all()):
        raise ModelError(f"'{head}' is corrupt: d2t leads to the same token of the target twice")
    if mask is None:
        return token_ids
    if mask.shape != (vocab_size,):
        raise ModelError(f"'{head}' is corrupt: t2d should be [{vocab_size}], but is {_describe(mask)}")
    if not torch.equal(mask.bool(), draft_token_mask(token_ids, vocab_size)):
        raise ModelError(f"'{head}' is corrupt: d2t and t2d name different tokens of the target")
    return token_ids


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"
