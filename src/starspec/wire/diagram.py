"""Generates parts of docs/protocol.md: `python -m starspec.wire.diagram docs/protocol.md`.

State diagrams come from the transition tables. Message tables come from the structs and the comments of their fields.
The text between the markers `<!-- generated: NAME -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import Any, Final, get_args

from msgspec import NODEFAULT
from msgspec import inspect as shapes

from starspec import stats
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import KeyThresholds, Relaxation
from starspec.wire import messages
from starspec.wire.link import LINK_TRANSITIONS, LinkState
from starspec.wire.session import TRANSITIONS, TagState
from starspec.wire.stage_session import ROW_TRANSITIONS, STAGE_TRANSITIONS, RowState, StageState

PAGE_COLUMNS: Final = 120

DIRECTIONS: Final[dict[str, Any]] = {
    "Anyone to the hub's public port": messages.HandshakeMessage,
    "The hub's public port to anyone": messages.HubPublicReply,
    "Target to hub, on the target's own port": messages.TargetToHub,
    "Hub to target, on the target's own port": messages.HubToTarget,
    "Gateway to target": messages.GatewayToTarget,
    "Target to gateway": messages.TargetToGateway,
    "Coordinator of stages to each stage": messages.CoordinatorToStage,
    "Coordinator to the first stage, and each stage to the next": messages.StageToStage,
    "Stage to its coordinator": messages.StageToCoordinator,
    "Stage to the one before": messages.StageToStageBefore,
}
INSIDE: Final = (  # types of fields of messages
    SamplingSpec,
    GrammarSpec,
    messages.TreeShape,
    messages.Drawn,
    messages.Top,
    messages.RequestSpec,
    messages.TokenLogprob,
    messages.PromptLogprob,
    messages.DraftToVerify,
    messages.Verified,
    messages.RowChange,
    messages.WindowHead,
    messages.JudgeOf,
    messages.RowLaw,
    Relaxation,
    KeyThresholds,
    messages.StageWork,
    messages.VerdictOf,
    stats.HubStats,
    stats.PipeStats,
    stats.StageStats,
    stats.HubTargetStats,
    stats.TargetStats,
    stats.RequestStats,
    stats.AcceptanceStats,
    stats.BatchStats,
    stats.LengthStats,
    stats.GrammarStats,
    stats.Mean,
)
Edge = tuple[StrEnum, StrEnum, str]  # from, to, label
_COMMENT: Final = re.compile(r"^ {4}(\w+): [^#\n]*# (.*)$", re.MULTILINE)
_MARKED: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def link_diagram() -> str:
    """The handshake as a Mermaid diagram."""
    edges: list[Edge] = [
        (state, following, message.__name__)
        for state, row in LINK_TRANSITIONS.items()
        for message, following in row.items()
    ]
    edges += [(state, LinkState.DISCONNECTED, "(lost)") for state in LinkState if state != LinkState.DISCONNECTED]
    return _mermaid(LinkState.DISCONNECTED, edges)


def tag_diagram() -> str:
    """One tag as a Mermaid diagram."""
    return _mermaid(TagState.ABSENT, _edges(TRANSITIONS))


def stage_diagram() -> str:
    """One stage as a Mermaid diagram."""
    return _mermaid(StageState.DETACHED, _edges(STAGE_TRANSITIONS))


def row_diagram() -> str:
    """One row of a stage as a Mermaid diagram."""
    return _mermaid(RowState.FREE, _edges(ROW_TRANSITIONS))


def message_tables() -> str:
    """Tables of all messages and their fields, by direction. A message of two directions is described once."""
    described: set[type] = set()
    sections = {title: get_args(union) or (union,) for title, union in DIRECTIONS.items()} | {
        "Values within messages": INSIDE
    }
    return "\n\n".join(
        f"### {title}\n\n" + "\n\n".join(_message(kind, described) for kind in kinds)
        for title, kinds in sections.items()
    )


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "link_diagram": link_diagram,
    "tag_diagram": tag_diagram,
    "stage_diagram": stage_diagram,
    "row_diagram": row_diagram,
    "message_tables": message_tables,
}


def render(text: str) -> str:
    """Regenerate every generated part of `text`. Raises: KeyError for a marker of an unknown part."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n\n{found[3]}", text)


def _edges(table: Mapping[Any, Mapping[Any, Any]]) -> list[Edge]:
    """The arrows of a transition table."""
    return [(state, to, str(event)) for state, row in table.items() for event, to in row.items()]


def _mermaid(start: StrEnum, edges: Iterable[Edge]) -> str:
    labels: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for state, following, label in edges:
        labels.setdefault((state, following), []).append(label)
    arrows = [f"    {state} --> {following}: {' / '.join(names)}" for (state, following), names in labels.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {start}", *arrows, "```"])


def _message(kind: type, described: set[type]) -> str:
    if kind in described:
        return f"**{kind.__name__}**: as above."
    described.add(kind)
    shape = shapes.type_info(kind)
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    if getattr(shape, "array_like", False):
        meaning += " An array of these, in order:"
    lines = [fill(f"**{kind.__name__}**: {meaning}", PAGE_COLUMNS, break_on_hyphens=False)]
    if fields := shape.fields:  # type: ignore[attr-defined]
        comments = dict(_COMMENT.findall(inspect.getsource(kind)))
        lines += ["", "| field | type | default | meaning |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{each.name}` | {_type(each.type)} | {_default(each)} | {comments.get(each.name, '')} |"
            for each in fields
        ]
    return "\n".join(lines)


def _default(field: shapes.Field) -> str:
    """The default of a field; "" if the field is required."""
    if field.required:
        return ""
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case int() | float():
            return str(value)
        case _:
            return "{}" if isinstance(value, Mapping) else "[]" if isinstance(value, Sequence) else "all defaults"


def _type(shape: shapes.Type) -> str:
    match shape:
        case shapes.UnionType(types=types):
            return " or ".join(_type(each) for each in types)
        case shapes.ListType(item_type=item) | shapes.VarTupleType(item_type=item):
            return f"[{_type(item)}]"
        case shapes.DictType(key_type=key, value_type=value):
            return f"{{{_type(key)}: {_type(value)}}}"
        case shapes.LiteralType(values=values):
            return ", ".join(f'"{value}"' for value in values)
        case shapes.StructType(cls=cls) | shapes.DataclassType(cls=cls):
            return f"`{cls.__name__}`"
        case _:
            name = type(shape).__name__.removesuffix("Type").lower()
            return "nil" if name == "none" else name


def main(path: Path) -> None:
    """Regenerate the parts of a file."""
    path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
