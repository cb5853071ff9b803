"""The pages for people: paths and links that exist, lines that fit a screen, a README that stays short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path

import msgspec
import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from starspec.cli import app
from starspec.config import RemoteConfig, SpeculativeConfig
from starspec.models.loading.demo_model import CONVERSION, NAME

PROJECT = Path(__file__).parent.parent
DOCS = PROJECT / "docs"
HEADS = [PROJECT / "benchmarks" / "head" / "README.md", *(PROJECT / "src" / "starspec" / "heads").glob("*/README.md")]
PAGES = sorted(
    [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "CHANGELOG.md", *DOCS.glob("*.md"), *HEADS]
)
RECORDS = sorted((DOCS / "adr").glob("*.md"))
PLACES = (
    "",
    "src/starspec",
    "docs",
    "tests",
    "benchmarks",
    "benchmarks/head",
    "src/starspec/integrations/vllm",
    "tests/lossless",
)
WRITTEN_BY_READERS = {"keys/", "test_..."}  # folders and files that the reader's own commands make

MAX_COLUMNS = 120
MAX_README_LINES = 120


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines that are neither code, nor tables, nor pictures, nor generated, with their numbers."""
    fence, is_generated = "", False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("<!--"):
            is_generated = line.startswith("<!-- generated:")
        if fence or line.lstrip().startswith("```"):
            fence = "" if line.strip() == fence else fence or line.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
        elif not (is_generated or line.startswith(("|", "    ", "!["))):
            yield number, line


def paths_in(page: Path) -> set[str]:
    """Files and folders of this repository that a page names in backticks."""
    quoted = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    names = {re.split(r"::|: ", each)[0] for each in quoted}
    return {each for each in names if re.fullmatch(r"[\w./-]+(\.py|\.md|/)", each)} - WRITTEN_BY_READERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    missing = {
        path
        for path in paths_in(page)
        if not any((PROJECT / place / path).exists() for place, path in product(PLACES, [path]))
    }
    assert not missing, f"{page.name} names {sorted(missing)}"


def command_lines(page: Path) -> Iterator[str]:
    """What follows `starspec` in a page's code, without texts in quotes, comments, and what comes after a pipe."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *re.findall(r"`(starspec [^`]+)`", text)]:
        found = re.match(r" *(?:\w*\$ +)?starspec ([a-z-].*)", line.replace("\n", " "))
        if found:
            yield re.split(r" #|[|;&]", re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", found[1]))[0]


def unknown_words(line: str) -> list[str]:
    """The command, if there is none of this name; otherwise options that it does not have."""
    command, words = get_command(app), line.split()
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    assert isinstance(command, TyperGroup | TyperCommand)
    known = {"--help", *(option for each in command.params for option in (*each.opts, *each.secondary_opts))}
    return [word for word in re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", " ".join(words)) if word not in known]


@pytest.mark.parametrize("page", [each for each in PAGES if each.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_command_that_a_page_shows_has_these_options(page: Path) -> None:
    unknown = {line: words for line in command_lines(page) if (words := unknown_words(line))}
    assert not unknown, f"{page.name}: {unknown}"


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http://", "https://")):
            file, _, heading = link.partition("#")
            target = (page.parent / file) if file else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not heading or heading in headings(target), f"{page.name} links to {link}"


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=lambda page: page.name)
def test_prose_fits_into_the_columns(page: Path) -> None:
    long = [number for number, line in prose(page) if len(line) > MAX_COLUMNS]
    assert not long, f"{page.name}: lines {long} are over {MAX_COLUMNS} columns"


def test_the_readme_is_short() -> None:
    lines = (PROJECT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.stem[:3])
def test_every_decision_has_a_number_a_date_and_a_status(page: Path) -> None:
    title, blank, facts, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith(f"# {int(page.stem[:3])}. ")
    assert not blank
    assert re.match(r"\d{4}-\d{2}-\d{2} · (Accepted|Superseded by \[)", facts), facts


def test_the_page_of_the_speculative_config_has_every_key_with_its_default() -> None:
    page = (DOCS / "speculative-config.md").read_text(encoding="utf-8")
    written = dict(re.findall(r"^\| `(\w+)` \|\s*`?([^`|]*?)`?\s*\|", page, re.MULTILINE))
    parts = {"remote": "", "length": ""}  # objects, which have rows of their own or a sentence
    known = {
        each.name: parts.get(each.name, msgspec.json.encode(getattr(kind(), each.name)).decode())
        for kind in (SpeculativeConfig, RemoteConfig)
        for each in fields(kind)
    }
    assert written == known


def test_pages_name_the_folder_of_the_demo_model_as_it_is() -> None:
    found = {
        each for page in PAGES for each in re.findall(r"\.cache/starspec/demo-\d+/[\w-]+", page.read_text("utf-8"))
    }
    assert found == {f".cache/starspec/demo-{CONVERSION}/{NAME}"}
