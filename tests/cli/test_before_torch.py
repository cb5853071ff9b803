"""What names, addresses, options and small files show to be wrong is said before torch is imported, by all commands."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from starspec.wire.keys import generate_keys

NOWHERE = "there is no model at '/nowhere'"
LONG = "n" * 300
TOO_LONG_A_NAME = f"'{LONG}' cannot be read: File name too long"
NOBODY, NOBODYS = "~nosuch/m", "there is no model at '~nosuch/m': there is no such user's home"
NO_FILE = "'/nowhere' cannot be read: No such file or directory"
TARGET, DRAFT = ("--target", "synthetic:"), ("--draft", "synthetic:role=draft")
PAIR = (*TARGET, *DRAFT)
LOST_TARGET, LOST_DRAFT = ("--target", "/nowhere", *DRAFT), (*TARGET, "--draft", "/nowhere")
PROMPTS = ("--prompts", "/nowhere")
DATASET = ("--dataset", "/nowhere")
NGRAM = ("draft", "--spec-method", "ngram", "--port", "0")
GATEWAY = ("gateway", *TARGET, "--endpoint", "tcp://127.0.0.1:9")
OTHERS_HEAD = ("--target", "HERE/small", "--draft", "HERE/head")
NO_FIT = "does not fit its target: it takes features of size 64, and the target's are of size 32"
NO_HEAD = "is no EAGLE head, by its config.json: give a draft model as --draft"
NO_MODEL = "is an EAGLE head, which drafts for a model: give it as the draft"
SYNTHETIC = "synthetic model: unknown key 'vocabs'; did you mean 'vocab'?"
TOO_LONG = "max_model_len 900000 is more than the 2048 tokens that"
NO_TOKENIZER = "wordless' has no tokenizer that can be read: there is none of tokenizer.json, "
NO_ROOM = "--max-tokens 2048 leaves no room for a prompt in this model's context of 2048 tokens"
NO_CUDA = "device 'cuda:99' is not there"
NO_WEIGHTS = "has no weights to quantize to int4: give quantization none, as with --draft-quantization none"

STAGE = ("stage", "--target", "HERE/small", "--layers", "0:1", "--listen", "tcp://127.0.0.1:0")

LINES = {
    "generate: target": (("generate", "hi", "--target", "/nowhere"), NOWHERE),
    "generate: draft": (("generate", "hi", *LOST_DRAFT), NOWHERE),
    "generate: head": (("generate", "hi", *LOST_DRAFT, "--spec-method", "eagle3"), NOWHERE),
    "generate: no user": (("generate", "hi", "--target", NOBODY), NOBODYS),
    "generate: draft of no user": (("generate", "hi", *TARGET, "--draft", NOBODY), NOBODYS),
    "generate: head of no user": (
        ("generate", "hi", *TARGET, "--draft", NOBODY, "--spec-method", "eagle3"),
        NOBODYS,
    ),
    "generate: too long a name": (("generate", "hi", "--target", LONG), TOO_LONG_A_NAME),
    "generate: rotary settings": (
        ("generate", "hi", "--target", "HERE/listed"),
        "has rope_scaling [2], where an object should be",
    ),
    "generate: synthetic": (("generate", "hi", "--target", "synthetic:vocabs=9"), SYNTHETIC),
    "generate: no weights": (
        ("generate", "hi", "--target", "HERE/bare"),
        "bare' cannot be read: there is no file model.safetensors in its folder",
    ),
    "generate: an index of no weights": (
        ("generate", "hi", "--target", "HERE/indexed"),
        "indexed' cannot be read: there is no file model.safetensors in its folder",
    ),
    "up: an index of no weights": (
        ("up", "HERE/indexed", "--port", "0"),
        "indexed' cannot be read: there is no file model.safetensors in its folder",
    ),
    "generate: no tokenizer": (("generate", "hi", "--target", "HERE/wordless"), NO_TOKENIZER),
    "up: no tokenizer": (("up", "HERE/wordless", "--port", "0"), NO_TOKENIZER),
    "up: no tokenizer of the draft": (("up", "HERE/long", "--draft", "HERE/wordless", "--port", "0"), NO_TOKENIZER),
    "target: no tokenizer": (
        ("target", "--target", "HERE/wordless", "--port", "0", "--stages", "tcp://127.0.0.1:9"),
        NO_TOKENIZER,
    ),
    "draft: no tokenizer": (("draft", "--draft", "HERE/wordless", "--port", "0"), NO_TOKENIZER),
    "generate: no draft for a .gguf": (
        ("generate", "hi", "--target", "HERE/any.gguf", "--draft", "/nowhere"),
        NOWHERE,
    ),
    "up: no draft for a .gguf": (("up", "HERE/any.gguf", "--draft", "/nowhere", "--port", "0"), NOWHERE),
    "gateway: no other model beside a .gguf": (
        ("gateway", "--target", "HERE/any.gguf", "--also", "/nowhere", "--port", "0", "--hub", "tcp://127.0.0.1:9"),
        NOWHERE,
    ),
    "bench pair: no weights of the draft": (
        ("bench", "pair", "--target", "synthetic:", "--draft", "HERE/bare"),
        "bare' cannot be read: there is no file model.safetensors in its folder",
    ),
    "generate: no folder of a model": (("generate", "hi", "--target", "HERE"), "is not a model: it has no config.json"),
    "generate: no JSON": (("generate", "hi", "--target", "HERE/broken"), "it is not valid JSON"),
    "generate: sampling": (("generate", "hi", *TARGET, "--top-p", "2"), "--top-p must be in (0, 1], got 2.0"),
    "generate: device": (("generate", "hi", *TARGET, "--device", "cuda:x"), "device 'cuda:x' is unknown"),
    "generate: prompt": (("generate", "a\udcff", *TARGET), "the prompt is not valid Unicode text: give it in UTF-8"),
    "generate: stop": (("generate", "hi", *TARGET, "--stop", "a\udcff"), "--stop must be valid Unicode text"),
    "generate: another model's head": (("generate", "hi", *OTHERS_HEAD), NO_FIT),
    "generate: head as target": (("generate", "hi", "--target", "HERE/head"), NO_MODEL),
    "generate: no name": (("generate", "hi", "--target", ""), "--target / --model is empty: give a value"),
    "generate: no CUDA": (("generate", "hi", "--target", "HERE/long", "--device", "cuda:99"), NO_CUDA),
    "generate: context": (("generate", "hi", "--target", "HERE/long", "--max-model-len", "900000"), TOO_LONG),
    "generate: context of the draft": (
        ("generate", "hi", *TARGET, "--draft", "HERE/long", "--max-model-len", "900000"),
        TOO_LONG,
    ),
    "generate: answer": (("generate", "hi", "--target", "HERE/long", "--max-tokens", "2048"), NO_ROOM),
    "generate: settings of a hub": (
        ("generate", "hi", *PAIR, "--speculative-config", '{"remote": {"deadline_ms": 3}}'),
        "remote.deadline_ms: for target servers with a hub elsewhere, without effect in one process",
    ),
    "verify: answer": (("verify", "--target", "HERE/long", *DRAFT, "--max-tokens", "2048"), NO_ROOM),
    "calibrate: answer": (("calibrate", "--target", "HERE/long", *DRAFT, "--max-tokens", "2048"), NO_ROOM),
    "doctor: answer": (("doctor", "--target", "HERE/long", *DRAFT, "--max-tokens", "2048"), NO_ROOM),
    "bench shard: answer": (
        ("bench", "shard", "--target", "HERE/long", "--draft", "HERE/long", "--max-tokens", "1024"),
        "--max-tokens 1024 leaves no room for a prompt in this model's context of 1024 tokens",
    ),
    "verify: context": (("verify", "--target", "HERE/long", *DRAFT, "--max-model-len", "900000"), TOO_LONG),
    "target: context": (("target", "--target", "HERE/long", "--port", "0", "--max-model-len", "900000"), TOO_LONG),
    "target: no CUDA": (("target", "--target", "HERE/long", "--port", "0", "--device", "cuda:99"), NO_CUDA),
    "stage: context": (
        (
            "stage",
            "--target",
            "HERE/long",
            "--layers",
            "0:1",
            "--listen",
            "tcp://127.0.0.1:0",
            "--max-model-len",
            "900000",
        ),
        TOO_LONG,
    ),
    "stage: layers": (
        ("stage", "--target", "HERE/long", "--layers", "0:9", "--listen", "tcp://127.0.0.1:0"),
        "layers 0:9 do not exist: the model has layers 0:2",
    ),
    "stage: no keys for the next": (
        (*STAGE, "--next", "tcp://10.0.0.1:7900"),
        "the stage would connect to the next at 10.0.0.1 without keys",
    ),
    "stage: itself as the next": (
        (*STAGE[:-1], "tcp://127.0.0.1:9", "--next", "tcp://127.0.0.1:9"),
        "--next tcp://127.0.0.1:9 is this stage itself",
    ),
    "stage: itself on all interfaces as the next": (
        (*STAGE[:-1], "tcp://0.0.0.0:9", "--insecure", "--next", "tcp://localhost:9"),
        "--next tcp://localhost:9 is this stage itself",
    ),
    "target: itself as the hub": (
        ("target", *TARGET, "--port", "FREE", "--hub", "tcp://localhost:FREE"),
        "is this target itself, which listens there: give the address of another",
    ),
    "target: itself as a stage": (
        ("target", *TARGET, "--port", "FREE", "--stages", "tcp://127.0.0.1:9,tcp://127.0.0.1:FREE"),
        "is this target itself",
    ),
    "gateway: itself as a target": (
        (*GATEWAY[:-1], "tcp://127.0.0.1:FREE", "--port", "FREE"),
        "is this gateway itself",
    ),
    "gateway: itself as the hub": (
        (*GATEWAY, "--hub", "tcp://127.0.0.1:FREE", "--port", "FREE"),
        "this gateway itself",
    ),
    "stage: no range": (
        ("stage", "--target", "HERE/small", "--layers", "1;2", "--listen", "tcp://127.0.0.1:0"),
        "layers '1;2' are not a range: write the first layer and the one behind the last, as 0:14, or a share",
    ),
    "stage: a model without layers": (
        ("stage", "--target", "synthetic:", "--layers", "0:1", "--listen", "tcp://127.0.0.1:0"),
        "'synthetic:' has no layers, so no stage can have some of them",
    ),
    "plan-stages: a model without layers": (
        ("plan-stages", "--target", "synthetic:", "--node", "a=8GiB"),
        "'synthetic:' has no layers, so it cannot be cut into stages",
    ),
    "plan-stages: too many machines": (
        ("plan-stages", "--target", "HERE/long", *[f"--node={name}=8GiB" for name in "abcdefgh"]),
        "8 nodes are too many to plan for: give at most 7",
    ),
    "plan-stages: no time": (
        ("plan-stages", "--target", "HERE/long", "--node", "a=8GiB,0"),
        "machine a takes 0 ms for a layer: that must be above 0",
    ),
    "draft: context": (("draft", "--draft", "HERE/long", "--port", "0", "--max-model-len", "900000"), TOO_LONG),
    "up: context": (("up", "HERE/long", "--port", "0", "--max-model-len", "900000"), TOO_LONG),
    "up: stages": (
        ("up", "HERE/long", "--port", "0", "--stages", "3"),
        "has 2 layers, so it cannot be cut into 3 stages",
    ),
    "up: stages of a model without layers": (
        ("up", "synthetic:", "--port", "0", "--stages", "2"),
        "'synthetic:' has no layers, so it cannot be cut into 2 stages",
    ),
    "bench shard: stages": (
        ("bench", "shard", "--target", "HERE/long", "--draft", "HERE/long", "--stages", "3"),
        "has 2 layers, so it cannot be cut into 3 stages",
    ),
    "doctor: stages": (
        ("doctor", "--target", "HERE/long", *DRAFT, "--stages", "3"),
        "has 2 layers, so it cannot be cut into 3 stages",
    ),
    "up: ready file": (
        ("up", *TARGET, "--port", "0", "--ready-file", "/proc/ready"),
        "--ready-file: '/proc/ready' cannot be written",
    ),
    "bench pair: quantization": (("bench", "pair", *PAIR), NO_WEIGHTS),
    "bench tree: quantization": (("bench", "tree", *PAIR), NO_WEIGHTS),
    "doctor: no CUDA": (("doctor", "--target", "HERE/long", *DRAFT, "--device", "cuda:99"), NO_CUDA),
    "calibrate: no CUDA": (("calibrate", "--target", "HERE/long", *DRAFT, "--device", "cuda:99"), NO_CUDA),
    "train: no CUDA": (
        (
            "train",
            "--target",
            "HERE/long",
            "--prompts",
            "HERE/prompts.jsonl",
            "--out",
            "HERE/out",
            "--device",
            "cuda:99",
        ),
        NO_CUDA,
    ),
    "train: context": (
        (
            "train",
            "--target",
            "HERE/long",
            "--prompts",
            "HERE/prompts.jsonl",
            "--out",
            "HERE/out",
            "--max-model-len",
            "900000",
        ),
        TOO_LONG,
    ),
    "plan-stages: context": (
        ("plan-stages", "--target", "HERE/long", "--node", "a=8GiB", "--node", "b=8GiB", "--max-model-len", "900000"),
        TOO_LONG,
    ),
    "bench certify: no CUDA": (("bench", "certify", "--model", "HERE/long", "--device", "cuda:99"), NO_CUDA),
    "verify: no CUDA": (("verify", "--target", "HERE/long", *DRAFT, "--device", "cuda:99"), NO_CUDA),
    "target: model": (("target", "--target", "/nowhere", "--port", "0"), NOWHERE),
    "target: head": (("target", "--target", "HERE/head", "--port", "0"), NO_MODEL),
    "target: hub": (
        ("target", *TARGET, "--port", "0", "--hub", "foo"),
        "the hub is at 'foo', which is not of the form",
    ),
    "target: keys": (("target", *TARGET, "--port", "0", "--keys", "/nowhere"), "cannot read the key"),
    "target: keys of clients": (
        ("target", *TARGET, "--port", "0", "--keys", "KEYS"),
        "gateway.public does not contain",
    ),
    "target: too long a name of keys": (
        ("target", *TARGET, "--port", "0", "--keys", LONG),
        f"cannot read the key {LONG}/target.secret: File name too long",
    ),
    "target: no user": (("target", "--target", NOBODY, "--port", "0"), NOBODYS),
    "target: port": (("target", *TARGET, "--port", "TAKEN"), "the target cannot listen on 127.0.0.1:"),
    "target: no keys": (("target", *TARGET, "--host", "0.0.0.0"), "the target would listen on 0.0.0.0 without keys"),
    "target: trace": (("target", *TARGET, "--port", "0", "--trace", "/no/t.json"), "there is no folder '/no'"),
    "draft: draft": (("draft", "--draft", "/nowhere", "--port", "0"), NOWHERE),
    "draft: target": (("draft", *LOST_TARGET, "--port", "0"), NOWHERE),
    "draft: head without its target": (
        ("draft", "--draft", "HERE/head", "--spec-method", "eagle3", "--port", "0"),
        "an EAGLE head borrows its target's embedding: give --target MODEL too",
    ),
    "draft: another model's head": (("draft", *OTHERS_HEAD, "--port", "0"), NO_FIT),
    "draft: no user": (("draft", "--draft", NOBODY, "--port", "0"), NOBODYS),
    "draft: too long a name": (("draft", "--draft", LONG, "--port", "0"), TOO_LONG_A_NAME),
    "draft: keys": ((*NGRAM, "--keys", "/nowhere"), "cannot read the key"),
    "draft: port": (("draft", "--spec-method", "ngram", "--port", "TAKEN"), "the hub cannot listen on 127.0.0.1:"),
    "draft: what it cannot do": ((*NGRAM, "--run-ahead", "chain"), "--run-ahead chain is for draft models"),
    "draft: audit log": ((*NGRAM, "--audit-log", "/no/a.jsonl"), "there is no folder '/no'"),
    "gateway: model": (("gateway", "--target", "/nowhere", "--port", "0", "--hub", "tcp://127.0.0.1:9"), NOWHERE),
    "gateway: head": (("gateway", "--target", "HERE/head", "--port", "0", "--hub", "tcp://127.0.0.1:9"), NO_MODEL),
    "gateway: no user": (("gateway", "--target", NOBODY, "--port", "0", "--hub", "tcp://127.0.0.1:9"), NOBODYS),
    "gateway: address": ((*GATEWAY[:-1], "tcp://127.0.0.1:99999"), "and a port must be 1 to 65535"),
    "gateway: hub": ((*GATEWAY, "--hub", "foo"), "the hub is at 'foo', which is not of the form"),
    "gateway: keys": ((*GATEWAY, "--keys", "/nowhere"), "cannot read the key"),
    "gateway: key of the hub": ((*GATEWAY, "--keys", "KEYS", "--hub", "tcp://127.0.0.1:9"), "hub.public"),
    "gateway: port": ((*GATEWAY, "--port", "TAKEN"), "the gateway cannot listen on 127.0.0.1:"),
    "lab: file": (("lab", "/nowhere"), NO_FILE),
    "lab: server": (
        ("lab", "--link", "0=127.0.0.1:9"),
        "is at '127.0.0.1:9', which is not of the form tcp://host:port",
    ),
    "lab: report": (("lab", "--link", "0=tcp://127.0.0.1:9", "--json", "/no/l.json"), "there is no folder '/no'"),
    "up: target": (("up", "/nowhere", "--port", "0"), NOWHERE),
    "up: draft": (("up", *LOST_DRAFT, "--port", "0"), NOWHERE),
    "up: another model's head": (("up", *OTHERS_HEAD, "--port", "0"), NO_FIT),
    "up: no user": (("up", NOBODY, "--port", "0"), NOBODYS),
    "up: too long a name": (("up", LONG, "--port", "0"), TOO_LONG_A_NAME),
    "up: device": (("up", "synthetic:", "--device", "cuda:99", "--port", "0"), "device 'cuda:99' is not there"),
    "up: device of the draft": (
        ("up", "synthetic:", "--draft", "synthetic:", "--draft-device", "cuda:99", "--port", "0"),
        "device 'cuda:99' is not there",
    ),
    "up: head as target": (("up", "HERE/head", "--port", "0"), NO_MODEL),
    "up: port": (("up", *TARGET, "--port", "TAKEN"), "cannot listen on 127.0.0.1:"),
    "up: what a draft cannot do": (
        ("up", *TARGET, "--spec-method", "ngram", "--share-prefixes", "hub"),
        "--share-prefixes hub is for draft models",
    ),
    "doctor: target": (("doctor", *LOST_TARGET), NOWHERE),
    "doctor: draft": (("doctor", *LOST_DRAFT), NOWHERE),
    "doctor: prompts": (("doctor", *PAIR, *PROMPTS), NO_FILE),
    "doctor: report": (("doctor", *PAIR, "--tree-report", "/nowhere"), f"--tree-report: {NO_FILE}"),
    "doctor: server": (("doctor", "--vllm", "http://127.0.0.1:1"), "no vLLM server answers at http://127.0.0.1:1"),
    "doctor: server of a draft": (("doctor", "--vllm", "http://127.0.0.1:1", *DRAFT), "no vLLM server answers"),
    "calibrate: target": (("calibrate", *LOST_TARGET), NOWHERE),
    "calibrate: draft": (("calibrate", *LOST_DRAFT), NOWHERE),
    "calibrate: another model's head": (("calibrate", *OTHERS_HEAD), NO_FIT),
    "calibrate: prompts": (("calibrate", *PAIR, *PROMPTS), NO_FILE),
    "verify: target": (("verify", *LOST_TARGET), NOWHERE),
    "verify: draft": (("verify", *LOST_DRAFT), NOWHERE),
    "verify: another model's head": (("verify", *OTHERS_HEAD), NO_FIT),
    "verify: prompts": (("verify", *PAIR, *PROMPTS), NO_FILE),
    "train: target": (
        ("train", "--target", "/nowhere", "--prompts", "HERE/prompts.jsonl", "--out", "HERE/out"),
        NOWHERE,
    ),
    "train: a path as a name": (
        ("train", *TARGET, "--prompts", "HERE/prompts.jsonl", "--out", "HERE/out", "--target-name", "/tmp"),
        "--target-name '/tmp' is not a name: it must be letters, digits and any of",
    ),
    "train: prompts": (("train", *TARGET, *PROMPTS, "--out", "HERE/out"), NO_FILE),
    "train: folder": (
        ("train", *TARGET, "--prompts", "HERE/prompts.jsonl", "--out", "HERE/out\udcff"),
        "--out is not valid Unicode text: name a folder in UTF-8",
    ),
    "train: start": (
        ("train", *TARGET, "--prompts", "HERE/prompts.jsonl", "--out", "HERE/out", "--start-from", "/nowhere"),
        NOWHERE,
    ),
    "bench pair: draft": (("bench", "pair", *LOST_DRAFT), NOWHERE),
    "bench pair: another model's head": (("bench", "pair", *OTHERS_HEAD), NO_FIT),
    "bench pair: prompts": (("bench", "pair", *PAIR, *DATASET), NO_FILE),
    "bench tree: target": (("bench", "tree", *LOST_TARGET), NOWHERE),
    "bench tree: prompts": (("bench", "tree", *PAIR, *DATASET), NO_FILE),
    "bench tree: temperatures": (("bench", "tree", *PAIR, "--temperatures", "-1"), "--temperatures: numbers from 0 on"),
    "bench tree: grid": (("bench", "tree", *PAIR, "--top-ks", "99"), "--top-ks must be 2 to"),
    "bench batch: target": (("bench", "batch", *LOST_TARGET), NOWHERE),
    "bench batch: prompts": (("bench", "batch", *PAIR, *DATASET), NO_FILE),
    "bench batch: methods": (("bench", "batch", *PAIR, "--methods", "dsd"), "method 'dsd' is not one of ragged"),
    "bench batch: window": (
        ("bench", "batch", *PAIR, "--batch-sizes", "4", "--window", "3"),
        "exspec chooses batches of 4 from its window: 3 is too few",
    ),
    "bench batch: options": (
        ("bench", "batch", *PAIR, "--context", "64", "--max-prompt-tokens", "9"),
        "--context takes prompts of any length",
    ),
    "bench length: draft": (("bench", "length", *LOST_DRAFT), NOWHERE),
    "bench length: category": (("bench", "length", *PAIR, "--categories", "nosuch"), "there is no 'nosuch' among the"),
    "bench length: head": (("bench", "length", *TARGET, "--head", "/nowhere"), NOWHERE),
    "bench length: prompts": (("bench", "length", *PAIR, *DATASET), NO_FILE),
    "bench relaxed: draft": (("bench", "relaxed", *LOST_DRAFT, "--dataset", "HERE/graded.jsonl"), NOWHERE),
    "bench relaxed: problems": (("bench", "relaxed", *PAIR, *DATASET), NO_FILE),
    "bench relaxed: no problems": (("bench", "relaxed", *PAIR), "give files of HumanEval or GSM8K with --dataset"),
    "bench star: draft": (("bench", "star", *LOST_DRAFT), NOWHERE),
    "bench star: prompts": (("bench", "star", *PAIR, *DATASET), NO_FILE),
    "bench async: draft": (("bench", "async", *LOST_DRAFT), NOWHERE),
    "bench async: prompts": (("bench", "async", *PAIR, *DATASET), NO_FILE),
    "bench faults: draft": (("bench", "faults", *LOST_DRAFT), NOWHERE),
    "bench faults: prompts": (("bench", "faults", *PAIR, *DATASET), NO_FILE),
    "bench warm: draft": (("bench", "warm", "--draft", "/nowhere"), NOWHERE),
    "bench warm: head": (("bench", "warm", "--draft", "HERE/head"), "bench warm times draft models, and"),
    "bench vllm: program": (("bench", "vllm", *PAIR, "--vllm-python", "/nowhere"), "there is no program '/nowhere'"),
    "bench vllm: draft": (("bench", "vllm", *LOST_DRAFT, "--vllm-python", sys.executable), NOWHERE),
    "bench vllm: prompts": (("bench", "vllm", *PAIR, *DATASET), NO_FILE),
    "bench certify: model": (("bench", "certify", "--model", "/nowhere"), NOWHERE),
    "bench certify: head": (("bench", "certify", "--model", "synthetic:", "--head", "/nowhere"), NOWHERE),
    "bench certify: another model's head": (
        ("bench", "certify", "--model", "HERE/small", "--head", "HERE/head"),
        NO_FIT,
    ),
    "bench certify: a model as head": (("bench", "certify", "--model", "HERE/small", "--head", "HERE/small"), NO_HEAD),
    "bench grammar: a model as head": (
        ("bench", "grammar", *PAIR, "--draft-quantization", "none", "--head", "HERE/small"),
        NO_HEAD,
    ),
    "bench length: a model as head": (
        ("bench", "length", "--target", "HERE/small", "--head", "HERE/small"),
        NO_HEAD,
    ),
    "bench certify: prompts": (("bench", "certify", "--model", "synthetic:", *DATASET), NO_FILE),
    "bench certify: part": (
        ("bench", "certify", "--model", "synthetic:", "--part", "pair"),
        "--part pair is about two models: give --target and --draft",
    ),
    "bench certify: shard": (
        ("bench", "certify", "--model", "synthetic:", "--shard", "3/2"),
        "there is no shard 3 of 2: they count from 1",
    ),
}

RUN_ALL = """
import contextlib, functools, io, json, sys
import typer.main
from starspec.cli import run

typer.main.get_command = functools.cache(typer.main.get_command)  # else all commands are made anew for each line
found = {}
for name, words in json.load(sys.stdin).items():
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = run(words)
    found[name] = (code, err.getvalue(), [each for each in ("torch", "transformers") if each in sys.modules])
    if found[name][2]:
        break
print(json.dumps(found))
"""


class Outcome(NamedTuple):
    code: int
    err: str
    imported: list[str]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All lines in one process. It ends with the first line that imports what is slow: the rest may take hours."""
    here = tmp_path_factory.mktemp("here")
    head, small = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64}, {"hidden_size": 32}
    long = {"hidden_size": 32, "max_position_embeddings": 2048, "num_hidden_layers": 2}
    configs = {"broken": "{", "head": json.dumps(head), "small": json.dumps(small), "long": json.dumps(long)}
    configs["wordless"] = configs["small"]
    configs["listed"] = json.dumps({**small, "rope_scaling": [2]})
    for folder, content in configs.items():
        (here / folder).mkdir()
        (here / folder / "config.json").write_text(content)
        (here / folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (here / folder / "tokenizer.json").write_text("{}")
    (here / "wordless" / "tokenizer.json").unlink()
    for folder in ("bare", "indexed"):
        (here / folder).mkdir()
        (here / folder / "config.json").write_text(configs["small"])
    (here / "indexed" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    (here / "any.gguf").write_bytes(b"")
    (here / "prompts.jsonl").write_text('{"turns": ["Hello"]}\n')
    (here / "graded.jsonl").write_text('{"turns": ["1 + 1?"], "reference": "#### 2"}\n')
    generate_keys(here / "keys")
    (here / "keys" / "gateway.public").write_text("no key")
    (here / "keys" / "hub.public").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        named = {"HERE": str(here), "KEYS": str(here / "keys"), "TAKEN": str(taken.getsockname()[1]), "FREE": port}
        lines = {name: [_filled(word, named) for word in words] for name, (words, _) in LINES.items()}
        command, given = [sys.executable, "-c", RUN_ALL], json.dumps(lines)
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, cwd=here, timeout=120)
    return {name: Outcome(*found) for name, found in json.loads(done.stdout).items()}


def _filled(word: str, named: dict[str, str]) -> str:
    first, _, rest = word.partition("/")
    if word.endswith(":FREE"):
        return word.replace("FREE", named["FREE"])
    return str(Path(named[first]) / rest) if first in named and rest else named.get(word, word)


@pytest.mark.parametrize("name", LINES)
def test_a_mistake_is_one_sentence_before_torch_is_imported(name: str, outcomes: dict[str, Outcome]) -> None:
    assert name in outcomes, f"'{list(outcomes)[-1]}' imports torch"
    code, err, imported = outcomes[name]
    assert imported == []
    (sentence,) = err.splitlines()
    assert LINES[name][1] in sentence
    assert code == 2


OUTPUTS = {
    "generate": ("generate", "Hello", *TARGET),
    "verify": ("verify", *TARGET, "--spec-method", "ngram"),
    "doctor": ("doctor", *PAIR),
    "calibrate": ("calibrate", *PAIR),
    "bench wire": ("bench", "wire"),
    "up": ("up", *TARGET, "--port", "0"),
}
RUN_ONE = """
import sys
from starspec.cli.output import open_closed_streams
from starspec.cli import run

open_closed_streams()
code = run(sys.argv[1:])
print([each for each in ("torch", "transformers") if each in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


UNFIT: dict[str, tuple[str, Callable[[], int], str]] = {
    "full": ("", lambda: os.open("/dev/full", os.O_WRONLY), "No space left on device"),
    "no reader": ("", pipe_without_reader, "Broken pipe"),
    "closed": (">&-", lambda: os.open("/dev/null", os.O_WRONLY), "it is closed"),
}


# each command with one of them, and one command with all
@pytest.mark.parametrize(
    ("command", "kind"), [*zip(OUTPUTS, [*UNFIT] * 2, strict=True), ("generate", "no reader"), ("generate", "closed")]
)
def test_an_output_that_takes_nothing_is_one_sentence_before_torch_is_imported(command: str, kind: str) -> None:
    redirection, open_output, why = UNFIT[kind]
    words = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, "-c", RUN_ONE, *OUTPUTS[command]]
    with os.fdopen(open_output(), "wb") as output:
        done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    sentence, imported = done.stderr.splitlines()
    assert sentence == f"starspec: the output cannot be written: {why}"
    assert (imported, done.returncode) == ("[]", 1)


def test_lines_for_a_closed_output_are_not_lost_in_silence(tmp_path: Path) -> None:
    words = ["bash", "-c", 'exec "$@" >&-', "bash", sys.executable, "-m", "starspec", "keygen", str(tmp_path / "keys")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == "starspec: the output cannot be written: it is closed\n"
    assert done.returncode == 1
    assert not (tmp_path / "keys").exists()  # the same command works afterwards


def test_without_standard_error_a_command_does_its_work() -> None:
    words = ["bash", "-c", 'exec "$@" 2>&-', "bash", sys.executable, "-m", "starspec", "generate", "hi", *TARGET]
    done = subprocess.run([*words, "--max-tokens", "3"], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stdout.split())) == (0, 3)


PRINT_ONE = """
import starspec.cli

starspec.cli.run = lambda _: print("\\u65e5")
starspec.cli.main()
"""


def test_characters_that_an_output_lacks_are_escaped() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PRINT_ONE], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, b"\\u65e5\n")


def install_completion(home: Path) -> subprocess.CompletedProcess[str]:
    """Install completion for the shell that it is a child of."""
    command = ["bash", "-c", '"$0" -m starspec --install-completion; exit $?', sys.executable]
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    done = install_completion(tmp_path)
    assert done.returncode == 0, done.stderr
    ask = f"source {tmp_path}/.bashrc; complete -p starspec"
    asked = subprocess.run(["bash", "--norc", "-c", ask], capture_output=True, text=True, check=False)
    assert "starspec" in asked.stdout, asked.stderr


def test_completion_that_cannot_be_installed_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    done = install_completion(tmp_path / "home")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"starspec: --install-completion: '{tmp_path}/home")
    assert sentence.endswith("cannot be written: File exists")
    assert done.returncode == 1
