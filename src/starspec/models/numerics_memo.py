"""What the numerics probe found, kept from start to start: it takes seconds, and the machine is the same.

A finding is kept under the hash of all that it can depend on: processor, torch and its build, threads and what else
steers kernels from the environment, the model and the shapes of what was tried, and the code of the forwards itself. So
none is ever changed; what does not apply any more is not found. To probe anew, delete the folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import torch

import starspec.cache
import starspec.models
from starspec.models.attention_plan import Reading
from starspec.models.batch import RowRange
from starspec.models.gguf import cache_folder
from starspec.models.numerics import settle_numerics
from starspec.models.packed import PackedRunner

STEERING: Final = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
EARLIER: Final = " (found at an earlier start)"


class _Finding(msgspec.Struct, frozen=True):
    lowest: int
    highest: int | None
    reading: Reading
    report: str


def settle_once(runner: PackedRunner) -> None:
    """As `settle_numerics`, from memory where the same was probed before.

    Effects: as `settle_numerics`; a small file in the folder `numerics` of the cache. If that cannot be written, the
        next start probes too.
    """
    path = cache_folder() / "numerics" / f"{_key(runner)}.json"
    finding = _read(path)
    if finding is None:
        settle_numerics(runner)
        _write(path, _Finding(runner.rows.lowest, runner.rows.highest, runner.reading, runner.numerics_report))
        return
    runner.rows, runner.reading = RowRange(finding.lowest, finding.highest), finding.reading
    runner.numerics_report = finding.report + EARLIER


def _key(runner: PackedRunner) -> str:
    digest = hashlib.sha256()
    for part in (*_machine(runner.cache.device), *_computation(runner), *_code()):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _machine(device: torch.device) -> Iterator[bytes]:
    yield torch.__config__.show().encode()
    yield torch.__config__.parallel_info().encode()  # with the number of threads
    yield torch.backends.cpu.get_cpu_capability().encode()
    yield _processor().encode()
    if device.type == "cuda":
        yield torch.cuda.get_device_name(device).encode()
    yield from (f"{name}={value}".encode() for name, value in sorted(os.environ.items()) if name.startswith(STEERING))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "stepping")))


def _computation(runner: PackedRunner) -> Iterator[bytes]:
    cache, info = runner.cache, runner.info
    yield f"{type(runner).__name__} {info.name} {info.vocab_size} {info.num_layers} {runner.num_heads}".encode()
    yield f"{cache.dtype} {cache.device} {tuple(cache.keys[0].shape)}".encode()
    yield from (f"{linear.in_features} {linear.num_bytes}".encode() for linear in runner.step_linears)


def _code() -> Iterator[bytes]:
    for package in (starspec.cache, starspec.models):
        for folder in package.__path__:
            yield from (path.read_bytes() for path in sorted(Path(folder).glob("*.py")))


def _read(path: Path) -> _Finding | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Finding)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, finding: _Finding) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(finding))
        partial.replace(path)
    except OSError:
        return
