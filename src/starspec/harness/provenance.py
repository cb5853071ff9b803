"""Where a result comes from: command, code, versions, machine, models. Saved with every result."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

import starspec
from starspec.cache.memory import machine_bytes
from starspec.models.loading.locate import is_synthetic, locate
from starspec.openmp import num_cores
from starspec.quoting import escaped

PACKAGES = ("torch", "torchao", "triton", "transformers", "tokenizers", "numpy", "pyzmq", "msgspec")
HASHED_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What is needed to repeat a measurement."""

    argv: list[str]
    date: str  # UTC, ISO 8601
    starspec_version: str
    git_sha: str | None  # None: not run from a checkout
    has_local_changes: bool | None  # of tracked files; None: not run from a checkout
    python: str
    packages: dict[str, str]
    system: str
    cpu: str  # model name
    num_cores: int  # that this process may use
    num_threads: int  # of a torch forward
    memory_gib: float
    devices: list[str]  # accelerators that torch sees
    models: dict[str, str] = field(default_factory=dict)  # name -> sha256 over its files, or "synthetic"


def _git(*arguments: str) -> str | None:
    """Output of a git command in the checkout of this code; None if it does not run from a checkout."""
    command = ["git", "-C", str(Path(starspec.__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Checkout:
    """The sources of this process."""

    sha: str | None  # None: not run from a checkout
    has_local_changes: bool | None

    @classmethod
    def look(cls) -> Checkout:
        """Ask git, where there is one."""
        is_checkout = _git("ls-files", "--error-unmatch", "__init__.py") is not None
        sha = _git("rev-parse", "HEAD") if is_checkout else None
        changes = None if sha is None else _git("status", "--porcelain", "--untracked-files=no")
        return cls(sha, None if changes is None else bool(changes))


LOADED: Final = Checkout.look()  # at import: a measurement is long, and the checkout may change meanwhile


def collect_provenance(models: Mapping[str, str] | None = None) -> Provenance:
    """Describe this process and machine.

    Args:
        models: name in the receipt -> model, as given to the command; each is hashed, which takes some seconds a
            gigabyte.
    """
    return Provenance(
        argv=[escaped(Path(sys.argv[0]).name), *(escaped(abbreviate(argument)) for argument in sys.argv[1:])],
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        starspec_version=starspec.__version__,
        git_sha=LOADED.sha,
        has_local_changes=LOADED.has_local_changes,
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := _version(name))},
        system=platform.platform(),
        cpu=_cpu_name(),
        num_cores=num_cores(),
        num_threads=torch.get_num_threads(),
        memory_gib=round(machine_bytes() / 2**30, 1),
        devices=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        models={name: hash_model(model) for name, model in (models or {}).items()},
    )


def abbreviate(argument: str) -> str:
    """An argument with absolute paths cut to their last two parts: the rest means nothing on another machine."""
    path = Path(argument)
    return str(Path("...", *path.parts[-2:])) if path.is_absolute() else argument


def hash_model(model: str) -> str:
    """sha256 over the names and contents of a model's weights, configs and tokenizer.

    Raises: ModelError if it cannot be found.
    """
    if is_synthetic(model):
        return "synthetic"
    digest = hashlib.sha256()
    for path in sorted(locate(model).iterdir()):
        if path.suffix in HASHED_SUFFIXES:
            with path.open("rb") as file:
                digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


def hash_token_ids(answers: Iterable[list[int]]) -> str:
    """sha256 over the `repr` of a list of token sequences, without building the list."""
    digest = hashlib.sha256(b"[")
    for number, answer in enumerate(answers):
        digest.update(f"{', ' if number else ''}{answer}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
