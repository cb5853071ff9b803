"""Tiny models with random weights, and the driver that decodes with a runner."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from starspec.config import ModelConfig
from starspec.models.runner import ModelInfo, ModelRunner, Segment

VOCAB_SIZE = 131
MAX_LEN = 200
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
}


def make_model(family="llama", dtype=torch.float32, **changes):
    """A model of the family; norms and biases are random too, so that forgetting one shows."""
    config_class, model_class, own = FAMILIES[family]
    torch.manual_seed(7)
    model = model_class(config_class(**{**SHAPE, **own, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype)


def save_with_tokenizer(model, folder):
    """Save a model as a folder that has a tokenizer too, whose end token is id 0. Returns: the folder."""
    model.save_pretrained(folder)
    words = {f"w{index}": index for index in range(model.config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(folder)
    return folder


def make_info(vocab_size=VOCAB_SIZE, max_model_len=MAX_LEN):
    return ModelInfo("tiny", vocab_size, max_model_len, 0, 0, (), SHAPE["num_hidden_layers"], SHAPE["hidden_size"])


def make_config(dtype="float32", **changes):
    return ModelConfig(**{"model": "tiny", "dtype": dtype, "num_rows": 9, "numerics": "fast", **changes})


def prompt_ids(length, seed=0, vocab_size=VOCAB_SIZE):
    return torch.randint(0, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def plain_logits(model, token_ids):
    """Logits of transformers alone: [T, V]."""
    return model(torch.tensor([token_ids])).logits[0]


def prefill(runner: ModelRunner, token_ids, chunk=64):
    """Lease a row and commit all tokens; returns the row."""
    row = runner.cache.lease()
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        runner.forward([Segment(row, part, 0)])
        runner.cache.append(row, len(part))
    return row


def decode_greedily(runner: ModelRunner, token_ids, num_tokens):
    """Plain decoding, a token at a time."""
    row = prefill(runner, token_ids[:-1])
    output = [token_ids[-1]]
    for _ in range(num_tokens):
        logits = runner.forward([Segment(row, output[-1:], 1)]).logits
        runner.cache.append(row, 1)
        output.append(int(logits[0].argmax()))
    runner.cache.free(row)
    return output[1:]


def generate(model, token_ids, num_tokens):
    """Greedy decoding by transformers itself."""
    prompt = torch.tensor([token_ids])
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),  # or every token that is equal to the pad token would be hidden
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(token_ids) :].tolist()
