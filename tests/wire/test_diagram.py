"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from starspec.wire.diagram import link_diagram, message_tables, render, row_diagram, stage_diagram, tag_diagram
from starspec.wire.link import LINK_TRANSITIONS
from starspec.wire.messages import Message
from starspec.wire.session import TRANSITIONS
from starspec.wire.stage_session import ROW_TRANSITIONS, STAGE_TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_committed_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- generated:") == 5
    assert text == render(text), "run: python -m starspec.wire.diagram docs/protocol.md"


def test_the_module_rewrites_a_page_in_place(tmp_path: Path) -> None:
    page = tmp_path / "protocol.md"
    shutil.copy(PAGE, page)
    page.write_text(
        page.read_text(encoding="utf-8").replace("absent --> drafting", "absent --> lunch"), encoding="utf-8"
    )
    subprocess.run([sys.executable, "-m", "starspec.wire.diagram", str(page)], check=True)
    assert page.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_every_value_within_a_message_is_described() -> None:
    tables = message_tables()
    named = set(re.findall(r"`([A-Z]\w+)`", "".join(row for row in tables.splitlines() if row.startswith("|"))))
    described = set(re.findall(r"^\*\*(\w+)\*\*", tables, re.MULTILINE))
    assert {"SamplingSpec", "TreeShape", "Drawn", "HubStats", "HubTargetStats", "Mean"} <= named <= described


def test_every_transition_is_drawn() -> None:
    link = link_diagram()
    for state, row in LINK_TRANSITIONS.items():
        for message, following in row.items():
            [line] = [each for each in link.splitlines() if f" {state} --> {following}:" in each]
            assert message.__name__ in line
    tables = ((TRANSITIONS, tag_diagram), (STAGE_TRANSITIONS, stage_diagram), (ROW_TRANSITIONS, row_diagram))
    for table, diagram in tables:
        for state, row in table.items():
            for event, following in row.items():
                [line] = [each for each in diagram().splitlines() if f" {state} --> {following}:" in each]
                assert str(event) in line


def test_every_message_and_field_is_described_with_its_meaning() -> None:
    tables = message_tables()
    for kind in Message.__subclasses__():
        assert tables.count(f"**{kind.__name__}**: ") >= 1
        for field in kind.__struct_fields__:
            assert f"| `{field}` |" in tables
    assert "| `port` | int |  | for this target alone, at the hub's host |" in tables
    assert "| `code` | str |" not in tables


def test_what_a_field_means_that_is_left_out_is_said() -> None:
    tables = message_tables()
    assert "| `shape` | `TreeShape` or nil | nil | None: a chain |" in tables
    assert '| `method` | "coupled", "rejection" | "coupled" |' in tables
    assert "| `logit_bias` | {int: float} | {} |" in tables
    assert "| `include_stop_str_in_output` | bool | false |" in tables
    assert "| `stats` | `RequestStats` or nil | nil |" in tables
    assert "| `acceptance` | `AcceptanceStats` | all defaults |" in tables


def test_a_marker_of_an_unknown_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        render("<!-- generated: nonsense -->\n<!-- end -->")
