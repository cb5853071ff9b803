"""Two folders have one fingerprint if and only if they hold the same model."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_model

from starspec.errors import ModelError
from starspec.models.loading.model_fingerprint import model_fingerprint


@pytest.fixture
def folder(tmp_path):
    make_model().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def change_tensor(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(tensors | {name: change(tensors[name])}, file, metadata={"format": "pt"})


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_copy_has_the_same(folder, tmp_path):
    expected = model_fingerprint("tiny", folder)
    copied = shutil.copytree(folder, tmp_path / "copied")
    change_config(copied, _name_or_path="elsewhere", transformers_version="5.99")
    assert model_fingerprint("tiny", copied) == expected


def test_files_into_which_it_is_split_have_no_effect(folder, tmp_path):
    make_model().save_pretrained(tmp_path / "split", max_shard_size="100KB")
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 2
    assert model_fingerprint("tiny", tmp_path / "split") == model_fingerprint("tiny", folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: change_tensor(folder, lambda tensor: tensor + 0.001),  # as training one matrix does
        lambda folder: change_tensor(folder, lambda tensor: tensor.to(torch.bfloat16)),
        lambda folder: change_tensor(folder, lambda tensor: tensor.flatten()),
        lambda folder: change_config(folder, rms_norm_eps=1e-3),
        lambda folder: change_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 3.0}),
    ],
    ids=["numbers", "type", "shape", "config", "rotary"],
)
def test_any_difference_shows(change, folder):
    before = model_fingerprint("tiny", folder)
    change(folder)
    assert model_fingerprint("tiny", folder) != before


def test_a_folder_that_cannot_be_read_is_refused_in_one_sentence(folder):
    file = folder / "model.safetensors"
    for content in (b"", b"\xff" * 20, file.read_bytes()[:100]):
        file.write_bytes(content)
        with pytest.raises(ModelError, match="the files of 'tiny' cannot be read"):
            model_fingerprint("tiny", folder)
