"""A vLLM of three attributes, and the toys."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for `toy` and `toy_hub`
sys.path.insert(0, str(Path(__file__).parent))  # for `toy_sampler` and `toy_vllm`

from toy_sampler import add_sampler

from starspec.integrations.vllm.cpu_sampler import expand_batch_to_tokens


class Words:
    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1}


@pytest.fixture
def vllm_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    vllm, tokenizers = ModuleType("vllm"), ModuleType("vllm.tokenizers")
    add_sampler(monkeypatch, expand_batch_to_tokens)
    monkeypatch.setattr(vllm, "__version__", "0.32.0", raising=False)
    monkeypatch.setattr(tokenizers, "cached_tokenizer_from_config", lambda config: config.words, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.tokenizers", tokenizers)
    monkeypatch.setenv("STARSPEC_HUB", "tcp://127.0.0.1:9")  # nobody listens there
    model = SimpleNamespace(get_vocab_size=lambda: 64, max_model_len=128, words=Words())
    parallel = SimpleNamespace(rank=0, tensor_parallel_size=2, data_parallel_size=1, data_parallel_rank=0)
    speculative = SimpleNamespace(num_speculative_tokens=3)
    return SimpleNamespace(model_config=model, parallel_config=parallel, speculative_config=speculative)
