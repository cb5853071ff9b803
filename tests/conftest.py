"""What every test stands on: no network for models, one torch thread, the same examples every run."""

import gc
import os
import ssl

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace

import pytest
import structlog
import torch
import typer.main
from hypothesis import HealthCheck, settings

import starspec

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Import all modules, unless this process only hands tests to workers.

    Hypothesis also draws the constants of the modules that are loaded: all of them, or examples would depend on what
    else a worker runs. What is imported stays, so to look for garbage among its million objects again and again would
    take a tenth of the time.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    gc.disable()
    for module in walk_packages(starspec.__path__, "starspec."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    gc.freeze()
    gc.enable()


def pytest_collection_finish() -> None:
    """All test modules are imported now, too."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real models first: a test of minutes that begins last would leave all workers but one without work."""
    items.sort(key=lambda item: item.get_closest_marker("model") is None)


@pytest.fixture(autouse=True)
def log_of_its_own() -> Iterator[None]:
    """A command that runs inside the test's process points the log at the stderr of its time.

    Tracebacks are plain: drawing one with the local variables of every frame takes seconds on a busy machine.
    """
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def made_once() -> Iterator[None]:
    """What takes longer than most tests do, and comes out the same: typer's commands for each line, each HTTP client's
    list of authorities, and the probe of kernels by tiny models of one shape, wherever their folders are.
    """
    from starspec.models.numerics import probe_cache

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((typer.main, "get_command"), (ssl, "create_default_context")):
            patch.setattr(module, name, cache(getattr(module, name)))
        told = probe_cache._model
        patch.setattr(probe_cache, "_model", lambda *of_runner: list(told(*of_runner))[1:])  # without the folder
        yield


@pytest.fixture
def modelled_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synthetic models and step timings on a clock that only modelled forwards move, whatever the machine does."""
    from starspec.harness import step_times
    from starspec.models.synthetic.runner import SyntheticRunner

    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def clock() -> float:
        return now_s

    defaults = SyntheticRunner.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "clock", clock)
    monkeypatch.setitem(defaults, "sleep", sleep)
    monkeypatch.setattr(step_times, "time", SimpleNamespace(perf_counter=clock))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct, made out of its package the first time."""
    from starspec.models.loading.demo_model import demo_model_folder

    return demo_model_folder()


@pytest.fixture(scope="session")
def random_head(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an EAGLE-3 head for SmolLM2 that has learned nothing; its vocabulary is the first 1024 tokens."""
    return _write_random_head(smollm2, (2, 15, 27), tmp_path_factory.mktemp("heads") / "random", 1024)


def _write_random_head(target: Path, feature_layers: tuple[int, ...], folder: Path, draft_vocab_size: int) -> Path:
    from starspec.models.heads.load import TargetTensors
    from starspec.models.heads.spec import HeadSpec, HeadWeights
    from starspec.models.heads.tensors import OPTIONAL, tensor_shapes
    from starspec.models.heads.write import write_head

    shape = TargetTensors.of(str(target)).shape
    spec = HeadSpec(
        method="eagle3",
        hidden_size=shape.hidden_size,
        target_hidden_size=shape.hidden_size,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=shape.vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=feature_layers,
        max_position_embeddings=512,
    )
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * size[1] ** -0.5
        for name, size in tensor_shapes(spec).items()
        if name not in OPTIONAL
    }
    write_head(folder, HeadWeights(spec, tensors, torch.arange(draft_vocab_size)), {"origin": "random"})
    return folder


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of random weights, as a folder. Ids 0 to 255 are bytes in the order of their spelling, 256 ends."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bytes")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(3)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**shape, vocab_size=257, max_position_embeddings=1024, initializer_range=0.2, eos_token_id=256)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_head(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an EAGLE-3 head for `byte_model` that has learned nothing."""
    return _write_random_head(byte_model, (0, 1, 2), tmp_path_factory.mktemp("heads") / "bytes", 257)
