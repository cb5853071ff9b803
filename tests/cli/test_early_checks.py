"""What small files and the command line show to be wrong is said before weights are read, by all commands alike."""

from pathlib import Path

import pytest

from starspec.errors import VocabularyMismatch
from starspec.llm import LLM
from starspec.models.synthetic.runner import SyntheticRunner
from starspec.wire.keys import generate_keys

TARGET, OTHER = "synthetic:", "synthetic:role=draft,vocab=64"
PAIR = ("--target", TARGET, "--draft", OTHER)
STRANGERS = {  # commands with a draft of another vocabulary
    "generate": ("generate", "Hello", *PAIR),
    "verify": ("verify", *PAIR),
    "draft": ("draft", *PAIR, "--port", "0"),
    "bench pair": ("bench", "pair", *PAIR),
    "bench tree": ("bench", "tree", *PAIR),
    "bench batch": ("bench", "batch", *PAIR),
    "bench async": ("bench", "async", *PAIR),
    "bench faults": ("bench", "faults", *PAIR),
    "bench vllm": ("bench", "vllm", *PAIR),
    "bench certify": ("bench", "certify", "--model", TARGET, *PAIR, "--part", "pair"),
}
ADDRESSES = {
    "foo:7700": "the hub is at 'foo:7700', which is not of the form tcp://host:port",
    "tcp://foo": "the hub is at 'tcp://foo', which is not of the form tcp://host:port",
    "tcp://10.0.0.1:7700": "the target would connect to the hub at 10.0.0.1 without keys",
}


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch) -> None:
    def load(_config: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(SyntheticRunner, "from_config", load)


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS)
def test_a_draft_of_another_vocabulary_is_refused_before_anything_is_loaded(words, starspec) -> None:
    outcome = starspec(*words)
    assert "target and draft do not share a vocabulary" in outcome.err
    assert outcome.code == 2


def test_the_offline_api_refuses_it_too() -> None:
    with pytest.raises(VocabularyMismatch):
        LLM(TARGET, speculative_config={"model": OTHER})


def test_the_doctor_says_so_in_its_report(starspec) -> None:
    outcome = starspec("doctor", *PAIR)
    assert "vocabulary" in outcome.out
    assert outcome.code == 1


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
