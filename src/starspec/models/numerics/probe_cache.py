"""The results of the numerics probe, cached between starts: the probe takes seconds, and the machine stays the same.

A result is stored under the hash of everything that bits can depend on: processor, torch and its build, threads and
other settings of kernels, the model and how it runs, and the code of the forwards itself. So a stored result never
changes; if anything differs, it is not found. The row count that small forwards are padded to is stored too. It depends
on timing, so a new measurement could only make forwards faster or slower. To probe again, delete the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final

import msgspec
import torch
from msgspec import Meta

import starspec.cache
import starspec.models
from starspec.config import ModelConfig
from starspec.errors import ConfigError
from starspec.models.attention.plan import AttentionMode
from starspec.models.batch import RowRange
from starspec.models.loading.cached_folder import cache_folder
from starspec.models.numerics.probe import settle_numerics
from starspec.models.packed import PackedRunner

STEERING: Final = (
    *("ATEN_", "CUBLAS", "CUDA_", "DISABLE_ADDMM", "DNNL_", "GLIBC_", "GOMP_", "KMP_", "LD_PRELOAD", "MKL_", "NVIDIA_"),
    *("OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_", "TORCH_"),
)
VARYING: Final = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "core id", "apicid", "initial apicid", "physical id")
FORWARDS: Final = ("transformers", "torchao")  # packages whose code a forward may run
EARLIER: Final = " (found at an earlier start)"


class _Finding(msgspec.Struct, frozen=True):
    lowest: Annotated[int, Meta(ge=1)]
    highest: Annotated[int, Meta(ge=1)] | None
    attention_mode: AttentionMode
    report: str


def settle_from_cache(runner: PackedRunner, config: ModelConfig, folder: Path) -> None:
    """As `settle_numerics`, but from the cache if the same was probed before.

    Args:
        runner: whose numerics are settled.
        config: how the model runs.
        folder: where it was read from.
    Effects: as `settle_numerics`; a small file in the folder `numerics` of the cache. If the file cannot be written,
        the next start probes again.
    """
    try:
        path = cache_folder() / "numerics" / f"{_key(runner, config, folder)}.json"
    except (OSError, ConfigError):  # no home folder, or the model's folder has disappeared
        settle_numerics(runner)
        return
    finding = _read(path)
    if finding is None:
        settle_numerics(runner)
        _write(path, _Finding(runner.rows.lowest, runner.rows.highest, runner.attention_mode, runner.numerics_report))
        return
    runner.rows, runner.attention_mode = RowRange(finding.lowest, finding.highest), finding.attention_mode
    runner.numerics_report = finding.report + EARLIER


def _key(runner: PackedRunner, config: ModelConfig, folder: Path) -> str:
    digest = hashlib.sha256()
    for part in (*_machine(runner.cache.device), *_model(runner, config, folder), *_code()):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _machine(device: torch.device) -> Iterator[bytes]:
    yield torch.__config__.show().encode()
    yield torch.__config__.parallel_info().encode()  # includes the number of threads
    yield torch.backends.cpu.get_cpu_capability().encode()
    yield f"{torch.get_float32_matmul_precision()} {torch.are_deterministic_algorithms_enabled()}".encode()
    yield f"oneDNN {torch.backends.mkldnn.enabled}".encode()
    yield _processor().encode()
    if device.type == "cuda":
        yield str(torch.cuda.get_device_properties(device)).encode()
    yield from (f"{name}={value}".encode() for name, value in sorted(os.environ.items()) if name.startswith(STEERING))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if not line.startswith(VARYING))


def _model(runner: PackedRunner, config: ModelConfig, folder: Path) -> Iterator[bytes]:
    cache = runner.cache
    yield str(folder.resolve()).encode()
    yield (folder / "config.json").read_bytes()
    yield f"{type(runner).__name__} {config.dtype} {config.device} {config.quantization} {config.fused}".encode()
    yield f"{config.enforce_eager} {runner.layers}".encode()
    yield f"{cache.dtype} {cache.device} {tuple(cache.keys[0].shape)}".encode()
    yield from (f"{linear.in_features} {linear.num_bytes}".encode() for linear in runner.step_linears)


def _code() -> Iterator[bytes]:
    for name in FORWARDS:
        try:
            yield f"{name} {version(name)}".encode()
        except PackageNotFoundError:
            yield name.encode()
    for package in (starspec.cache, starspec.models):
        for folder in package.__path__:
            yield from (path.read_bytes() for path in sorted(Path(folder).rglob("*.py")))


def _read(path: Path) -> _Finding | None:
    try:
        finding = msgspec.json.decode(path.read_bytes(), type=_Finding)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError):
        return None
    return finding if finding.highest is None or finding.lowest <= finding.highest else None


def _write(path: Path, finding: _Finding) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(finding))
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
