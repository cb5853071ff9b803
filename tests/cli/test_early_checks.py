"""What small files and the command line show to be wrong is said before weights are read, by all commands alike."""

import io
import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
from tiny import make_model, save_with_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from starspec.config import MAX_DRAFT_TOKENS
from starspec.errors import ConfigError, ModelError, VocabularyMismatch
from starspec.llm import LLM
from starspec.models.loading.checks import find_models
from starspec.models.loading.config_json import declared_cache_numbers
from starspec.models.synthetic.runner import SyntheticRunner
from starspec.wire.keys import generate_keys

TARGET, OTHER = "synthetic:", "synthetic:role=draft,vocab=64"
PAIR = ("--target", TARGET, "--draft", OTHER)
STRANGERS = {  # commands with a draft of another vocabulary
    "generate": ("generate", "Hello", *PAIR),
    "verify": ("verify", *PAIR),
    "calibrate": ("calibrate", *PAIR),
    "draft": ("draft", *PAIR, "--port", "0"),
    "bench pair": ("bench", "pair", *PAIR),
    "bench tree": ("bench", "tree", *PAIR),
    "bench batch": ("bench", "batch", *PAIR),
    "bench grammar": ("bench", "grammar", *PAIR),
    "bench length": ("bench", "length", *PAIR),
    "bench relaxed": ("bench", "relaxed", *PAIR, "--dataset", "GRADED"),
    "bench async": ("bench", "async", *PAIR),
    "bench star": ("bench", "star", *PAIR),
    "bench faults": ("bench", "faults", *PAIR),
    "bench watch": ("bench", "watch", *PAIR),
    "bench vllm": ("bench", "vllm", *PAIR, "--vllm-python", sys.executable),
    "bench certify": ("bench", "certify", "--model", TARGET, *PAIR, "--part", "pair"),
}
ADDRESSES = {
    "foo:7700": "the hub is at 'foo:7700', which is not of the form tcp://host:port",
    "tcp://foo": "the hub is at 'tcp://foo', which is not of the form tcp://host:port",
    "tcp://10.0.0.1:7700": "the target would connect to the hub at 10.0.0.1 without keys",
}


TOO_LARGE = {  # commands whose model's cache is larger than the memory; MODEL is replaced
    "generate": ("generate", "Hello", "--target", "MODEL"),
    "verify": ("verify", "--target", "MODEL", "--spec-method", "ngram"),
    "draft": ("draft", "--draft", "MODEL", "--port", "0"),
    "target": ("target", "--target", "MODEL", "--port", "0"),
    "stage": ("stage", "--target", "MODEL", "--layers", "0:1", "--listen", "tcp://127.0.0.1:0"),
    "calibrate": ("calibrate", "--target", "MODEL", "--draft", "MODEL"),
    "doctor": ("doctor", "--target", "MODEL", "--draft", "MODEL"),
    "bench pair": ("bench", "pair", "--target", "MODEL", "--draft", "MODEL"),
    "bench tree": ("bench", "tree", "--target", "MODEL", "--draft", "MODEL"),
    "bench batch": ("bench", "batch", "--target", "MODEL", "--draft", "MODEL"),
    "bench grammar": ("bench", "grammar", "--target", "MODEL", "--draft", "MODEL"),
    "bench length": ("bench", "length", "--target", "MODEL", "--draft", "MODEL"),
    "bench shard": ("bench", "shard", "--target", "MODEL", "--draft", "MODEL"),
    "bench async": ("bench", "async", "--target", "MODEL", "--draft", "MODEL"),
    "bench star": ("bench", "star", "--target", "MODEL", "--draft", "MODEL"),
    "bench faults": ("bench", "faults", "--target", "MODEL", "--draft", "MODEL"),
    "bench watch": ("bench", "watch", "--target", "MODEL", "--draft", "MODEL"),
    "bench vllm": ("bench", "vllm", "--target", "MODEL", "--draft", "MODEL", "--vllm-python", sys.executable),
    "bench warm": ("bench", "warm", "--draft", "MODEL"),
    "bench certify": ("bench", "certify", "--model", "MODEL", "--part", "exact"),
}


@pytest.fixture(scope="session")
def unreadable(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a model with a config and a tokenizer, and with a file without tensors in the place of its weights."""
    folder = tmp_path_factory.mktemp("models") / "unreadable"
    save_with_tokenizer(make_model(max_position_embeddings=4096), folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return str(folder)


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch) -> None:
    def load(_config: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(SyntheticRunner, "from_config", load)


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_a_draft_of_another_vocabulary_is_refused_before_anything_is_loaded(words, starspec, tmp_path: Path) -> None:
    graded = tmp_path / "graded.jsonl"
    graded.write_text('{"turns": ["1 + 1?"], "reference": "#### 2"}\n')
    outcome = starspec(*(str(graded) if word == "GRADED" else word for word in words))
    assert "target and draft do not share a vocabulary" in outcome.err
    assert outcome.code == 2


def test_up_refuses_it_before_any_process_starts(starspec, unreadable: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["starspec.cli.up"], "Supervisor", lambda *_: pytest.fail("a process starts"))
    words = {word: number for number, word in enumerate(("red", "green", "blue"))}
    other = Tokenizer(WordLevel(words, unk_token="red"))
    save_with_tokenizer(make_model(), tmp_path / "other")
    other.save(str(tmp_path / "other" / "tokenizer.json"))
    outcome = starspec("up", unreadable, "--draft", str(tmp_path / "other"), "--port", "0")
    assert "target and draft do not share a vocabulary" in outcome.err
    assert outcome.code == 2


def test_the_offline_api_refuses_it_too() -> None:
    with pytest.raises(VocabularyMismatch):
        LLM(TARGET, speculative_config={"model": OTHER})


def test_the_doctor_says_so_in_its_report(starspec) -> None:
    outcome = starspec("doctor", *PAIR)
    assert "vocabulary" in outcome.out
    assert outcome.code == 1


@pytest.mark.parametrize("prompt", ["", " ", "-"])
def test_a_prompt_without_tokens_is_refused_before_anything_is_loaded(prompt: str, starspec, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = starspec("generate", prompt, "--target", TARGET)
    assert "the prompt is empty: give a text to continue, or - and a text on standard input" in outcome.err
    assert outcome.code == 2


def test_a_chat_with_a_model_without_a_chat_template_is_refused_before_weights_are_read(
    starspec, unreadable: str, monkeypatch
) -> None:
    monkeypatch.undo()
    outcome = starspec("generate", "Hello", "--chat", "--target", unreadable)
    assert outcome.err.splitlines()[-1] == "starspec: --chat: this model has no chat template; send plain prompts"
    assert outcome.code == 2


UNPACKED = ("--draft-quantization", "none")
ASKING = {  # commands that a target answers prompts of a file for; FILE is replaced
    "doctor": ("doctor", "--target", TARGET, "--draft", "synthetic:role=draft", "--prompts", "FILE"),
    "calibrate": ("calibrate", "--target", TARGET, "--draft", "synthetic:role=draft", "--prompts", "FILE"),
    "bench pair": ("bench", "pair", "--target", TARGET, "--draft", TARGET, *UNPACKED, "--dataset", "FILE"),
    "bench tree": ("bench", "tree", "--target", TARGET, "--draft", TARGET, *UNPACKED, "--dataset", "FILE"),
    "bench async": ("bench", "async", "--target", TARGET, "--draft", TARGET, *UNPACKED, "--dataset", "FILE"),
    "bench star": ("bench", "star", "--target", TARGET, "--draft", TARGET, *UNPACKED, "--dataset", "FILE"),
}


@pytest.mark.parametrize("words", ASKING.values(), ids=ASKING)
def test_a_prompt_longer_than_the_context_is_refused_before_a_model_answers(
    words, starspec, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.undo()  # a synthetic model is read to find its size
    monkeypatch.setattr("starspec.harness.decode.decode", lambda *_, **__: pytest.fail("a model answers"))
    monkeypatch.setattr("starspec.bench.star.serving.BenchProcess", lambda *_, **__: pytest.fail("a process starts"))
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"id": "long", "category": "plain", "turns": ["bipa " * 5000]}) + "\n")
    outcome = starspec(*(str(file) if word == "FILE" else word for word in words))
    assert "prompt 'long' has 5000 tokens, and this model's context holds" in outcome.err
    assert outcome.code == 2


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_targets_hub_is_checked_before_anything_is_loaded(address: str, starspec) -> None:
    outcome = starspec("target", "--target", TARGET, "--port", "0", "--hub", address)
    assert ADDRESSES[address] in outcome.err
    assert outcome.code == 2


def test_a_targets_keys_are_checked_before_anything_is_loaded(starspec, tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    (tmp_path / "keys" / "hub.public").unlink()
    words = ("--port", "0", "--keys", str(tmp_path / "keys"), "--hub", "tcp://127.0.0.1:7700")
    outcome = starspec("target", "--target", TARGET, *words)
    assert "cannot read the key" in outcome.err
    assert "hub.public" in outcome.err
    assert outcome.code == 2


def test_a_hubs_keys_of_clients_are_checked_before_anything_is_loaded(starspec, tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    (tmp_path / "keys" / "target.public").write_text("no key")
    words = ("--port", "0", "--keys", str(tmp_path / "keys"))
    outcome = starspec("draft", "--draft", TARGET, *words)
    assert "target.public does not contain a key" in outcome.err
    assert outcome.code == 2


def test_weights_that_a_synthetic_draft_does_not_have_are_said_with_what_to_do(starspec, monkeypatch) -> None:
    monkeypatch.undo()
    outcome = starspec("bench", "tree", "--target", TARGET, "--draft", "synthetic:role=draft")
    assert (
        "has no weights to quantize to int4: give quantization none, as with --draft-quantization none" in outcome.err
    )
    assert outcome.code == 2


@pytest.mark.parametrize("words", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_cache_larger_than_the_memory_is_refused_before_weights_are_read(
    words, unreadable: str, starspec, monkeypatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("starspec.cache.ragged.machine_bytes", lambda: 1)
    outcome = starspec(*(unreadable if word == "MODEL" else word for word in words))
    assert "more than this machine's memory of 1 bytes" in outcome.err
    assert outcome.code == 2


def test_up_refuses_such_a_cache_before_any_process_starts(starspec, unreadable: str, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["starspec.cli.up"], "Supervisor", lambda *_: pytest.fail("a process starts"))
    outcome = starspec("up", unreadable, "--port", "0", "--max-num-seqs", "1000000000")
    assert "the KV cache of 1000000000 sequences of" in outcome.err
    assert outcome.code == 2


def test_up_refuses_a_budget_without_room_for_a_sequence_before_any_process_starts(
    starspec, unreadable: str, monkeypatch
) -> None:
    monkeypatch.setattr(sys.modules["starspec.cli.up"], "Supervisor", lambda *_: pytest.fail("a process starts"))
    outcome = starspec("up", unreadable, "--port", "0", "--draft", unreadable, "--kv-budget", "1KiB")
    assert "a KV budget of 1024 bytes holds no sequence: one of 4160 tokens" in outcome.err
    assert outcome.code == 2


@pytest.mark.parametrize("stages", ["1", "2"])
def test_up_refuses_caches_that_fit_only_alone_and_counts_those_of_this_machine(
    stages: str, starspec, unreadable: str, monkeypatch
) -> None:
    def start(*_: object) -> None:
        raise ConfigError("processes start")

    monkeypatch.setattr(sys.modules["starspec.cli.up"], "Supervisor", start)
    for module in ("starspec.cli.up", "starspec.models.loading.checks"):
        monkeypatch.setattr(sys.modules[module], "check_there", lambda _: None)
    words = ["up", unreadable, "--port", "0", "--max-model-len", "64", "--max-num-seqs", "3", "--targets", "5"]
    one = 3 * (64 + MAX_DRAFT_TOKENS) * declared_cache_numbers(Path(unreadable)) * 2
    drafts = {
        (): 0,
        ("--draft", unreadable): 5 * one,
        ("--draft", unreadable, "--draft-device", "cuda:0"): 0,
        ("--draft", unreadable, "--kv-budget", "1MiB"): 2**20,
    }
    if stages == "2":
        words, drafts = [*words, "--stages", stages], {(): 0}
    memory = [0]
    monkeypatch.setattr("starspec.models.loading.checks.machine_bytes", lambda: memory[0])
    for more, draft in drafts.items():
        memory[0] = 5 * one + draft
        assert "processes start" in starspec(*words, *more).err
        memory[0] -= 1
        outcome = starspec(*words, *more)
        what = f"targets and draft take 5 times {one} and {draft}" if draft else f"targets take 5 times {one}"
        assert f"the KV caches of 5 {what} bytes, together more than this machine's memory of" in outcome.err
        assert outcome.code == 2


def test_the_offline_api_refuses_such_a_cache_too(unreadable: str, monkeypatch) -> None:
    monkeypatch.setattr("starspec.cache.ragged.machine_bytes", lambda: 1)
    for draft in (None, {"model": unreadable}):
        with pytest.raises(ConfigError, match="this machine's memory"):
            LLM(unreadable, speculative_config=draft)


WRONG_OPTIONS = {  # of `LLM`, as keys of a speculative config or beside it
    "no CUDA": {"device": "cuda:99"},
    "context": {"max_model_len": 900000},
    "no CUDA for the draft": {"speculative_config": {"device": "cuda:99"}},
    "context of the draft": {"speculative_config": {"max_model_len": 900000}},
}


@pytest.mark.parametrize("name", WRONG_OPTIONS)
def test_the_offline_api_and_generate_refuse_a_setting_in_the_same_words(
    name: str, unreadable: str, starspec, monkeypatch
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("a tokenizer is loaded")

    monkeypatch.setattr("starspec.llm.load_tokenizer", load)
    options = dict(WRONG_OPTIONS[name])
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if key != "speculative_config"]
    if "speculative_config" in options:
        options["speculative_config"] = {"model": unreadable, **options["speculative_config"]}
        words.append(f"--speculative-config={json.dumps(options['speculative_config'])}")
    with pytest.raises(ConfigError) as raised:
        LLM(unreadable, **options)
    outcome = starspec("generate", "Hello", "--target", unreadable, *words)
    assert outcome.err.splitlines()[-1] == f"starspec: {raised.value}"
    assert outcome.code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefill_chunk": 2.5}, "LLM: prefill_chunk: expected int, got float"),
        ({"prefill_chunk": 0}, "LLM: prefill_chunk must be at least"),
        ({"max_num_seqs": "8"}, "LLM: max_num_seqs: expected int, got str"),
        ({"max_num_seqs": True}, "LLM: max_num_seqs: expected int, got bool"),
        ({"max_num_seqs": "\ud800"}, r"LLM: '\\ud800' is not valid Unicode text"),
        ({"max_num_seqs": 0}, "LLM: max_num_seqs must be at least 1, got 0"),
        ({"device": "gpu"}, "LLM: device 'gpu' is unknown"),
        ({"num_threads": 0}, "LLM: num_threads must be at least 1, got 0"),
        ({"enforce_eager": "no"}, "LLM: enforce_eager: expected bool, got str"),
        ({"model": None}, "LLM: model: expected str, got null"),
        ({"batching": "rows"}, "batching 'rows' is unknown"),
    ],
)
def test_an_option_of_the_offline_api_that_is_no_such_value_is_named(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        LLM(**{"model": TARGET, **options})


OF_FILES = {  # commands that take so many prompts; FILE has two
    "verify": ("verify", *PAIR, "--num-prompts", "3", "--prompts", "FILE"),
    "calibrate": ("calibrate", *PAIR, "--num-prompts", "3", "--prompts", "FILE"),
    "doctor": ("doctor", *PAIR, "--num-prompts", "3", "--prompts", "FILE"),
    "bench batch": ("bench", "batch", *PAIR, "--num-prompts", "3", "--dataset", "FILE"),
    "bench tree": ("bench", "tree", *PAIR, "--num-prompts", "3", "--dataset", "FILE"),
    "bench async": ("bench", "async", *PAIR, "--num-prompts", "3", "--dataset", "FILE"),
    "bench shard": ("bench", "shard", *PAIR, "--num-prompts", "3", "--dataset", "FILE"),
    "bench vllm": ("bench", "vllm", *PAIR, "--num-prompts", "3", "--dataset", "FILE"),
    "bench relaxed": ("bench", "relaxed", *PAIR, "--num-problems", "3", "--dataset", "FILE"),
    "bench relaxed in small": ("bench", "relaxed", *PAIR, "--num-problems", "3", "--quick", "--dataset", "FILE"),
}


@pytest.mark.parametrize("words", OF_FILES.values(), ids=OF_FILES)
def test_more_prompts_than_a_file_has_are_refused(words, starspec, tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    file.write_text('{"turns": ["1 + 1?"], "reference": "#### 2"}\n' * 2)
    outcome = starspec(*(str(file) if word == "FILE" else word for word in words))
    assert outcome.code == 2
    assert " 3: there are only 2: ask for at most so many" in outcome.err


def test_ports_for_targets_that_cannot_be_opened_are_refused_at_a_hubs_start(starspec) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = starspec("draft", "--draft", OTHER, "--port", "0", "--data-ports", f"{port}-{port}")
    assert outcome.code == 2
    assert f"--data-ports {port}-{port}: each target needs one of them, and the hub cannot listen on" in outcome.err
    outcome = starspec("draft", "--draft", OTHER, "--port", str(port), "--data-ports", f"{port}-{port}")
    assert "and the hub's own port is the only one" in outcome.err


def test_machines_too_small_for_a_model_are_refused_before_a_layer_is_read(
    starspec, unreadable: str, tmp_path: Path
) -> None:
    folder = tmp_path / "heads"
    shutil.copytree(unreadable, folder)
    head = b'{"weight": {"dtype": "F32", "shape": [1000, 1000], "data_offsets": [0, 0]}}'
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    small = starspec("plan-stages", "--target", str(folder), "--node", "a=1MB", "--node", "b=900KB")
    assert small.code == 2
    assert "the nodes cannot hold the model: its weights and its cache take at least" in small.err
    assert "bytes, and the nodes have 1900000; add a node" in small.err


WITHOUT_WEIGHTS = {  # commands that read weights; MODEL has none, or not all
    "generate": ("generate", "Hello", "--target", "MODEL"),
    "a draft": ("verify", "--target", "synthetic:", "--draft", "MODEL"),
    "up": ("up", "MODEL", "--port", "0"),
    "target": ("target", "--target", "MODEL", "--port", "0"),
    "draft": ("draft", "--draft", "MODEL", "--port", "0"),
    "stage": ("stage", "--target", "MODEL", "--layers", "0:1", "--listen", "tcp://127.0.0.1:0"),
    "doctor": ("doctor", "--target", "MODEL", "--draft", "MODEL"),
    "train": ("train", "--target", "MODEL", "--prompts", "PROMPTS", "--out", "HEAD", "--max-model-len", "200"),
    "bench pair": ("bench", "pair", "--target", "MODEL", "--draft", "MODEL"),
    "bench certify": ("bench", "certify", "--model", "MODEL", "--part", "exact"),
}


@pytest.mark.parametrize("words", WITHOUT_WEIGHTS.values(), ids=WITHOUT_WEIGHTS)
@pytest.mark.parametrize("is_cut_short", [False, True])
def test_weights_that_are_not_all_there_are_noticed_at_once(
    words, is_cut_short: bool, starspec, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(sys.modules["starspec.cli.up"], "Supervisor", lambda *_: pytest.fail("a process starts"))
    monkeypatch.setattr("starspec.models.loading.checks.check_vocabulary_files", lambda *_: None)
    folder, prompts = tmp_path / "model", tmp_path / "prompts.jsonl"
    save_with_tokenizer(make_model(), folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if is_cut_short:
        weights.write_bytes(content[:-7])
    prompts.write_text('{"turns": ["1 + 1?"]}\n')
    places = {"MODEL": folder, "PROMPTS": prompts, "HEAD": tmp_path / "head"}
    outcome = starspec(*(str(places.get(word, word)) for word in words))
    said = "lacks 7 bytes; get it again" if is_cut_short else "there is no file model.safetensors in its folder"
    assert said in outcome.err
    assert outcome.code == 2
    assert not (tmp_path / "head").exists()


STUBS = {  # of a tokenizer's file, and what is said of it
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS, not the file itself"),
    "cut short": (b'{"version": "1.0", "model": {"vocab": {"a"', "is not whole: "),
}


@pytest.mark.parametrize("stub", STUBS)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_not_all_there_is_noticed_at_once(name: str, stub: str, unreadable: str, tmp_path) -> None:
    shutil.copytree(unreadable, tmp_path / "model")
    content, said = STUBS[stub]
    (tmp_path / "model" / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name}' {said}"):
        find_models(str(tmp_path / "model"))


def test_a_stub_beside_a_good_tokenizer_is_left_alone(unreadable: str, tmp_path: Path) -> None:
    shutil.copytree(unreadable, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.model").write_bytes(STUBS["a pointer"][0])
    find_models(str(tmp_path / "model"))


NO_WEIGHTS = {  # what may be in the place of weights, and what is said of it
    "nothing": (b"", "is cut short, within its head"),
    "the first bytes": ((500).to_bytes(8, "little") + b'{"weight"', "is cut short, within its head"),
    "a page": (b"<html><body>404 Not Found</body></html>", "is not a .safetensors file"),
    "no JSON": ((2).to_bytes(8, "little") + b"ab", "is not a .safetensors file"),
}


@pytest.mark.parametrize("kind", NO_WEIGHTS)
@pytest.mark.parametrize("of_head", [False, True])
def test_what_is_in_the_place_of_weights_is_noticed_at_once(kind: str, of_head: bool, starspec, tmp_path: Path) -> None:
    content, said = NO_WEIGHTS[kind]
    save_with_tokenizer(make_model(), tmp_path)
    if of_head:
        (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}')
    (tmp_path / "model.safetensors").write_bytes(content)
    outcome = starspec("generate", "Hello", "--target", "synthetic:", "--draft", str(tmp_path))
    assert f"model.safetensors' {said}; get it again" in outcome.err
    assert outcome.code == 2


@pytest.mark.parametrize("files", ["pickled", "safetensors"])
def test_a_head_that_only_the_method_names_is_not_checked_as_a_model(
    files: str, starspec, unreadable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SafeAILab's EAGLE-1: the config.json of a small Llama, weights in pytorch_model.bin, and no tokenizer."""

    def load(*_: object) -> None:
        raise ConfigError("it is loaded")

    monkeypatch.setattr(sys.modules["starspec.cli.serve"], "_load", load)
    make_model(max_position_embeddings=64).save_pretrained(tmp_path)
    if files == "pickled":
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    words = ("draft", "--target", unreadable, "--draft", str(tmp_path), "--port", "0", "--max-model-len", "4096")
    assert "it is loaded" in starspec(*words, "--spec-method", "eagle").err
    assert "it is loaded" not in starspec(*words).err


def test_a_target_in_stages_needs_no_weights(starspec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise ConfigError("it is loaded")

    monkeypatch.setattr(sys.modules["starspec.cli.serve"], "_load", load)
    save_with_tokenizer(make_model(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    outcome = starspec("target", "--target", str(tmp_path), "--port", "0", "--stages", "tcp://127.0.0.1:7900")
    assert "it is loaded" in outcome.err


def test_each_file_of_an_index_must_be_there(starspec, tmp_path: Path) -> None:
    save_with_tokenizer(make_model(), tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    outcome = starspec("generate", "Hello", "--target", str(tmp_path))
    assert "there is no file model-2.safetensors in its folder" in outcome.err
