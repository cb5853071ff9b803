"""A hash that tells whether two machines have the same model, without reading gigabytes.

Names, types and shapes of tensors are not enough: a model and its fine-tuned versions share them. So some numbers of
each tensor are read too; training changes nearly all of them. The files into which a checkpoint is split have no
effect.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from starspec.errors import ModelError
from starspec.models.loading.tensors import UNREADABLE, tensor_files

NUM_PLACES: Final = 4  # of each tensor, that are looked at ...
NUM_BYTES: Final = 64  # ... and how many bytes are read there
WITHOUT_EFFECT: Final = ("_name_or_path", "transformers_version")  # keys of config.json


def model_fingerprint(model: str, folder: Path) -> str:
    """The hash of a model's config.json and weights.

    Args:
        model: as the user named it, for the error message.
        folder: with the complete checkpoint.
    Raises: ModelError if a file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        kept = {key: value for key, value in config.items() if key not in WITHOUT_EFFECT}
        digest.update(json.dumps(kept, sort_keys=True).encode())
        for part in sorted(_tensors(folder)):
            digest.update(b"\0".join(part))
    except UNREADABLE as error:
        raise ModelError(f"the files of '{model}' cannot be read: {error}") from error
    return digest.hexdigest()[:32]


def _tensors(folder: Path) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Name, type with shape, and some bytes of each tensor."""
    by_file = defaultdict(list)
    for name, file in tensor_files(folder).items():
        by_file[file].append(name)
    for file, names in by_file.items():
        with (folder / file).open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(size))
            for name in names:
                about = header[name]
                start, stop = about["data_offsets"]
                shape = f"{about['dtype']} {about['shape']}".encode()
                yield name.encode(), shape, _sample(opened, 8 + size + start, stop - start)


def _sample(opened: BinaryIO, start: int, num_bytes: int) -> bytes:
    """Bytes from some places of a tensor, evenly spaced."""
    sample = b""
    for place in range(NUM_PLACES):
        opened.seek(start + num_bytes * place // NUM_PLACES)
        sample += opened.read(min(NUM_BYTES, num_bytes))
    return sample
