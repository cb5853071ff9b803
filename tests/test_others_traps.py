"""Traps that other systems of this field fell into, where no one package of ours is the place to look for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import starspec
from starspec import config
from starspec.gateway.schema import ChatCompletionRequest, CompletionRequest

SOURCE = Path(starspec.__file__).parent
PROJECT = Path(__file__).parent.parent
RUNS_CODE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}  # what reading may run


def syntax(*parts: str) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of the source, or of some files of it."""
    for path in [SOURCE / part for part in parts] or sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def test_nothing_that_is_read_or_received_is_unpickled_or_run() -> None:
    for path, node in syntax():
        match node:
            case ast.Import(names=names):
                assert not RUNS_CODE & {each.name.partition(".")[0] for each in names}, path
            case ast.ImportFrom(module=module):
                assert (module or "").partition(".")[0] not in RUNS_CODE, path
            case ast.Call(func=ast.Name(id=name)):
                assert name not in ("eval", "exec"), path
            case ast.Call(func=ast.Attribute(attr="load", value=ast.Name(id="torch")), keywords=keywords):
                assert {each.arg: ast.unparse(each.value) for each in keywords}.get("weights_only") == "True", path
            case ast.Attribute(attr=name):
                assert name not in ("recv_pyobj", "send_pyobj"), path


def test_every_trap_of_the_page_has_its_test() -> None:
    rows = [line for line in (PROJECT / "docs/traps.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == 20
    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert re.search(rf"^(async )?(def {name}\(|{name} = )", (PROJECT / file).read_text(), re.MULTILINE), name


@cache
def attributes_read(*parts: str) -> set[str]:
    return {node.attr for _, node in syntax(*parts) if isinstance(node, ast.Attribute)}


CLASSES = [each for each in vars(config).values() if isinstance(each, type) and is_dataclass(each)]
CONFIGS = [each for each in CLASSES if each is not config.Option]


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_every_option_that_is_accepted_is_read_by_what_it_is_for(kind: type) -> None:
    others = [path for path in SOURCE.rglob("*.py") if path.parts[-2] not in ("cli", "supervise")]
    process = SOURCE / "cli" / "process.py"  # sets up what every process has, such as its log
    read = attributes_read(*(str(path.relative_to(SOURCE)) for path in [*others, process]))
    assert {each.name for each in fields(kind)} <= read


@pytest.mark.parametrize("kind", [CompletionRequest, ChatCompletionRequest])
def test_every_field_of_a_request_that_is_accepted_is_read(kind: Any) -> None:
    read = attributes_read(*(str(path.relative_to(SOURCE)) for path in (SOURCE / "gateway").glob("*.py")))
    assert kind.model_fields.keys() - read <= {"user"}  # which says who asks, and nothing depends on it
