"""What all commands of `starspec` have in common: an option is given once, unless its values make a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command that refuses an option given twice: of two values one would be ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """As Command, for the options in front of a command's name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _refuse_repeats(self, ctx, args)
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
            ctx.fail(f"{' / '.join([*each.opts, *each.secondary_opts])} is given twice: give it once")
