"""A tiny Llama with random weights in a folder of its own, with the tokenizer of the synthetic models; and a pair
of a target and an EAGLE head whose every word is known."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from starspec.models.synthetic.tokenizer import synthetic_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `predictable`


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    synthetic_tokenizer("synthetic:vocab=128").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def headed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and of its head, whose chains are right once."""
    from predictable import write_reader, write_target

    folder = tmp_path_factory.mktemp("headed")
    return str(write_target(folder / "target")), str(write_reader(folder / "head"))
