"""What a training leaves behind for its next start: a folder for each stage, and what each was made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from starspec.errors import ConfigError


def stage_folder(path: Path, made_for: Mapping[str, object]) -> Path:
    """The folder of one stage. Whoever deletes it begins that stage anew.

    Args:
        made_for: what all of it depends on; another training must not take it up.
    Effects: makes the folder.
    Raises: ConfigError if it is there and was made for something else, or cannot be written.
    """
    file = path / "made_for.json"
    wanted = json.loads(json.dumps(made_for))
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(json.dumps(wanted, indent=2) + "\n")
        found = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be used: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"'{file}' is damaged; delete '{path}' to start anew") from error
    other = [name for name in wanted if found.get(name) != wanted[name]]
    if other:
        raise ConfigError(
            f"'{path}' is of a training with another {other[0].replace('_', ' ')}; "
            "delete it to start anew, or give another --out"
        )
    return path
