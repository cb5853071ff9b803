"""`starspec plan-stages` says which machine takes which layers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stages import saved


def layers_of(out: str) -> dict[str, str]:
    """Machine -> its layers, in the order of the plan."""
    return dict(re.findall(r"│ ([\w-]+) +│ (\d+:\d+) ", out))


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


def test_machines_may_have_hyphens_in_their_names(starspec, tmp_path: Path) -> None:
    model = ("--model", str(saved("llama", tmp_path / "tiny")), "--dtype", "float32", "--max-model-len", "64")
    nodes = ("--node", "gpu-1=1GiB,5", "--node", "gpu-2=1GiB,5", "--in-flight", "8", "--link-ms", "1000")
    near = ("--link", "target-gpu-1=1", "--link", "gpu-1-gpu-2=1", "--link", "gpu-2-target=1")
    assert layers_of(starspec("plan-stages", *model, *nodes, *near).out) == {"gpu-1": "0:2", "gpu-2": "2:4"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--node", "a=2GiB,1.2.3"), "--node a=2GiB,1.2.3: '1.2.3' is not a number of milliseconds"),
        (("--node", "a=2GiB,."), "--node a=2GiB,.: '.' is not a number of milliseconds"),
        (("--node", f"a=2GiB,{'9' * 400}"), "is not a number of milliseconds"),
        (("--node", "a=2GiB", "--link", "a-target=1.2.3"), "--link a-target=1.2.3: '1.2.3' is not a number"),
        (("--node", "a=2GiB", "--link", "a-target="), "--link a-target=: '' is not a number of milliseconds"),
        (("--node", "a=2GiB,2", "--node", "a=1GiB,3"), "--node describes the machine 'a' twice"),
        (("--node", "a=2GiB", "--link", "a-b=1"), "--link names the machine 'b', which no --node describes"),
        (("--node", "a=2GiB", "--link", "a-b-c=1"), "--link a-b-c is between machines that no --node describes"),
        (
            ("--node", "a=1GiB", "--node", "a-b=1GiB", "--node", "b-c=1GiB", "--node", "c=1GiB", "--link", "a-b-c=1"),
            "--link a-b-c may be from 'a' to 'b-c' or from 'a-b' to 'c': give the machines other names",
        ),
    ],
)
def test_what_is_no_machine_or_link_is_refused_in_a_sentence(starspec, options: tuple[str, ...], why: str) -> None:
    outcome = starspec("plan-stages", "--model", "none", *options)
    assert outcome.code == 2
    assert why in " ".join(outcome.err.split())
