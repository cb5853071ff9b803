"""`starspec keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keygen(
    folder: Annotated[Path, typer.Argument(help="Folder to make; must not hold keys yet.", metavar="FOLDER")],
) -> None:
    """Make the keys that encrypt links between machines: one pair each for hub, targets and gateways."""
    from starspec.wire.keys import generate_keys  # noqa: PLC0415 (imports ZeroMQ)

    for path in generate_keys(folder):
        print(path)
    print(
        "Give each machine the secret of its own role and the public keys of the roles that it speaks with; "
        "pass --keys FOLDER there."
    )
