"""A config dataclass as command-line options: each form, defaults, bounds, and what a command is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from starspec.cli.binder import REQUIRED, bound, flag_of, take
from starspec.config.option import LIMITS, Option
from starspec.errors import ConfigError

Runner = CliRunner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    path: Annotated[str | None, Option("A path.", LIMITS, form="path")] = None
    memory_bytes: Annotated[int | None, Option("Memory.", LIMITS, ("--memory",), form="memory")] = None
    shares: Annotated[Mapping[str, float], Option("Shares.", LIMITS, form="by_name")] = field(default_factory=dict)
    batch: Annotated[
        Literal["auto"] | int, Option("A batch.", LIMITS, form="word_or_number", words=("auto",), unit="rows")
    ] = "auto"
    ports: Annotated[tuple[int, int] | None, Option("Ports.", LIMITS, form="ports")] = None
    lengths: Annotated[tuple[int, ...], Option("Lengths.", LIMITS, least=1, form="numbers")] = (2, 4)
    names: Annotated[tuple[str, ...], Option("Names.", LIMITS)] = ()
    ways: Annotated[tuple[str, ...], Option("Ways.", LIMITS, form="names")] = ("a", "b")
    count: Annotated[int, Option("A count.", LIMITS, least=1, most=8)] = 3
    is_loud: Annotated[bool, Option("Loud.", LIMITS, ("--loud",))] = False
    hidden: int = 7  # no option


def given(command: object, *arguments: str) -> object:
    """What a command line makes of the config. Raises: what is wrong with it."""
    app = typer.Typer()
    app.command()(command)  # type: ignore[arg-type]
    return Runner.invoke(app, arguments, standalone_mode=False, catch_exceptions=False).return_value


@bound
def whole(config: Inner, *, word: Annotated[str, typer.Option(help="Typer's own.")] = "w") -> tuple[Inner, str]:
    return config, word


def test_defaults_are_the_configs() -> None:
    assert given(whole) == (Inner(), "w")


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (("--path", "a/b/"), Inner(path="a/b")),
        (("--memory", "2KiB"), Inner(memory_bytes=2048)),
        (("--shares", "a=1,b=2.5"), Inner(shares={"a": 1.0, "b": 2.5})),
        (("--batch", "4"), Inner(batch=4)),
        (("--ports", "7-9"), Inner(ports=(7, 9))),
        (("--lengths", "1,3"), Inner(lengths=(1, 3))),
        (("--names", "a", "--names", "b"), Inner(names=("a", "b"))),
        (("--ways", "c, d"), Inner(ways=("c", "d"))),
        (("--count", "8", "--loud"), Inner(count=8, is_loud=True)),
    ],
)
def test_each_form_is_read(arguments: tuple[str, ...], config: Inner) -> None:
    assert given(whole, *arguments) == (config, "w")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--memory", "2KiBs"), "--memory must be an amount of memory"),
        (("--shares", "a"), "--shares must be NAME=NUMBER"),
        (("--batch", "all"), "--batch must be auto or a number of rows, not 'all'"),
        (("--ports", "9-7"), "--ports must be within 1-65535"),
        (("--lengths", "0"), "numbers from 1 on, not 0"),
        (("--lengths", "1,3,1"), "1 is given twice: give each number once"),
        (("--ways", "c, d,c"), "--ways names 'c' twice: name each once"),
        (("--count", "9"), "less than or equal to 8"),
    ],
)
def test_a_mistake_names_the_option(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises((ConfigError, typer.BadParameter)) as mistake:
        given(whole, *arguments)
    assert sentence in str(mistake.value)


def test_a_command_may_take_some_fields_with_other_defaults() -> None:
    @bound
    def some(config: Annotated[Inner, take("count", "path", count=5, hidden=1)]) -> Inner:
        return config

    assert given(some) == Inner(count=5, hidden=1)
    with pytest.raises(Exception, match="No such option: --loud"):
        given(some, "--loud")


def test_a_command_may_require_a_field() -> None:
    @bound
    def needy(config: Annotated[Inner, take("count", count=REQUIRED)]) -> Inner:
        return config

    with pytest.raises(Exception, match="Missing parameter"):
        given(needy)
    assert given(needy, "--count", "2") == Inner(count=2)


def test_a_flag_is_named_as_its_option() -> None:
    assert (flag_of(Inner, "memory_bytes"), flag_of(Inner, "count")) == ("--memory", "--count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    first: Annotated[int, Option("First.", LIMITS)] = 1
    inner: Inner = field(default_factory=Inner)
    last: Annotated[int, Option("Last.", LIMITS)] = 2


@bound
def nested(config: Outer) -> Outer:
    return config


def test_a_config_within_a_config_stands_for_its_options_too() -> None:
    assert given(nested, "--count", "5", "--last", "9") == Outer(inner=Inner(count=5), last=9)
    assert given(nested) == Outer()


@bound
def part(config: Annotated[Outer, take("first")]) -> Outer:
    return config


def test_named_fields_leave_inner_configs_out() -> None:
    with pytest.raises(Exception, match="No such option: --count"):
        given(part, "--count", "5")
