"""Objects own their state: other files read it, and call a method that says what has happened."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import starspec
from starspec.client.connection import HubConnection
from starspec.client.hub_record import HubRecord
from starspec.client.tag import HubTag
from starspec.engine.sequence import TargetSequence
from starspec.engine.sequence_at_hub import SequenceAtHub
from starspec.hub.committed import CommittedTokens
from starspec.hub.round import DraftRound
from starspec.hub.sequence import DraftSequence
from starspec.hub.target_state import TargetState
from starspec.hub.tree_nodes import TreeNodes
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.patience import Patience, PrefillWait, TagWait
from starspec.policy.reopening import HubRoom, Reopening
from starspec.stats import RequestStats
from starspec.wire.session import TagSession
from starspec.wire.transports.hub_link import HubLink

SOURCE = Path(starspec.__file__).parent
OWNERS: dict[str, list[type]] = {  # a folder -> classes whose objects the code in it must not change by itself
    "client": [HubTag, TagWait, HubRecord, HubLessons, HubConnection, TargetSequence, RequestStats, SequenceAtHub],
    "engine": [HubTag, TagWait, HubRecord, HubLessons, HubConnection, TargetSequence, RequestStats, SequenceAtHub],
    "integrations": [HubTag, TagWait, HubRecord, HubLessons, HubConnection],
    "hub": [DraftSequence, DraftRound, CommittedTokens, TreeNodes, TargetState],
    "wire/transports": [HubLink],
}
PARTS: dict[str, type] = {  # attributes of these objects that are objects themselves; their owner calls them
    "patience": Patience,
    "prefill_wait": PrefillWait,
    "reopening": Reopening,
    "room": HubRoom,
    "round": DraftRound,
    "session": TagSession,
}
FILES_OF_OWNERS = {Path(inspect.getfile(kind)) for kinds in OWNERS.values() for kind in kinds}


def chain(node: ast.expr) -> list[str]:
    """The names in an expression such as `self._hub.record`; "" = something else, such as a call, comes first."""
    if isinstance(node, ast.Attribute):
        return [*chain(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def assigned(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """The attributes that code assigns or deletes: lines and chains."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.lineno, chain(node)


@cache
def class_tree(kind: type) -> ast.ClassDef:
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    return tree


@cache
def state_of(kind: type) -> set[str]:
    """The attributes of a class: the fields of a dataclass, and what its methods assign to `self`."""
    tree = class_tree(kind)
    targets = [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    fields = {target.id for target in targets if isinstance(target, ast.Name)}
    return (fields | {names[1] for _, names in assigned(tree) if names[0] == "self"}) - {"stats"}  # of many classes


@cache
def changing_methods(kind: type) -> set[str]:
    """Methods that assign to `self`, or that call a method which does."""
    methods = [node for node in class_tree(kind).body if isinstance(node, ast.FunctionDef)]
    changing = {each.name for each in methods if any(names[0] == "self" for _, names in assigned(each))}
    called = {
        each.name: {chain(node.func)[-1] for node in ast.walk(each) if isinstance(node, ast.Call)} for each in methods
    }
    while more := {name for name, names in called.items() if names & changing} - changing:
        changing |= more
    return changing


def assigned_outside(tree: ast.AST, state: set[str]) -> Iterator[str]:
    """Assignments to these attributes of anything but `self` and its statistics, and to attributes of theirs."""
    for line, names in assigned(tree):
        first = 1 if names[0] != "self" else 3 if names[1] == "stats" else 2
        if set(names[first:]) & state:
            yield f"line {line}: {'.'.join(names)}"


def called_outside(tree: ast.AST, parts: dict[str, type]) -> Iterator[str]:
    """Calls that change a part of anything but `self`."""
    changing = {(part, name) for part, kind in parts.items() for name in changing_methods(kind)}
    for node in ast.walk(tree):
        *owner, part, method = ["", *chain(node.func)] if isinstance(node, ast.Call) else ["", ""]
        if (part, method) in changing and owner not in ([""], ["", "self"]):
            yield f"line {node.lineno}: {'.'.join([*owner[1:], part, method])}()"


@pytest.mark.parametrize(
    "path",
    [path for folder in OWNERS for path in sorted((SOURCE / folder).rglob("*.py"))],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_only_an_object_changes_its_state(path: Path) -> None:
    kinds = next(kinds for folder, kinds in OWNERS.items() if path.is_relative_to(SOURCE / folder))
    state = set[str]().union(*map(state_of, kinds))
    for kind in kinds:
        if Path(inspect.getfile(kind)) == path:  # its methods also make copies
            state -= state_of(kind)
    wrong = list(assigned_outside(ast.parse(path.read_text()), state))
    assert not wrong, f"call a method that says what has happened, instead of writing: {wrong}"


@pytest.mark.parametrize(
    "path",
    [path for folder in OWNERS for path in sorted((SOURCE / folder).rglob("*.py")) if path not in FILES_OF_OWNERS],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_only_the_owner_of_a_part_changes_it(path: Path) -> None:
    wrong = list(called_outside(ast.parse(path.read_text()), PARTS))
    assert not wrong, f"call a method of the owner that says what has happened: {wrong}"


def test_an_assignment_from_outside_would_be_seen() -> None:
    written = (
        "sequence.row = 3\nsequence.round.request = None\nsequence.row, other = 1, 2\nself.row = 3\nx = sequence.row\n"
        "self._sequences[key].row += 1\nself.stats.row = 1\nself.hub.round.num_steps = 1\nself.round.num_steps = 1\n"
    )
    assert sorted(assigned_outside(ast.parse(written), {"row", "round"})) == [
        "line 1: sequence.row",
        "line 2: sequence.round.request",
        "line 3: sequence.row",
        "line 6: .row",
        "line 8: self.hub.round.num_steps",
    ]


def test_a_call_from_outside_would_be_seen() -> None:
    written = (
        "tag.patience.note_in_time()\nself.patience.note_in_time()\nself._hub.record.patience.note_in_time()\n"
        "tag.patience.max_steps(3)\ntag.session.receive(message)\nsession.receive(message)\n"
    )
    assert sorted(called_outside(ast.parse(written), {"patience": Patience, "session": TagSession})) == [
        "line 1: tag.patience.note_in_time()",
        "line 3: self._hub.record.patience.note_in_time()",
        "line 5: tag.session.receive()",
    ]
