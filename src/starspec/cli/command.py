"""What all commands of `starspec` have in common: what every option may be, whatever it is about.

An option is given once, unless its values make a list. Its value is not empty, is Unicode text unless it is a path, and
is at most LARGEST if it is a number without a bound of its own. A file that a command reads has an end, and one that it
writes is not also named by another option.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from starspec.config.option import LARGEST
from starspec.quoting import is_unicode, quoted

WRITTEN: Final = ("--json", "--png", "--trace", "--audit-log", "--ready-file")  # options of files that are written
MAY_BE_EMPTY: Final = ("--vllm-args",)
ENDLESS: Final = frozenset(os.makedev(1, minor) for minor in (5, 7, 8, 9))  # Linux's zero, full, random and urandom
OF_THE_CURRENT_SHELL: Final = ("--install-completion", "--show-completion")
BOUND_ELSEWHERE: Final = ("--seed",)  # numbers that may be larger than LARGEST


class Command(TyperCommand):
    """A command that refuses what no option may be, as the module's first lines say."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
        written = list(args)  # typer empties it
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _check_values(self, ctx)
            _refuse_empty_paths(self, ctx, written)
            _refuse_endless(self, ctx)
            _refuse_overwriting(self, ctx)
        return rest


class Group(TyperGroup):
    """As Command, for the options in front of a command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
        _refuse_a_shell(self, ctx, args)
        return super().parse_args(ctx, args)


class CommandLine(typer.Typer):
    """A typer app of `Command`s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Group, context_settings={"help_option_names": ["-h", "--help"]}, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """As typer's, with our class of commands."""
        return super().command(name, cls=Command, **settings)


def _refuse_repeats(command: TyperCommand | TyperGroup, ctx: Any, args: list[str]) -> None:
    """Raises: UsageError, of typer, that names the option; or as typer's parser."""
    if ctx.resilient_parsing:
        return
    _, _, given = command.make_parser(ctx).parse_args(args=list(args))
    for index, each in enumerate(given):
        is_single = each.param_type_name == "option" and not each.multiple and not each.is_eager
        if is_single and any(each is earlier for earlier in given[:index]):
            ctx.fail(f"{_names_of(each)} is given twice: give it once")


def _refuse_a_shell(group: TyperGroup, ctx: Any, args: list[str]) -> None:
    """Raises: UsageError, of typer, for a word behind an option of completion: it finds the shell by itself."""
    if ctx.resilient_parsing:
        return
    _, words, given = group.make_parser(ctx).parse_args(args=list(args))
    for each in given:
        if words and each.opts[0] in OF_THE_CURRENT_SHELL:
            ctx.fail(f"{each.opts[0]} is for the shell that it is called from, and takes no {quoted(words[0])}")


def _check_values(command: TyperCommand, ctx: Any) -> None:
    """Raises: UsageError, of typer, that names an option whose value would count as none, or breaks what takes it."""
    for each in command.params:
        source = ctx.get_parameter_source(each.name)
        if each.param_type_name != "option" or source is None or source.name != "COMMANDLINE":
            continue
        for value in _values_of(each, ctx):
            why = _why_no_text(each, value) if isinstance(value, str) else _why_no_number(each, value)
            if why is not None:
                ctx.fail(f"{_names_of(each)} {why}")


def _values_of(parameter: Any, ctx: Any) -> list[Any]:
    value = ctx.params.get(parameter.name)
    return list(value) if isinstance(value, list | tuple) else [value]


def _why_no_text(option: Any, text: str) -> str | None:
    """Options of several values, and those that a variable may give too, say themselves what they may be."""
    if option.envvar is not None or option.multiple:
        return None
    if not text and option.opts[0] not in MAY_BE_EMPTY:
        return "is empty: give a value" + ("" if option.required else ", or leave it out")
    return None if is_unicode(text) else "is not valid Unicode text: give it in UTF-8"


def _why_no_number(option: Any, value: object) -> str | None:
    """Numbers that are not finite are refused by name elsewhere."""
    has_bound = option.type_descriptor.parameter_info.max is not None or option.opts[0] in BOUND_ELSEWHERE
    if has_bound or not isinstance(value, int | float) or value == math.inf or not value > LARGEST:
        return None
    return f"is at most {LARGEST}, not {quoted(value)}"


def _refuse_empty_paths(command: TyperCommand, ctx: Any, args: list[str]) -> None:
    """Raises: UsageError, of typer, for an empty path: read as one, it is the present folder."""
    written, _, _ = command.make_parser(ctx).parse_args(args=args)
    for each in command.params:
        texts = written.get(each.name)
        is_empty = "" in texts if isinstance(texts, list) else texts == ""
        if is_empty and each.param_type_name == "option" and Path() in _values_of(each, ctx):
            ctx.fail(f"{_names_of(each)} is empty: give a value, or leave it out")


def _refuse_endless(command: TyperCommand, ctx: Any) -> None:
    """Raises: UsageError, of typer, for a device that could be read until the memory is full."""
    for each in command.params:
        for path in _files_of(each, ctx):
            if each.opts[0] not in WRITTEN and _is_endless(path):
                ctx.fail(f"'{path}', which is {_names_of(each)}, never ends: name a file")


def _is_endless(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:  # whoever opens it says what is wrong
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev in ENDLESS


def _refuse_overwriting(command: TyperCommand, ctx: Any) -> None:
    """Raises: UsageError, of typer, if a file that is written has a second meaning: what it holds would be lost."""
    named = [(each, path) for each in command.params for path in _files_of(each, ctx)]
    for each, path in named:
        if each.opts[0] not in WRITTEN or _is_device(path):  # which holds nothing
            continue
        for other, that in named:
            if other is not each and os.path.realpath(path) == os.path.realpath(that):
                both = f"{_names_of(each)} and {_names_of(other)}"
                ctx.fail(f"{both} name one file, '{path}', which would be overwritten: name another one")


def _files_of(parameter: Any, ctx: Any) -> Iterator[Path]:
    """The paths that a parameter names; of models, those that are files."""
    for value in _values_of(parameter, ctx):
        if isinstance(value, Path):
            yield value
        elif isinstance(value, str) and value.endswith(".gguf"):
            yield Path(value)


def _is_device(path: Path) -> bool:
    """Whether it is there and not a regular file. False if the system refuses the path: whoever opens it says why."""
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 (Path's raise)


def _names_of(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    return " / ".join([*parameter.opts, *parameter.secondary_opts])
