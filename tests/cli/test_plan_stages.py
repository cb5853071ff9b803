"""`starspec plan-stages` says which machine takes which layers."""

from __future__ import annotations

import re
from pathlib import Path

from stages import saved


def layers_of(out: str) -> dict[str, str]:
    """Machine -> its layers, in the order of the plan."""
    return dict(re.findall(r"│ (\w+) +│ (\d+:\d+) ", out))


def test_layers_go_where_there_is_memory_and_the_links_are_short(starspec, tmp_path: Path) -> None:
    model = ("--model", str(saved("llama", tmp_path / "tiny")), "--dtype", "float32", "--max-model-len", "64")
    roomy = starspec("plan-stages", *model, "--node", "a=1GiB,5", "--node", "b=1GiB,9", "--link-ms", "20")
    assert roomy.code == 0
    assert layers_of(roomy.out) == {"a": "0:4"}
    assert re.search(r"A round takes \d+\.\d ms; with 1 in flight, one ends every \d+\.\d ms\.", roomy.out)
    full = starspec(
        *("plan-stages", *model, "--node", "a=1GiB,5", "--node", "b=1GiB,5", "--in-flight", "8"),
        *("--link", "target-a=1", "--link", "b-target=1", "--link", "a-b=1", "--link-ms", "50"),
    )
    assert layers_of(full.out) == {"a": "0:2", "b": "2:4"}


def test_machines_that_are_too_small_are_told_what_is_missing(starspec, tmp_path: Path) -> None:
    model = ("--model", str(saved("llama", tmp_path / "tiny")), "--dtype", "float32", "--max-model-len", "64")
    outcome = starspec("plan-stages", *model, "--node", "a=100,1")
    assert outcome.code == 2
    assert "the nodes cannot hold the model" in outcome.err
