import threading
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    StableLmConfig,
    Starcoder2Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from starspec import LLM, SamplingParams
from starspec.config import ModelConfig
from starspec.errors import ConfigError, ModelError
from starspec.models.loading.cached_folder import made_once
from starspec.models.loading.gguf import LLAMA3, GgufFacts, apply, converted_folder
from starspec.models.loading.gguf_tokenizer import GgufVocabulary, check_tokenizer
from starspec.models.loading.load import load_runner, load_stage
from starspec.models.loading.locate import locate
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import Segment

HIDDEN, HEADS, LAYERS, INNER = 64, 4, 2, 96
TOKENS = [chr(code) for code in range(33, 127)] + ["ab", "<end>"]
CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_gguf(
    path, *, without=(), more=lambda writer: None, added=(), merges=("a b",), pre="default", num_rows=None, model="gpt2"
):
    """A Llama with random weights and a vocabulary of single characters.

    Args:
        without: names of tensors that are left out.
        more: adds to the file.
        added: more tokens, as (token, its type).
        num_rows: of the embedding, if not one for each token.
    """
    tokens = [*TOKENS, *(token for token, _ in added)]
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
    writer.add_vocab_size(num_rows or len(tokens))
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 1) + [CONTROL, *(kind for _, kind in added)])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(TOKENS) - 1)
    random = np.random.default_rng(0)
    more(writer)
    for name, shape in tensor_shapes(num_rows or len(tokens)).items():
        if name in without:
            continue
        mean = 1.0 if "norm" in name else 0.0
        writer.add_tensor(name, (mean + 0.1 * random.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensor_shapes(num_rows):
    shapes = {"token_embd.weight": (num_rows, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes["output.weight"] = (num_rows, HIDDEN)
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
        (
            {"without": ["blk.1.attn_q.weight"]},
            "it is incomplete, or transformers does not read all of this family: model.layers.1.self_attn.q_proj",
        ),
        ({"more": lambda writer: writer.add_uint16("split.count", 3)}, "it is one of 3 parts: merge them first"),
        (
            {"more": lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)},
            "its rotary setting llama.rope.scaling.type = 'yarn' is not supported",
        ),
        (
            {"more": lambda writer: writer.add_rope_scaling_factor(8.0)},
            "its rotary setting llama.rope.scaling.factor = 8.0 is not supported",
        ),
        (
            {"more": lambda writer: writer.add_float32("llama.rope.scale_linear", 4.0)},
            "its rotary setting llama.rope.scale_linear = 4.0 is not supported",
        ),
        (
            {"more": lambda writer: writer.add_float32("llama.rope.freq_base_swa", 1e6)},
            "its rotary setting freq_base_swa = 1000000.0 is not supported",
        ),
        (
            {"more": lambda writer: writer.add_tensor("rope_factors_long.weight", np.ones(8, "f4"))},
            "its rotary tensor rope_factors_long.weight is not supported",
        ),
        (
            {"more": lambda writer: writer.add_sliding_window(8)},
            "its sliding_window is 8, and a llama of transformers has none; give the original",
        ),
        (
            {"more": lambda writer: writer.add_attn_logit_softcapping(30.0)},
            "its attn_logit_softcapping is 30.0, and a llama of transformers has none; give the original",
        ),
        ({"more": lambda writer: writer.add_bos_token_id(len(TOKENS))}, "its bos_token has id 96, but its last token"),
        ({"more": lambda writer: writer.add_eot_token_id(500)}, "token 500 ends a turn, but the last token is 95"),
        ({"num_rows": len(TOKENS) + 4}, "it has 96 tokens, but its embedding has 100 rows"),
        (
            {"added": [("ab", gguf.TokenType.NORMAL)]},
            "token 94 is 'ab' in the file and None in the converted tokenizer",
        ),
        (
            {"pre": "invented"},
            "its pre-tokenizer 'invented' is not known; .* one of these: .*deepseek-coder.* stablelm2",
        ),
        ({"pre": "x" * 5000}, "its pre-tokenizer 'x{100,200}[^x]* is not known"),
        ({"model": "t5"}, "it has no 'scores'"),
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


@pytest.mark.parametrize("size", [4, 20, 500, -1])
def test_a_file_that_is_cut_short_is_called_so(tmp_path, cache, size):
    path = write_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"'tiny.gguf' cannot be converted: it is not a \.gguf file, or cut short"):
        converted_folder(path)


def test_a_pointer_of_git_lfs_is_called_so(tmp_path, cache):
    (tmp_path / "tiny.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n")
    with pytest.raises(ModelError, match=r"tiny\.gguf' is a pointer of Git LFS, not the weights"):
        converted_folder(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("kind", [CONTROL, gguf.TokenType.UNKNOWN, USER_DEFINED])
def test_tokens_outside_the_byte_alphabet_keep_their_ids(tmp_path, cache, kind):
    bars = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]  # DeepSeek's
    bos, eos, user, assistant = range(len(TOKENS), len(TOKENS) + len(bars))

    def more(writer):
        writer.add_bos_token_id(bos)
        writer.add_eot_token_id(eos)
        writer.add_add_bos_token(True)
        writer.add_chat_template(
            "{{ bos_token }}{% for message in messages %}<｜User｜>{{ message['content'] }}{% endfor %}<｜Assistant｜>"
        )

    added = [(bar, kind) for bar in bars]
    path = str(write_gguf(tmp_path / "tiny.gguf", added=added, more=more, pre="deepseek-coder"))
    tokenizer = load_tokenizer(path)
    a, ab = TOKENS.index("a"), TOKENS.index("ab")
    assert len(tokenizer) == len(TOKENS) + len(bars)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (bos, len(TOKENS) - 1)
    assert tokenizer.encode("ab<｜end▁of▁sentence｜>a") == [bos, ab, eos, a]
    assert tokenizer.decode([user, a, assistant]) == "<｜User｜>a<｜Assistant｜>"
    prompt = [bos, user, ab, assistant]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], return_dict=False) == prompt
    with LLM(path, dtype="float32") as llm:
        (result,) = llm.chat([{"role": "user", "content": "ab"}], SamplingParams(temperature=0.0, max_tokens=2))
    assert result.prompt_token_ids == prompt
    assert llm.engine.verifier.info.eos_token_ids == (len(TOKENS) - 1, eos)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("stablelm2", ["1", "2", "ab"]),
        ("deepseek-llm", ["1", "2", "ab"]),
        ("deepseek-coder", ["1", "2", "ab"]),
        ("llama-bpe", ["12", "ab"]),
        ("gpt-2", ["12", "ab"]),
        ("default", ["12", "ab"]),
        (None, ["12", "ab"]),
    ],
)
def test_the_pre_tokenizer_that_the_file_names_is_used(tmp_path, cache, pre, pieces):
    added = [("12", gguf.TokenType.NORMAL)]
    path = write_gguf(tmp_path / "tiny.gguf", added=added, merges=["a b", "1 2"], pre=pre)
    assert load_tokenizer(str(path)).tokenize("12ab") == pieces


def test_llama_3_takes_whole_tokens_first_and_begins_with_bos(tmp_path, cache):
    def more(writer):
        writer.add_bos_token_id(len(TOKENS) + 1)

    added = [("hello", gguf.TokenType.NORMAL), ("<|begin|>", CONTROL)]  # no merges lead to `hello`
    tokenizer = load_tokenizer(str(write_gguf(tmp_path / "tiny.gguf", added=added, more=more, pre="llama-bpe")))
    assert tokenizer.encode("hello") == [len(TOKENS) + 1, len(TOKENS)]


def test_the_rotary_settings_that_transformers_ignores_are_applied_or_refused():
    vocabulary = GgufVocabulary("gpt2", None, TOKENS, [], [], {}, None, None, None, None)
    model = SimpleNamespace(config=Starcoder2Config(), generation_config=GenerationConfig())
    apply(GgufFacts(vocabulary, (), {"freq_base": 999999.0}, {}, None), model)
    assert model.config.rope_parameters["rope_theta"] == 999999.0
    model.config = StableLmConfig(hidden_size=64, num_attention_heads=4, partial_rotary_factor=0.25)
    apply(GgufFacts(vocabulary, (), {"dimension_count": 4}, {}, None), model)
    with pytest.raises(ValueError, match=r"it rotates 8 dimensions of a head, where a stablelm .* rotates 4"):
        apply(GgufFacts(vocabulary, (), {"dimension_count": 8}, {}, None), model)


@pytest.mark.parametrize(
    ("config_class", "num_layers", "hidden_size", "scalar"),
    [(Gemma2Config, 42, 3584, 256), (Gemma2Config, 46, 4608, 144), (Gemma3TextConfig, 62, 5376, 168)],
)
def test_scores_of_gemma_27b_have_a_scale_that_no_file_states(config_class, num_layers, hidden_size, scalar):
    vocabulary = GgufVocabulary("gpt2", None, TOKENS, [], [], {}, None, None, None, None)
    head_dim = 256 if scalar == 256 else 128
    config = config_class(
        num_hidden_layers=num_layers, hidden_size=hidden_size, num_attention_heads=32, head_dim=head_dim
    )
    apply(GgufFacts(vocabulary, (), {}, {}, None), SimpleNamespace(config=config))
    assert config.query_pre_attn_scalar == scalar


class Converted:
    """A tokenizer as transformers may make it of a file with the tokens a, b and <s>, of which <s> is BOS."""

    def __init__(self, *, tokens=("a", "b", "<s>"), bos_token_id=2, more=()):
        self._tokens = tokens
        self.bos_token_id = bos_token_id
        self._more = more

    def convert_ids_to_tokens(self, token_ids):
        return [self._tokens[token_id] for token_id in token_ids]

    def get_vocab(self):
        return {token: token_id for token_id, token in enumerate([*self._tokens, *self._more])}


@pytest.mark.parametrize(
    ("changes", "num_rows", "difference"),
    [
        ({}, 4, "it has 3 tokens, but its embedding has 4 rows"),
        ({"tokens": ("a", "<s>", "b")}, 3, "token 1 is 'b' in the file and '<s>' in the converted tokenizer"),
        ({"more": ["<pad>"]}, 3, "the converted tokenizer has a token 3, '<pad>', behind the file's last one"),
        ({"bos_token_id": 1}, 3, "its bos_token has id 2 in the file and 1 in the converted tokenizer"),
        ({"bos_token_id": None}, 3, "its bos_token has id 2 in the file and None in the converted tokenizer"),
    ],
)
def test_a_converted_tokenizer_that_is_not_the_files_is_refused_with_the_first_difference(
    changes, num_rows, difference
):
    vocabulary = GgufVocabulary("gpt2", None, ["a", "b", "<s>"], [], [], {"bos_token": 2}, None, None, None, None)
    check_tokenizer(vocabulary, Converted(), 3)
    with pytest.raises(ValueError, match=difference):
        check_tokenizer(vocabulary, Converted(**changes), num_rows)


@pytest.mark.parametrize("adds_space", [None, True, False])
def test_a_sentencepiece_vocabulary_is_compared_too(tmp_path, cache, adds_space):
    def more(writer):
        writer.add_token_scores([-float(index) for index in range(len(TOKENS) + 5)])
        writer.add_unk_token_id(len(TOKENS))
        if adds_space is not None:
            writer.add_add_space_prefix(adds_space)

    added = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    added += [("\u2581", gguf.TokenType.NORMAL), ("\u2581a", gguf.TokenType.NORMAL)]
    merges = ["a b", "\u2581 a"]
    path = write_gguf(tmp_path / "tiny.gguf", added=added, merges=merges, more=more, model="llama")
    if adds_space is False:
        with pytest.raises(ModelError, match="no space before it in the file, and one in the converted tokenizer"):
            converted_folder(path)
    else:
        assert load_tokenizer(str(path)).tokenize("a")[-1] == "\u2581a"


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
    assert [each.name for each in tmp_path.iterdir()] == ["model.lock"]
    assert not folder.exists()
    made_once(folder, lambda partial: (partial / "whole").write_text(""))
    assert [each.name for each in folder.iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        ("file/cache", "file/cache/gguf/.*' cannot be made: Not a directory"),
        ("~nosuch", "no home for the cache '~nosuch'"),
    ],
)
def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, cache, sentence):
    (tmp_path / "file").write_text("")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STARSPEC_CACHE", cache)
    with pytest.raises(ConfigError, match=rf"{sentence}.* name a folder of yours in STARSPEC_CACHE"):
        locate("model.gguf")


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


def test_a_file_is_cut_into_stages_like_the_folder_it_becomes(tmp_path, cache):
    config = ModelConfig(model=str(write_gguf(tmp_path / "tiny.gguf")), dtype="float32", numerics="fast", num_rows=1)
    first, last, whole = load_stage(config, "0:1"), load_stage(config, "1:2"), load_runner(config)
    segment = Segment(0, [5, 6, 7], 3)
    for each in (first, last, whole):
        each.cache.lease(0)
    logits = last.forward([segment], hidden=first.forward([segment]).hidden).logits
    assert torch.equal(logits, whole.forward([segment]).logits)
    assert first.info.fingerprint == last.info.fingerprint
