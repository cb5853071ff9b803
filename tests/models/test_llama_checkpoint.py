"""Checkpoints of the Llama family give the same weights as transformers, without its modelling code."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, make_config, make_info, make_model, prefill, prompt_ids
from transformers import AutoConfig, AutoModelForCausalLM

from starspec.models.fused import FusedRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.loading.llama_checkpoint import LlamaWeights, read_llama_checkpoint
from starspec.models.runner import Segment

KINDS = [
    *((family, {}) for family in FAMILIES),
    ("llama", {"attention_bias": False, "mlp_bias": False}),
    ("llama", {"tie_word_embeddings": True}),
    ("qwen2", {"tie_word_embeddings": False}),
    ("qwen3", {"attention_bias": True}),
    ("mistral", {"head_dim": None}),
]
every_kind = pytest.mark.parametrize(("family", "changes"), KINDS, ids=str)


def saved(folder: Path, family: str = "llama", max_shard_size: str = "1GB", **changes: object) -> Path:
    make_model(family, torch.bfloat16, **changes).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def read(folder: Path, dtype: torch.dtype = torch.bfloat16) -> LlamaWeights | None:
    return read_llama_checkpoint(folder, AutoConfig.from_pretrained(folder), dtype)


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_are_those_that_transformers_reads(family, changes, dtype, tmp_path):
    lean = read(saved(tmp_path, family, **changes), dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    found, expected = lean.state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == dtype for name in expected)
    assert (lean.lm_head.weight is lean.model.embed_tokens.weight) == model.config.tie_word_embeddings
    assert sum(each.numel() for each in lean.parameters()) == model.num_parameters()
    assert not any(each.requires_grad for each in lean.parameters())


@every_kind
def test_the_fused_path_computes_the_same_bits_from_either(family, changes, tmp_path):
    lean = read(saved(tmp_path, family, **changes), torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids, logits = prompt_ids(40), []
    for each in (lean, model):
        runner = FusedRunner(each, make_config(), make_info(), pack_dense)
        row = prefill(runner, ids[:30])
        logits.append(runner.forward([Segment(row, ids[30:], 10)]).logits)
    assert torch.equal(*logits)


def test_several_files_are_read_as_one(tmp_path):
    saved(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(each, expected[name]) for name, each in read(tmp_path).state_dict().items())


def without(tensors, name):
    return {key: each for key, each in tensors.items() if key != name}


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: without(tensors, NORM),
        lambda tensors: tensors | {"model.extra.weight": torch.ones(1)},
        lambda tensors: tensors | {NORM: torch.ones(3)},
        lambda tensors: tensors | {NORM: torch.ones(96, dtype=torch.int8)},
        lambda tensors: without(tensors, "lm_head.weight"),
    ],
    ids=["missing", "unexpected", "other shape", "whole numbers", "no head"],
)
def test_whatever_is_not_as_expected_is_left_to_transformers(change, tmp_path):
    file = saved(tmp_path) / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    assert read(tmp_path) is None


def test_a_tied_head_that_the_file_has_all_the_same_is_left_to_transformers(tmp_path):
    file = saved(tmp_path, "qwen2") / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, file, metadata={"format": "pt"})
    assert read(tmp_path) is None


def test_files_that_cannot_be_read_are_left_to_transformers(tmp_path):
    file = saved(tmp_path / "cut") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert read(tmp_path / "cut") is None
    file.unlink()
    assert read(tmp_path / "cut") is None
    index = saved(tmp_path / "index", max_shard_size="100KB") / "model.safetensors.index.json"
    for text in ("{", "[]", "{}", '{"weight_map": 7}', '{"weight_map": {"model.norm.weight": "gone"}}'):
        index.write_text(text)
        assert read(tmp_path / "index") is None


LOADING = """
import sys
from starspec.config import ModelConfig
from starspec.models.loading.load import load_runner, max_len_of
runner = load_runner(ModelConfig(model=sys.argv[1], dtype="float32", num_rows=1, quantization="int8", numerics="fast"))
assert type(runner).__name__ == "FusedRunner"
assert max_len_of(sys.argv[1]) == 256
print([name for name in sys.modules if name.endswith((".modeling_utils", ".modeling_llama"))])
"""


def test_a_model_of_the_family_is_loaded_without_modelling_code(save_with_tokenizer, tmp_path):
    """It takes seconds to import, which a server that starts, or is restarted, would wait for."""
    folder = save_with_tokenizer(make_model(), tmp_path / "tiny")
    command = [sys.executable, "-c", LOADING, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
