"""One draft model speeds up many LLM servers: speculative decoding with drafting as a shared service.

The names below are the public API. They are imported when first used, so `starspec --help` and the wire start
without torch.
"""

from __future__ import annotations

from importlib import import_module
from os import environ
from typing import TYPE_CHECKING, Any

from starspec.openmp import SLEEP_AT_ONCE, unless_given

if TYPE_CHECKING:
    from starspec.config import SpeculativeConfig
    from starspec.errors import CapacityError, ConfigError, RequestError, StarspecError
    from starspec.llm import LLM
    from starspec.outputs import CompletionOutput, RequestOutput
    from starspec.sampling_params import SamplingParams
    from starspec.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CapacityError",
    "CompletionOutput",
    "ConfigError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SpeculativeConfig",
    "StarspecError",
    "StructuredOutputsParams",
]

_HOMES = {
    "LLM": "llm",
    "CapacityError": "errors",
    "CompletionOutput": "outputs",
    "ConfigError": "errors",
    "RequestError": "errors",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "SpeculativeConfig": "config",
    "StarspecError": "errors",
    "StructuredOutputsParams": "structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'starspec' has no attribute '{name}'")
    if name == "LLM":
        environ.update(unless_given(environ, SLEEP_AT_ONCE))  # before torch is imported, which reads it
    value = globals()[name] = getattr(import_module(f"starspec.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
