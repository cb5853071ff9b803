import threading

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.loading.cached_folder import made_once
from starspec.models.loading.gguf import LLAMA3, converted_folder
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import Segment

HIDDEN, HEADS, LAYERS, INNER = 64, 4, 2, 96
TOKENS = [chr(code) for code in range(33, 127)] + ["ab", "<end>"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_gguf(path, *, without=(), more=lambda writer: None):
    """A Llama with random weights and a vocabulary of single characters.

    Args:
        without: names of tensors that are left out.
        more: adds to the file.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(TOKENS) - 1)
    random = np.random.default_rng(0)
    more(writer)
    for name, shape in tensor_shapes().items():
        if name in without:
            continue
        mean = 1.0 if "norm" in name else 0.0
        writer.add_tensor(name, (mean + 0.1 * random.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes():
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes["output.weight"] = (len(TOKENS), HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN, HIDDEN)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            shapes[f"blk.{layer}.ffn_{name}.weight"] = shape
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN,)
    return shapes


def test_a_gguf_file_runs_like_the_folder_it_becomes(tmp_path, cache):
    path = write_gguf(tmp_path / "tiny.gguf")
    runner = load_runner(ModelConfig(model=str(path), dtype="float32"))
    token_ids = load_tokenizer(str(path))("hello")["input_ids"]
    logits = runner.forward([Segment(runner.cache.lease(), token_ids, len(token_ids))]).logits
    (folder,) = (each for each in (cache / "gguf").iterdir() if each.is_dir())
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits, plain(torch.tensor([token_ids])).logits[0], atol=1e-4, rtol=1e-4)
    assert runner.info.eos_token_ids == (len(TOKENS) - 1,)


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path, cache, capfd):
    path = write_gguf(tmp_path / "tiny.gguf")
    first = converted_folder(path)
    changed = (first / "config.json").stat().st_mtime_ns
    assert "converting tiny.gguf" in capfd.readouterr().err
    assert converted_folder(path) == first
    assert (first / "config.json").stat().st_mtime_ns == changed
    assert capfd.readouterr().err == ""
    with path.open("ab") as file:
        file.write(b"\0")
    assert converted_folder(path) != first


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"without": ["blk.1.attn_q.weight"]}, "it is incomplete: model.layers.1.self_attn.q_proj.weight is missing"),
        ({"more": lambda writer: writer.add_uint16("split.count", 3)}, "it is one of 3 parts: merge them first"),
        (
            {"more": lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)},
            "its rotary scaling 'yarn' is not supported",
        ),
        (
            {"more": lambda writer: writer.add_tensor("rope_freqs.weight", np.array([1, 2, 3, 4, 5, 6, 7, 9.0], "f4"))},
            "its rotary scaling is not that of Llama 3",
        ),
    ],
)
def test_a_file_that_would_be_read_in_part_is_refused(tmp_path, cache, options, complaint):
    path = write_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises(ModelError, match=f"'tiny.gguf' cannot be converted: {complaint}"):
        converted_folder(path)


def test_the_scaling_of_llama_3_and_the_end_of_a_turn_are_read(tmp_path, cache):
    scaling = {"rope_type": "llama3", "factor": 8.0, **LLAMA3}
    config = LlamaConfig(hidden_size=HIDDEN, num_attention_heads=HEADS, max_position_embeddings=131072)
    config.rope_parameters = {"rope_theta": 10000.0, **scaling}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    factors = 10000.0 ** (-torch.arange(8) / 8) / scaled  # as llama.cpp keeps them

    def more(writer):
        writer.add_tensor("rope_freqs.weight", factors.numpy().astype(np.float32))
        writer.add_eot_token_id(5)

    runner = load_runner(ModelConfig(model=str(write_gguf(tmp_path / "tiny.gguf", more=more)), dtype="float32"))
    assert runner.info.eos_token_ids == (5, len(TOKENS) - 1)
    (folder,) = (each for each in (cache / "gguf").iterdir() if each.is_dir())
    read = AutoConfig.from_pretrained(folder).rope_parameters
    assert {name: read[name] for name in scaling} == scaling


def test_a_file_that_is_no_gguf_is_refused_and_leaves_no_model(tmp_path, cache):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"not a model at all" * 10)
    with pytest.raises(ModelError, match=r"'broken\.gguf' cannot be converted"):
        load_runner(ModelConfig(model=str(path)))
    assert not [each for each in (cache / "gguf").iterdir() if each.is_dir() and each.suffix != ".partial"]


def test_an_interrupted_conversion_leaves_nothing_that_passes_for_a_model(tmp_path):
    folder = tmp_path / "model"

    def die_half_way(partial):
        (partial / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(folder, die_half_way)
    assert not folder.exists()
    made_once(folder, lambda partial: (partial / "whole").write_text(""))
    assert [each.name for each in folder.iterdir()] == ["whole"]


def test_of_many_that_ask_at_once_one_converts(tmp_path):
    made = []
    start = threading.Barrier(4)

    def ask():
        start.wait()
        made_once(tmp_path / "model", made.append)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
