"""A model that is cut into stages gives bit for bit the logits of the whole model, whatever is forwarded and kept."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, SHAPE, VOCAB_SIZE, prompt_ids, save_with_tokenizer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from stages import MAX_LEN, NUM_LAYERS, WITH_CODE_OF_THEIR_OWN, Chain, Whole, config_of, saved
from starspec.config import ModelConfig
from starspec.errors import ConfigError, ModelError
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.loading.load import load_runner, load_stage
from starspec.models.numerics.probe import settle_numerics
from starspec.models.runner import Segment

CUTS = [cut for num in (1, 2, 3) for cut in combinations(range(1, NUM_LAYERS), num)]
COARSE_AND_FINE = [(NUM_LAYERS // 2,), tuple(range(1, NUM_LAYERS))]  # each layer alone, and halves
WITH_WINDOWS = ("Mistral with a window", "Qwen2 with a window")  # on all layers, and on every other one
SMALL_VOCAB = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that saves a tiny model the first time it is asked for it. Returns: its folder."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp("deep") / "tiny")
        return made[name]

    return folder


def random_segments(data, rows, lengths):
    """New tokens for some of the rows: a part of a prompt, a chain or a tree."""
    segments = []
    for row in data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=len(rows), unique=True)):
        kind = data.draw(st.sampled_from(("prompt", "chain", "tree")))
        num = data.draw(st.integers(17, 30) if kind == "prompt" else st.integers(1, 7))
        num = min(num, MAX_LEN - lengths[row])
        parents = None
        if kind == "tree":
            parents = [-1, *(data.draw(st.integers(0, node)) for node in range(num - 1))]
        token_ids = data.draw(st.lists(st.integers(0, SMALL_VOCAB - 1), min_size=num, max_size=num))
        segments.append(Segment(row, token_ids, data.draw(st.integers(0, 1)) if kind == "prompt" else num, parents))
    return segments


def path_to(segment, node):
    """The path of the segment that ends in a token; () = nothing is accepted."""
    path = []
    while node >= 0:
        path.append(node)
        node = node - 1 if segment.parents is None else segment.parents[node]
    return tuple(reversed(path))


def live(data, models):
    """Lives of random sequences, the same in all models: what is forwarded gives the same logits everywhere."""
    rows, lengths = [], {}
    for _ in range(data.draw(st.integers(1, 6))):
        if not rows or (len(rows) < 3 and data.draw(st.booleans())):
            row = min({0, 1, 2} - set(rows))
            for each in models:
                each.lease(row)
            rows.append(row)
            lengths[row] = 0
        full = [row for row in rows if lengths[row] > MAX_LEN - 40]
        for row in full:
            cut_off = data.draw(st.integers(0, lengths[row]))
            lengths[row] = cut_off
            for each in models:
                each.truncate(row, cut_off)
        segments = random_segments(data, rows, lengths)
        expected, *found = [each.forward(segments) for each in models]
        assert all(torch.equal(each, expected) for each in found)
        for segment in segments:
            path = path_to(segment, data.draw(st.integers(-1, len(segment.token_ids) - 1)))
            lengths[segment.row] += len(path)
            for each in models:
                each.commit(segment.row, path)
        if data.draw(st.integers(0, 4)) == 0:
            row = rows.pop()
            for each in models:
                each.free(row)


def check_lives(config, max_examples, cuts=CUTS):
    models = [Whole.load(config), *(Chain.cut(config, *cut) for cut in cuts)]

    @settings(max_examples=max_examples)
    @given(st.data())
    def lives(data):
        for each in models:
            each.empty()
        live(data, models)

    lives()
    return models


@pytest.mark.parametrize("family", [*FAMILIES, *WITH_WINDOWS])
def test_stages_on_the_fast_path_give_the_bits_of_the_whole_model(family, folders):
    models = check_lives(config_of(folders(family)), 25)
    assert all(isinstance(runner, FusedRunner) for each in models for runner in each.runners)


@pytest.mark.parametrize("family", [*FAMILIES, *WITH_CODE_OF_THEIR_OWN])
def test_stages_of_unmodified_modules_give_the_bits_of_the_whole_model(family, folders):
    models = check_lives(config_of(folders(family), fused=False), 6, COARSE_AND_FINE)
    assert all(isinstance(runner, TransformersRunner) for each in models for runner in each.runners)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_whose_kernels_keep_bits_do_so_in_bfloat16(family, folders):
    """Each stage is probed alone, and may come to pad or to attend in another way than the whole model."""
    models = check_lives(config_of(folders(family), dtype="bfloat16", numerics="invariant"), 4)
    assert all(runner.is_invariant for each in models for runner in each.runners)


def test_a_probe_of_a_stage_finds_layers_that_round_by_row_count(folders):
    stage = load_stage(config_of(folders("llama")), "1:3")
    layer = stage.fused_layers[0]
    stage.fused_layers[0] = replace(layer, input_norm=lambda x: layer.input_norm(x) * (1 + 1e-5 * len(x)))
    settle_numerics(stage)
    assert "the layers round differently" in stage.numerics_report
    stage.cache.check_integrity()


@pytest.mark.parametrize("fused", [True, False])
def test_each_stage_gives_the_features_of_its_layers(fused, folders):
    config = config_of(folders("qwen2"), fused=fused)
    whole = load_runner(config)
    segment = Segment(whole.cache.lease(), prompt_ids(20), 1)
    expected = whole.forward([segment], range(NUM_LAYERS + 1)).features.chunk(NUM_LAYERS + 1, dim=1)
    hidden = None
    for layers, has in (("0:1", (0,)), ("1:3", (1, 2)), ("3:4", (3, 4))):
        stage = load_stage(config, layers)
        stage.cache.lease(segment.row)
        with pytest.raises(ValueError, match=f"hidden states {has[0]} to {has[-1]}, not {has[-1] + 1}"):
            stage.forward([segment], (has[-1] + 1,), hidden=hidden)
        output = stage.forward([segment], has, hidden=hidden)
        assert torch.equal(output.features, torch.cat([expected[layer] for layer in has], dim=1))
        hidden = output.hidden


def test_stages_know_the_whole_model_and_count_only_their_own_weights(folders):
    config = config_of(folders("llama"))
    whole = load_runner(config)
    stages = Chain.cut(config, 1, 3).runners
    for name in ("vocab_size", "max_model_len", "num_layers", "hidden_size", "fingerprint", "eos_token_ids"):
        assert {getattr(each.info, name) for each in stages} == {getattr(whole.info, name)}
    for name in ("num_parameters", "num_weight_bytes"):
        assert sum(getattr(each.info, name) for each in stages) == getattr(whole.info, name) > 0
    assert sum(each.cache.num_bytes for each in stages) == whole.cache.num_bytes


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_only_the_ends_hold_tables_and_both_do_if_they_are_tied(family, fused, folders):
    """Qwen2's are tied here, Llama's are not."""
    config = config_of(folders(family), fused=fused)
    first, middle, last = Chain.cut(config, 1, 2).runners  # layers 0, 1 and 2:4
    table = VOCAB_SIZE * SHAPE["hidden_size"]
    of_layer = middle.info.num_parameters
    assert first.info.num_parameters == table + of_layer
    assert last.info.num_parameters == 2 * of_layer + SHAPE["hidden_size"] + table


LOADING = """
import os, sys
import torch
from starspec.bench.batch.methods import peak_mib, reset_peak
from starspec.config import ModelConfig
from starspec.models.loading.load import load_stage
small, folder, *cases = sys.argv[1:]
torch.set_num_threads(1)  # threads do not outlive a fork
def load(model, layers, fused):
    config = {"dtype": "float32", "numerics": "fast", "num_rows": 1, "max_model_len": 64, "fused": fused == "True"}
    return load_stage(ModelConfig(model=model, **config), layers)
for case in cases:
    load(small, "0:4", case.split("/")[1])  # whatever is imported and allocated once, in the process that forks
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    load(small, "0:4", case.split("/")[1])  # and in its child
    reset_peak()
    before = peak_mib()
    loaded = load(folder, *case.split("/"))
    print(int((peak_mib() - before) * 2**20), flush=True)
    os._exit(0)
"""


def test_a_stage_never_holds_the_other_half_in_memory(tmp_path):
    """Peak memory of loading, in processes of their own: half of the layers take half of what all take."""
    torch.manual_seed(1)
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=VOCAB_SIZE, num_key_value_heads=2, **shape))
    folder, small = save_with_tokenizer(model, tmp_path / "large"), saved("llama", tmp_path / "small")
    num_bytes = sum(each.nbytes for each in model.model.layers.parameters())
    cases = [(layers, fused) for fused in (True, False) for layers in ("0:8", "0:4", "4:8")]
    words = [f"{layers}/{fused}" for layers, fused in cases]
    command = [sys.executable, "-c", LOADING, str(small), str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    peaks = dict(zip(cases, map(int, done.stdout.split()), strict=True))  # bytes by which the resident set grows
    for fused in (True, False):
        assert num_bytes <= peaks["0:8", fused]
        for half in ("0:4", "4:8"):
            assert num_bytes / 2 <= peaks[half, fused] < 0.6 * peaks["0:8", fused]


def test_a_folder_that_only_transformers_can_read_is_cut_too(folders, tmp_path):
    """It has a tensor that nobody knows, so the whole model is read by transformers, and so is each stage."""
    folder = shutil.copytree(folders("llama"), tmp_path / "odd")
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"model.extra.weight": torch.ones(1)}, file, metadata={"format": "pt"})
    models = check_lives(config_of(folder), 3)
    assert all(isinstance(runner, FusedRunner) for each in models for runner in each.runners)


@pytest.mark.parametrize("fused", [True, False])
def test_a_checkpoint_that_lacks_a_weight_is_refused_by_the_stage_that_needs_it(fused, folders, tmp_path):
    folder = shutil.copytree(folders("llama"), tmp_path / "incomplete")
    file = folder / "model.safetensors"
    kept = {name: each for name, each in load_file(file).items() if name != "model.layers.2.mlp.up_proj.weight"}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"incomplete: 1 weights are missing, the first is model.layers.2.mlp"):
        load_stage(config_of(folder, fused=fused), "2:4")
    assert load_stage(config_of(folder, fused=fused), "0:2").layers.size == 2


@pytest.mark.parametrize(
    ("layers", "complaint"),
    [
        ("2:9", "layers 2:9 do not exist: the model has layers 0:4"),
        ("2:2", "layers 2:2 do not exist: the model has layers 0:4, and a stage has at least one"),
        ("first half", "layers 'first half' are not a range"),
    ],
)
def test_layers_that_do_not_exist_are_refused_before_weights_are_read(layers, complaint, folders, monkeypatch):
    monkeypatch.setattr("starspec.models.loading.load.read_llama_checkpoint", None)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load_stage(config_of(folders("llama")), layers)


def test_a_synthetic_model_has_no_stages():
    with pytest.raises(ConfigError, match="has no weights, so it cannot be cut"):
        load_stage(ModelConfig(model="synthetic:target"), "0:1")


def test_layers_that_take_more_than_hidden_states_from_those_before_are_refused(folders, monkeypatch):
    def forward(self, hidden_states, per_layer_input=None, **_):
        return hidden_states

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    with pytest.raises(ModelError, match=r"tiny' is not supported: its layers take per_layer_input, which does not"):
        load_stage(config_of(folders("llama"), fused=False), "0:2")


def test_hidden_states_that_do_not_fit_are_refused_before_anything_is_written(folders):
    config = config_of(folders("llama"))
    first, last = Chain.cut(config, 2).runners
    segments = [Segment(each.cache.lease(), [1, 2, 3], 3) for each in (first, last)]
    hidden = first.forward(segments[:1]).hidden
    for wrong in (None, hidden[:2], hidden[:, :5], hidden.bfloat16()):
        with pytest.raises(ValueError, match="layers 2:4 need hidden states"):
            last.forward(segments[1:], hidden=wrong)
    with pytest.raises(ValueError, match="begin with token ids"):
        first.forward(segments[:1], hidden=hidden)
    assert not last.cache.keys[0].any()


def test_an_empty_forward_gives_nothing_at_any_stage(folders):
    first, last = Chain.cut(config_of(folders("llama")), 2).runners
    hidden = first.forward([]).hidden
    assert hidden.shape == (0, SHAPE["hidden_size"])
    assert last.forward([], hidden=hidden).logits.shape == (0, VOCAB_SIZE)
