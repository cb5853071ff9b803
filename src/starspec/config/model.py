"""One model and how it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from starspec.config.checks import check_ranges, check_words, nearest
from starspec.config.option import A_MODEL, LIMITS, MODELS, NONE_GIVEN, Option
from starspec.errors import ConfigError

DEFAULT_MAX_MODEL_LEN: Final = 4096  # tokens. It sizes the KV cache, and few requests are longer
MAX_NUM_THREADS: Final = 1024  # of a forward; the operating system refuses more in words of its own
OTHER_ACCELERATORS: Final = ("dxg", "kfd", "nvhost-gpu", "nvmap")  # of Windows, AMD and Jetson, which torch calls cuda
DEVICE: Final = re.compile(r"cpu|cuda(:[0-9]+)?")

Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4"]
"""How the weights are quantized."""
Numerics = Literal["invariant", "fast"]
"""The same bits with and without speculation, or speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model and how it runs."""

    # `--model` is what other servers call it
    model: Annotated[str, Option(f"Target model: {A_MODEL}.", MODELS, flags=("--target", "--model"))]
    dtype: Annotated[Dtype, Option("Number format of the weights.", MODELS)] = "bfloat16"
    device: Annotated[str, Option("Device to compute on: cpu, cuda or cuda:N.", MODELS)] = "cpu"
    quantization: Quantization = "none"  # of drafts
    numerics: Annotated[
        Numerics,
        Option(
            "invariant: the same bits with and without speculation, as far as this machine's kernels allow; "
            "fast: gives that up for speed.",
            MODELS,
        ),
    ] = "invariant"
    max_model_len: Annotated[
        int | None,
        Option(
            "Tokens of the longest sequence, prompt and output.",
            MODELS,
            least=2,
            shown=f"the model's own, at most {DEFAULT_MAX_MODEL_LEN}",
        ),
    ] = None
    num_threads: Annotated[
        int | None,
        Option("CPU threads of a forward.", MODELS, least=1, most=MAX_NUM_THREADS, shown="OMP_NUM_THREADS, or all"),
    ] = None
    num_rows: Annotated[
        int,
        Option(
            "Sequences that the model can hold at once: its cache rows.",
            LIMITS,
            flags=("--max-num-seqs",),
            least=1,
        ),
    ] = 8
    kv_budget_bytes: Annotated[
        int | None,
        Option(
            "Memory for the draft's keys and values, as 512MiB, 2GiB or bytes. It is divided into cache rows, and "
            "replaces one row a sequence. Sequences beyond them are served too: they take the rows that were not used "
            "for longest.",
            LIMITS,
            flags=("--kv-budget",),
            least=1,
            shown=NONE_GIVEN,
            form="memory",
        ),
    ] = None
    is_head: bool = False  # an EAGLE head by its method: not every head's config.json says so
    fused: bool = True  # False: unmodified Hugging Face modules, the reference
    enforce_eager: bool = False  # True: no CUDA graphs

    def __post_init__(self) -> None:
        check_words(self)
        check_ranges(self)
        check_device(self.device)


def check_there(name: str, devices: Path = Path("/dev")) -> None:
    """Check a device as far as the system's device files show it, without torch.

    Raises: ConfigError if it is certainly not there.
    """
    num_nvidia = len([*devices.glob("nvidia[0-9]*")])
    is_known = num_nvidia or not any((devices / other).exists() for other in OTHER_ACCELERATORS)
    _, _, index = name.partition(":")
    if name.startswith("cuda") and is_known and int(index or 0) >= num_nvidia:
        raise ConfigError(f"device '{name}' is not there: this machine has {num_nvidia} NVIDIA devices")


def check_device(name: str) -> None:
    """Raises: ConfigError if the name is not one of a device; whether the device is there is seen when it is used."""
    if not DEVICE.fullmatch(name):
        raise ConfigError(f"device '{name}' is unknown{nearest(name, ['cpu', 'cuda', 'cuda:0'])}")
