import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import structlog
import torch
from tiny import VOCAB_SIZE, decode_greedily, generate, make_model, plain_logits, prefill, prompt_ids

from starspec.config import ModelConfig
from starspec.errors import ConfigError, ModelError
from starspec.ids import TargetId
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.loading.load import check_loadable, load_runner
from starspec.models.loading.locate import announced_name
from starspec.models.loading.progress import listening
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.loading.transformers_calls import first_line
from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment
from starspec.stats import TargetStats
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import TargetStatus, TargetToGateway


@pytest.fixture
def llama(tmp_path, save_with_tokenizer):
    """A folder with a tiny Llama."""
    return save_with_tokenizer(make_model("llama"), tmp_path / "llama")


@pytest.fixture
def gpt2(tmp_path, save_with_tokenizer):
    """A folder with a tiny model of an architecture that has no fused path."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(vocab_size=VOCAB_SIZE, n_embd=64, n_layer=2, n_head=4, n_positions=256, initializer_range=0.2)
    return save_with_tokenizer(GPT2LMHeadModel(config).eval(), tmp_path / "gpt2")


def load(folder, **changes):
    return load_runner(ModelConfig(**{"model": str(folder), "dtype": "float32", **changes}))


def refusal(folder, **changes):
    with pytest.raises(ConfigError) as raised:
        load(folder, **changes)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("fused", "kind"), [(True, FusedRunner), (False, TransformersRunner)])
def test_a_folder_decodes_as_transformers_does(llama, fused, kind):
    runner = load(llama, fused=fused)
    assert isinstance(runner, kind)
    prompt = prompt_ids(20, seed=4)
    assert decode_greedily(runner, prompt, 30) == generate(make_model("llama"), prompt, 30)


def test_an_architecture_without_fused_path_runs_its_own_code_over_packed_linears(gpt2):
    from transformers import AutoModelForCausalLM

    runner = load(gpt2)
    assert isinstance(runner, TransformersRunner)
    prompt = prompt_ids(20, seed=5)
    model = AutoModelForCausalLM.from_pretrained(gpt2, dtype=torch.float32)
    assert decode_greedily(runner, prompt, 20) == generate(model, prompt, 20)


def test_pythia_is_a_decoder_whatever_its_config_says(tmp_path, save_with_tokenizer):
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    assert config.is_decoder is False
    torch.manual_seed(1)
    model = GPTNeoXForCausalLM(config).eval()
    runner = load(save_with_tokenizer(model, tmp_path / "pythia"))
    prompt = prompt_ids(12, seed=6)
    assert decode_greedily(runner, prompt, 12) == generate(model, prompt, 12)


@pytest.mark.parametrize("folder", ["llama", "gpt2"])
def test_a_cache_that_does_not_fit_is_refused_before_weights_are_read(folder, request, monkeypatch):
    folder = request.getfixturevalue(folder)
    row = load(folder, num_rows=1).cache.num_bytes
    (folder / "model.safetensors").write_bytes(b"these are not weights")
    assert "holds no sequence" in refusal(folder, kv_budget_bytes=row - 1)
    monkeypatch.setattr("starspec.cache.ragged.machine_bytes", lambda: 3 * row)
    assert f"takes {4 * row} bytes, more than this machine's memory" in refusal(folder, num_rows=4)
    with pytest.raises(ModelError):
        load(folder, num_rows=3)


def test_weights_that_may_not_be_read_or_were_never_fetched_are_called_so(llama, monkeypatch):
    weights = llama / "model.safetensors"
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 269060552\n")
    assert refusal(llama) == f"'{weights}' is a pointer of Git LFS, not the weights: get them with git lfs pull"
    opened = Path.open

    def refuse(path, *more, **named):
        if path == weights:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *more, **named)

    monkeypatch.setattr(Path, "open", refuse)  # root may read all files
    assert refusal(llama) == f"the weights of '{llama}' cannot be read: {weights}: Permission denied"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_transposed_weights_are_quantized_too(tmp_path, save_with_tokenizer, quantization):
    """GPT-2 keeps its linears [in, out]."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=144, n_embd=64, n_layer=2, n_head=4, n_positions=256)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config).eval()
    runner = load(save_with_tokenizer(model, tmp_path / "even"), quantization=quantization)
    prompt = prompt_ids(30)
    row = prefill(runner, prompt[:-1])
    logits = runner.forward([Segment(row, prompt[-1:], 1)]).logits[0]
    expected = plain_logits(model, prompt)[-1]
    assert (logits - expected).norm() / (expected - expected.mean()).norm() < {"int8": 0.05, "int4": 0.35}[quantization]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("fused", [True, False])
def test_quantized_weights_are_near_and_fewer_bytes(tmp_path, save_with_tokenizer, quantization, fused):
    model = make_model("llama", intermediate_size=128, vocab_size=144)  # shapes that both kernels take
    folder = save_with_tokenizer(model, tmp_path / "even")
    runner, dense = load(folder, quantization=quantization, fused=fused), load(folder)
    prompt = prompt_ids(30)
    row = prefill(runner, prompt[:-1])
    logits = runner.forward([Segment(row, prompt[-1:], 1)]).logits[0]
    expected = plain_logits(model, prompt)[-1]
    error = (logits - expected).norm() / (expected - expected.mean()).norm()
    assert error < {"int8": 0.05, "int4": 0.35}[quantization]
    assert runner.info.num_weight_bytes < {"int8": 0.4, "int4": 0.25}[quantization] * dense.info.num_weight_bytes


def test_both_paths_count_the_same_bytes_of_a_step(tmp_path, save_with_tokenizer):
    folder = save_with_tokenizer(make_model("llama", intermediate_size=128, vocab_size=144), tmp_path / "even")
    for quantization in ("int8", "int4"):
        fused, unfused = (
            load(folder, quantization=quantization, fused=each).info.num_weight_bytes for each in (True, False)
        )
        assert fused == pytest.approx(unfused, rel=0.1)  # norms, and the head's rows that are read again


def test_info_says_what_was_loaded(llama):
    runner = load(llama, num_rows=3)
    model = make_model("llama")
    assert runner.info.name == "llama"
    assert runner.info.vocab_size == VOCAB_SIZE
    assert runner.info.num_parameters == model.num_parameters()
    assert runner.info.eos_token_ids == (0, 2)  # of the tokenizer and of config.json
    assert runner.cache.num_rows == 3


def test_the_length_is_the_models_unless_it_is_longer_than_4096(llama):
    assert load(llama).info.max_model_len == 256
    edit_config(llama, max_position_embeddings=100_000)
    assert load(llama, num_rows=1).info.max_model_len == 4096


def test_more_than_the_models_length_is_refused(llama):
    assert "max_model_len 257 is more than the 256 tokens" in refusal(llama, max_model_len=257)


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 2.0}, 512),
        ({"rope_type": "linear", "factor": 2.0}, 512),
        ({"rope_type": "default"}, 256),
    ],
)
def test_a_stretched_model_is_as_long_as_it_was_stretched(llama, scaling, length):
    edit_config(llama, rope_parameters={"rope_theta": 10000.0, **scaling})
    assert load(llama, max_model_len=length).info.max_model_len == length
    assert f"more than the {length} tokens" in refusal(llama, max_model_len=length + 1)


def test_a_model_is_called_as_its_folder_even_where_one_stands_in_it(llama, monkeypatch):
    monkeypatch.chdir(llama)
    assert load_runner(ModelConfig(model=".", dtype="float32")).info.name == "llama"


def test_missing_weights_are_not_made_up(llama):
    edit_config(llama, num_hidden_layers=3)
    sentence = refusal(llama)
    assert "weights are missing, the first is model.layers.2" in sentence


def test_weights_of_other_sizes_are_named_with_both(llama):
    edit_config(llama, intermediate_size=96)
    sentence = refusal(llama)
    assert "does not fit its config.json: model.layers.0.mlp.down_proj.weight is [96, 112], not [96, 96]" in sentence


def test_weights_that_are_not_used_are_warned_of(llama):
    edit_config(llama, num_hidden_layers=1)
    with structlog.testing.capture_logs() as lines:
        load(llama)
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    assert warning["first"].startswith("model.layers.1.")


def test_threads_beyond_any_machine_are_refused(llama):
    assert refusal(llama, num_threads=100_000) == "num_threads must be at most 1024, got 100000"


def test_a_truncated_safetensors_file_is_one_sentence(llama):
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    assert "the weights of" in refusal(llama)


def test_a_folder_without_weights_is_one_sentence(llama):
    (llama / "model.safetensors").unlink()
    assert "the weights of" in refusal(llama)


def test_pickled_weights_are_not_read(llama):
    (llama / "model.safetensors").unlink()
    torch.save(make_model("llama").state_dict(), llama / "pytorch_model.bin")
    assert "the weights of" in refusal(llama)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"model_type": 5}', '{"hidden_size": 3}', '{"model_type": "nonsense"}'],
)
def test_a_corrupt_config_is_one_sentence(llama, content):
    (llama / "config.json").write_text(content)
    assert "config.json of" in refusal(llama)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": "wide"}, {"hidden_size": 95}, {"vocab_size": 7}, {"num_attention_heads": 0}]
)
def test_a_config_that_does_not_fit_its_weights_is_one_sentence(llama, changes):
    edit_config(llama, **changes)
    with pytest.raises(ModelError):
        load(llama)


@pytest.mark.parametrize("changes", [{"hidden_size": 95}, {"num_attention_heads": 0}])
def test_what_is_wrong_in_a_config_is_not_put_down_to_the_tokenizer(llama, changes):
    edit_config(llama, **changes)
    with pytest.raises(ModelError, match=f"the config.json of '{llama}' cannot be read"):
        load_tokenizer(str(llama))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("rope", "complaint"),
    [
        ({"rope_type": "llama3"}, "of type 'llama3' without factor and low_freq_factor and high_freq_factor"),
        ({"rope_type": "yarn", "factor": "x"}, "has factor 'x' in its rotary settings"),
        ({"rope_type": "linear", "factor": 0}, "has factor 0 in its rotary settings"),
        ({"rope_theta": float("inf")}, "has rope_theta inf in its rotary settings"),
        ({"rope_theta": -1}, "has rope_theta -1 in its rotary settings"),
        ({"rope_type": "linear", "factor": 1e308}, "has factor 1e+308 in its rotary settings"),
        ({"rope_type": "linear", "factor": {}}, "has factor {} in its rotary settings"),
        ([{"rope_type": "linear"}], " [{'rope_type': 'linear'}], where an object should be"),
        (-1, " -1, where an object should be"),
    ],
)
def test_bad_rotary_settings_are_one_sentence(llama, key, rope, complaint):
    config = json.loads((llama / "config.json").read_text())
    del config["rope_parameters"]
    (llama / "config.json").write_text(json.dumps({**config, key: rope}))
    sentence = refusal(llama)
    assert sentence.startswith(f"the config.json of '{llama}' has")
    assert complaint in sentence
    with pytest.raises(ModelError) as raised:
        load_tokenizer(str(llama))
    assert complaint in str(raised.value)


def test_a_model_for_next_to_no_positions_is_refused(llama):
    edit_config(llama, max_position_embeddings=1)
    assert "says max_position_embeddings 1, which should be 16 or more" in refusal(llama)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, save_with_tokenizer, number):
    model = make_model("llama")
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = number
    folder = save_with_tokenizer(model, tmp_path / "broken")
    assert "model.layers.1.mlp.up_proj.weight holds numbers that are NaN or infinite" in refusal(folder)


def test_a_missing_folder_names_its_nearest_sibling(llama):
    assert f"did you mean '{llama}'" in refusal(llama.with_name("lama"))


def test_a_missing_folder_far_from_all_others_names_none(llama):
    assert refusal(llama.with_name("quite-another")) == f"there is no model at '{llama.with_name('quite-another')}'"


def test_a_folder_in_a_missing_folder_names_the_missing_one(tmp_path):
    assert f"'{tmp_path / 'none'}' is not a folder" in refusal(tmp_path / "none" / "model")


def test_a_folder_without_config_is_no_model(tmp_path):
    assert "it has no config.json" in refusal(tmp_path)


def test_a_file_of_another_kind_is_no_model(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    assert "is a file but not a .gguf" in refusal(tmp_path / "model.bin")


@pytest.mark.parametrize(("method", "part"), [("stat", "llama"), ("read_text", "config.json"), ("iterdir", "models")])
def test_what_belongs_to_others_is_one_sentence(tmp_path, monkeypatch, method, part):
    folder = tmp_path / "models" / "llama"
    if method != "iterdir":
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    else:
        folder.parent.mkdir()
    allowed = getattr(Path, method)

    def guarded(path, *arguments, **options):
        if path.name == part:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return allowed(path, *arguments, **options)

    monkeypatch.setattr(Path, method, guarded)  # root may read everything
    assert refusal(folder).endswith("cannot be read: Permission denied")


@pytest.mark.parametrize("hub_id", ["nobody/nothing", "gpt2"])
def test_offline_a_hub_id_that_is_not_cached_says_so(hub_id):
    sentence = refusal(hub_id)
    assert f"'{hub_id}' is not a folder here" in sentence
    assert "HF_HUB_OFFLINE" in sentence


def test_a_hub_id_is_found_in_the_local_hub_cache(llama, tmp_path, monkeypatch):
    commit = "a" * 40
    repo = tmp_path / "hub" / "models--some--llama"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(llama, repo / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load("some/llama").info.name == "some/llama"


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("gpu", "device 'gpu' is unknown"),
        ("cuda:x", "device 'cuda:x' is unknown"),
        ("cpu:3", "device 'cpu:3' is unknown"),
        ("cuda:99", "device 'cuda:99' is not there"),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(llama, device, why):
    assert why in refusal(llama, device=device)


def test_threads_are_set_as_asked(llama):
    before = torch.get_num_threads()
    try:
        load(llama, num_threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_refusal_names_the_model_and_comes_before_its_weights_are_read(llama):
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}
    edit_config(llama, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors})
    (llama / "model.safetensors").unlink()
    said = refusal(llama)
    assert f"'{llama}' is not supported at this length: beyond 64 tokens, rotary type 'longrope'" in said
    with pytest.raises(ModelError, match="llama' is not supported at this length: beyond 64 tokens"):
        check_loadable(ModelConfig(model=str(llama), dtype="float32"))


def test_a_refusal_of_the_models_code_names_the_model(llama, monkeypatch):
    def refuse(*_, **__):
        raise ModelError("its attention uses softcap")

    monkeypatch.setattr(PackedRunner, "forward", refuse)
    assert refusal(llama, fused=False) == f"'{llama}' is not supported: its attention uses softcap"


@pytest.mark.parametrize("text", ["It is wrong. For details look at the above report!", "It is wrong."])
def test_an_error_points_to_no_report_that_is_not_shown(text):
    assert first_line(RuntimeError(text)) == "It is wrong"


@pytest.mark.parametrize(("fused", "packed"), [(True, 9), (False, 15)])  # 2 layers, and the logits
def test_loading_says_its_stages_and_how_far_they_are(llama, fused, packed, tmp_path, monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path / "cache"))  # no probe is kept there
    heard = []
    with listening(lambda *said: heard.append(said)):
        load(llama, fused=fused, quantization="int8", numerics="invariant")
    stages = list(dict.fromkeys(stage for stage, _, _ in heard))
    reading, packing, *checking, probing = stages
    assert (reading, packing, probing) == ("reading llama", "packing llama", "probing the kernels")
    assert checking == ([] if fused else ["checking llama"])
    last = {stage: (num_done, num_all) for stage, num_done, num_all in heard}
    assert last[packing] == (packed, packed)
    assert last[reading][0] == last[reading][1] > 100_000  # bytes
    assert last[probing] == (3, 3)


@pytest.mark.parametrize("name", ["m\u3000x", "m\nx", "m\udcffx", "m" * 250 + "\u3000"])
def test_the_name_of_any_folder_is_one_that_a_gateway_takes(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    status = TargetStatus(TargetId("t"), announced_name(str(folder)), 10, 0, 0, 1, 1, False, TargetStats())
    assert Decoder(TargetToGateway).decode(encode(status)).model == announced_name(str(folder))
