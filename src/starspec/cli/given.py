"""Parsers of options that are given as text, and checks of several options together."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from starspec.config import MAX_PASSED_OVER, MIN_GROUP, BatchingConfig, BatchingMethod, Option
from starspec.config.option import LARGEST
from starspec.errors import ConfigError
from starspec.quoting import quoted

T = TypeVar("T")
Number = TypeVar("Number", int, float)
MAX_DIGITS = 18  # of a number; Python converts no more than some thousands
FOR_EXSPEC = "--window, --max-passed-over and --min-group"
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}  # bytes


def batching_config(
    method: BatchingMethod, window: int | None, max_passed_over: int | None, min_group: int | None
) -> BatchingConfig:
    """The config that four options make. Raises: ConfigError if an option for exspec comes with another method."""
    if method != "exspec" and (window, max_passed_over, min_group) != (None, None, None):
        raise ConfigError(f"{FOR_EXSPEC} are for --batching exspec, not {method}")
    return BatchingConfig(
        method=method,
        window=window,
        max_passed_over=max_passed_over or MAX_PASSED_OVER,
        min_group=min_group or MIN_GROUP,
    )


def batching_configs(
    methods: str, window: int | None, max_passed_over: int | None, min_group: int | None
) -> list[BatchingConfig]:
    """Parse ragged,exspec. Raises: ConfigError as batching_config and names, and for an unknown name."""
    given: tuple[Any, ...] = names(methods, "--batching")
    check_exspec(given, "--batching", window, max_passed_over, min_group)
    return [
        batching_config("exspec", window, max_passed_over, min_group)
        if name == "exspec"
        else BatchingConfig(method=name)
        for name in given
    ]


def check_exspec(names: Collection[str], option: str, *own: int | None) -> None:
    """Raises: ConfigError for options for exspec, `own`, if `names`, the value of `option`, does not contain it."""
    if not any(name.startswith("exspec") for name in names) and set(own) != {None}:
        raise ConfigError(f"{FOR_EXSPEC} are for exspec, which is not among {option}")


def numbers(text: str, option: str, least: float | None = None, most: float | None = None) -> tuple[int, ...]:
    """Parse 2,15,27, each within the bounds. Raises: BadParameter that names the option."""
    return _within(_numbers(text, option, int, "2,15,27"), option, least, most)


def reals(text: str, option: str, least: float | None = None, most: float | None = None) -> tuple[float, ...]:
    """Parse 0,0.3, each within the bounds. Raises: BadParameter that names the option."""
    found = _numbers(text, option, float, "0,0.3")
    if not all(map(math.isfinite, found)):
        raise typer.BadParameter(f"finite numbers, not {text}", param_hint=option)
    return _within(found, option, least, most)


def _numbers(text: str, option: str, read: Callable[[str], Number], example: str) -> tuple[Number, ...]:
    try:
        return tuple(read(each) for each in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"numbers with commas between, as {example}", param_hint=option) from error


def names(text: str, option: str) -> tuple[str, ...]:
    """Parse ragged,exspec. Raises: ConfigError that names the option, if a word comes twice."""
    found = tuple(name.strip() for name in text.split(","))
    if (twice := _repeated(found)) is not None:
        raise ConfigError(f"{option} names {quoted(twice)} twice: name each once")
    return found


def _repeated(found: Sequence[T]) -> T | None:
    """The first value that comes a second time."""
    return next((each for index, each in enumerate(found) if each in found[:index]), None)


def _within(found: tuple[Number, ...], option: str, least: float | None, most: float | None) -> tuple[Number, ...]:
    """The numbers. Args: most: None = LARGEST.

    Raises: BadParameter that names the option and the first number that is outside, or that comes twice.
    """
    top = LARGEST if most is None else most
    for each in found:
        if least is not None and each < least:
            raise typer.BadParameter(f"numbers from {least:g} on, not {quoted(each)}", param_hint=option)
        if each > top:
            raise typer.BadParameter(f"numbers up to {top:.12g}, not {quoted(each)}", param_hint=option)
    if (twice := _repeated(found)) is not None:
        raise typer.BadParameter(f"{twice} is given twice: give each number once", param_hint=option)
    return found


def arguments(text: str, option: str) -> tuple[str, ...]:
    """Split words of a command line, as a shell does. Raises: BadParameter that names the option."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        what = str(error).lower()
        raise typer.BadParameter(f"words of a command line, not {quoted(text)}: {what}", param_hint=option) from error


def by_name(text: str | None, option: str) -> dict[str, float]:
    """Parse name=3,other=1. Raises: ConfigError that names the option, also if a name comes twice."""
    found: dict[str, float] = {}
    for each in text.split(",") if text else ():
        name, _, number = (part.strip() for part in each.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            name, value = "", 0.0
        if not name or not math.isfinite(value):
            raise ConfigError(f"{option} must be NAME=NUMBER,..., as in target-0=3,target-1=1, not '{text}'")
        if name in found:
            raise ConfigError(f"{option} names '{name}' twice, in '{text}': give it one number")
        found[name] = value
    return found


def word_or_number(text: str, flag: str, option: Option) -> str | int:
    """Parse auto or 4. Raises: ConfigError unless it is one of the option's words, or a number from 1 on."""
    if text in option.words:
        return text
    if not (text.isdecimal() and len(text) <= MAX_DIGITS and 1 <= int(text) <= LARGEST):
        raise ConfigError(f"{flag} must be {option.known}, not {quoted(text)}")
    return int(text)


def port_range(text: str, option: str) -> tuple[int, int]:
    """Parse 7701-7764. Raises: ConfigError that names the option."""
    first, _, last = text.partition("-")
    if not all(each.isdecimal() and len(each) <= MAX_DIGITS for each in (first, last)):
        raise ConfigError(f"{option} must be FIRST-LAST, as in 7701-7764, not '{text}'")
    if not 0 < int(first) <= int(last) < 65536:
        raise ConfigError(
            f"{option} must be within 1-65535 and not end before it begins, as in 7701-7764, not '{text}'"
        )
    return int(first), int(last)


def shard(text: str) -> tuple[int, int]:
    """Parse 2/4: the number of a shard, and how many there are. Raises: ConfigError."""
    number, _, of = text.partition("/")
    if not all(each.isdecimal() and len(each) <= MAX_DIGITS for each in (number, of)):
        raise ConfigError(f"--shard must be as 2/4, the second of four, not '{text}'")
    if not 1 <= int(number) <= int(of):
        raise ConfigError(f"there is no shard {number} of {of}: they count from 1")
    return int(number), int(of)


def check_readable(path: Path, option: str) -> None:
    """Raises: ConfigError that names the option, if there is no such file, or if it cannot be read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option}: '{path}' cannot be read: {error.strerror}") from error


def check_key_variable(api_key: str | None) -> None:
    """Refuse an empty STARSPEC_API_KEY: its operator does not want an open server, but empty means no key.

    Args:
        api_key: the value of the option or of the variable.
    Raises: ConfigError if the variable is empty and the option is not given.
    """
    if api_key is None and os.environ.get("STARSPEC_API_KEY") == "":
        raise ConfigError("STARSPEC_API_KEY is empty: give a key, or unset it to ask for none")


def num_bytes(text: str | None, option: str) -> int | None:
    """Parse 2GiB, 1.5 GB or 1048576. Raises: ConfigError that names the option."""
    if text is None:
        return None
    number = text.rstrip("BGIKMbgikm ")
    unit = UNITS.get(text[len(number) :].strip().upper())
    try:
        found = int(float(number) * (unit or 0))
    except (ValueError, OverflowError):
        found = 0
    if found < 1:
        raise ConfigError(f"{option} must be an amount of memory, as 512MiB, 2GiB or 1048576, not '{text}'")
    return found
