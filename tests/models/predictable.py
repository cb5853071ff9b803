"""A target that says a fixed token after each, and EAGLE heads that read it off the right hidden state only.

The embeddings are one-hot, attention says nothing, and layer 0's MLP adds the next token's vector to the residual:

    hidden_states[0] = e(t)      [1] = e(t) + 9 e(next t)      [2] = the same, normed; the LM head takes its largest

A head copies the feature of position i from [1], which names token i + 1, and its LM head says the token after that.
Its second token is made from the same vector, and is wrong: chains of it are right once. An EAGLE-1 head does the same
with [2].

A target that wavers is less sure, and layer 1's attention adds noise that depends on all tokens so far: it mostly says
the same, but every token tells whether its past was read right.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from starspec.models.heads.spec import HeadSpec, HeadWeights
from starspec.models.heads.tensors import tensor_shapes
from starspec.models.heads.write import write_head
from starspec.models.synthetic.tokenizer import synthetic_tokenizer

SIZE = 128  # vocabulary size and hidden size
NEXT = [(5 * token_id + 7) % SIZE for token_id in range(SIZE)]  # one cycle through all tokens
TELLING_LAYERS = (1,)


def write_target(folder: Path, *, wavers: bool = False) -> Path:
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=SIZE,
        intermediate_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=0,
        bos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    identity = torch.eye(SIZE)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        first = model.model.layers[0].mlp
        first.gate_proj.weight.copy_(identity)
        first.up_proj.weight.copy_(identity)
        first.down_proj.weight[NEXT, range(SIZE)] = 9.0 / SIZE  # norm(e) = sqrt(SIZE) e, and silu(x) x = SIZE of it
        model.model.embed_tokens.weight.copy_(identity)
        model.lm_head.weight.copy_(identity)
        if wavers:
            _waver(model)
    model.save_pretrained(folder)
    synthetic_tokenizer(f"synthetic:vocab={SIZE}").save_pretrained(folder)
    return folder


def _waver(model: LlamaForCausalLM) -> None:
    first, attention = model.model.layers[0].mlp, model.model.layers[1].self_attn
    generator = torch.Generator().manual_seed(7)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        projection.weight.copy_(torch.randn(projection.weight.shape, generator=generator) * 0.1)
    first.down_proj.weight.mul_(0.32)
    model.lm_head.weight.mul_(0.9)


def make_spec(feature_layers=TELLING_LAYERS, num_tokens=SIZE, method="eagle3"):
    return HeadSpec(
        method=method,
        hidden_size=SIZE,
        target_hidden_size=SIZE,
        intermediate_size=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=SIZE,
        draft_vocab_size=num_tokens,
        feature_layers=feature_layers,
        max_position_embeddings=256,
    )


def write_reader(folder: Path, feature_layers=TELLING_LAYERS, token_ids=tuple(range(SIZE))) -> Path:
    """A head that lists these layers and has these tokens."""
    spec = make_spec(feature_layers, len(token_ids))
    tensors = {name: torch.ones(shape) if len(shape) == 1 else torch.zeros(shape) for name, shape in _shapes(spec)}
    tensors["fc.weight"] = torch.eye(SIZE)
    tensors["lm_head.weight"] = torch.eye(SIZE)[[NEXT.index(token_id) for token_id in token_ids]]
    return _written(folder, spec, tensors, token_ids)


def write_eagle1_reader(folder: Path) -> Path:
    """The same of EAGLE-1: its fc passes the feature on, and not the embedding beside it."""
    spec = make_spec(feature_layers=(2,), method="eagle")
    tensors = {name: torch.ones(shape) if len(shape) == 1 else torch.zeros(shape) for name, shape in _shapes(spec)}
    tensors["fc.weight"] = torch.cat([torch.zeros(SIZE, SIZE), torch.eye(SIZE)], 1)
    tensors["lm_head.weight"] = torch.eye(SIZE)[[NEXT.index(token_id) for token_id in range(SIZE)]]
    return _written(folder, spec, tensors, tuple(range(SIZE)))


def write_random(folder: Path, token_ids=tuple(range(0, SIZE, 2))) -> Path:
    """A head with arbitrary output that depends on all of its input."""
    spec = make_spec(num_tokens=len(token_ids))
    torch.manual_seed(5)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.2 for name, shape in _shapes(spec)
    }
    return _written(folder, spec, tensors, token_ids)


def _shapes(spec):
    return [pair for pair in tensor_shapes(spec).items() if pair[0] not in ("fc.bias", "embed_tokens.weight")]


def _written(folder, spec, tensors, token_ids):
    ids = None if len(token_ids) == SIZE else torch.tensor(token_ids)
    write_head(folder, HeadWeights(spec, tensors, ids), {})
    return folder
