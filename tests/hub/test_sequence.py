"""A sequence owns its state: other files read it, and change it by calling its methods."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import starspec.hub

HUB = Path(starspec.hub.__file__).parent
OWNERS = {  # class -> the file whose methods change it
    "DraftSequence": HUB / "sequence.py",
    "DraftRound": HUB / "round.py",
    "CommittedTokens": HUB / "committed.py",
    "TreeNodes": HUB / "tree_nodes.py",
    "TargetState": HUB / "targets.py",
}


def assigned_outside(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Attributes that are assigned, of anything but `self` and its statistics, and whose name is one of `names`."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names):
            continue
        if ast.unparse(node.value) not in ("self", "self.stats"):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def attributes_of(class_name: str) -> set[str]:
    """The attributes that methods of the class assign."""
    tree = ast.parse(OWNERS[class_name].read_text())
    owner = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == class_name)
    attributes = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    assert attributes, f"{class_name} has state"
    return attributes


def test_only_its_own_file_changes_a_sequences_state() -> None:
    wrong = []
    for class_name in OWNERS:
        for path in set(HUB.glob("*.py")) - set(OWNERS.values()):
            found = assigned_outside(ast.parse(path.read_text()), attributes_of(class_name))
            wrong += [f"{path.name} {each}, which is {class_name}'s" for each in found]
    assert not wrong, wrong


def test_an_assignment_from_outside_would_be_seen() -> None:
    written = (
        "sequence.row = 3\nsequence.round.request = None\nsequence.row, other = 1, 2\nself.row = 3\nx = sequence.row\n"
    )
    assert list(assigned_outside(ast.parse(written), {"row", "request"})) == [
        "line 1: sequence.row",
        "line 2: sequence.round.request",
        "line 3: sequence.row",
    ]
