"""The module of vLLM's rejection sampler, as far as we touch it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def add_sampler(monkeypatch: pytest.MonkeyPatch, expand: Any, is_cpu: bool = True) -> ModuleType:
    """vLLM's rejection sampler, as far as we touch it."""
    platforms, sample, sampler = (ModuleType(f"vllm.{each}") for each in ("platforms", "v1.sample", "v1.sample.r"))
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: is_cpu)  # type: ignore[attr-defined]
    sampler.expand_batch_to_tokens = expand  # type: ignore[attr-defined]
    sample.rejection_sampler = sampler  # type: ignore[attr-defined]
    for name, module in {"platforms": platforms, "v1": ModuleType("vllm.v1"), "v1.sample": sample}.items():
        monkeypatch.setitem(sys.modules, f"vllm.{name}", module)
    return sampler
