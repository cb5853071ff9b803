"""Makes commands from config dataclasses: a field's annotation states its option, and the command gets the config.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Plan:
        max_tokens: Annotated[int, Option("Tokens of an answer.", MEASURE, least=1)] = 32
        lengths: Annotated[tuple[int, ...], Option("Chain lengths.", MEASURE, form="numbers")] = (2, 4)
        trace_file: Path | None = None          # no Option: not on the command line

    @bound
    def measure(
        plan: Plan,                                                             # --max-tokens, --lengths
        model: Annotated[ModelConfig, take("model", "dtype", num_rows=1)],      # --target/--model, --dtype
        quick: Annotated[bool, typer.Option(help="...")] = False,               # an option of typer, unchanged
    ) -> None: ...

    app.command()(measure)

A parameter whose type is a dataclass with `Option` fields stands for the options of all these fields, or of those that
`take` names. `take` may give other defaults, and values of fields that are not options. A field without an `Option`
whose type is such a dataclass stands for its options too, unless `take` names fields.
"""

from __future__ import annotations

import functools
import inspect
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from starspec.cli import given
from starspec.config.checks import hints_of, options_of, split
from starspec.config.option import NONE_GIVEN, Option

T = TypeVar("T")

TEXT_FORMS: Final[Mapping[str, Callable[[str, str, Option], Any]]] = {
    "memory": lambda text, flag, _: given.num_bytes(text, flag),
    "by_name": lambda text, flag, _: given.by_name(text, flag),
    "word_or_number": given.word_or_number,
    "ports": lambda text, flag, _: given.port_range(text, flag),
    "numbers": lambda text, flag, option: given.numbers(text, flag, option.least, option.most),
    "reals": lambda text, flag, option: given.reals(text, flag, option.least, option.most),
    "list": lambda text, *_: tuple(each.strip() for each in text.split(",")),
    "names": lambda text, flag, _: given.names(text, flag),
    "arguments": lambda text, flag, _: given.arguments(text, flag),
}
"""Form -> function from (text, flag, option) to the field's value."""


REQUIRED: Final[Any] = MISSING  # as a value of `take`: the option has no default


@dataclass(frozen=True, slots=True)
class Taken:
    """Which fields of a config are options of a command, and what differs from their defaults."""

    names: tuple[str, ...]  # empty = all that have an Option
    values: Mapping[str, Any]

    def options(self, kind: type) -> dict[str, Option]:
        found = options_of(kind)
        return {name: found[name] for name in self.names or found}


def take(*names: str, **values: Any) -> Taken:
    """Chooses the fields of a config that are options of a command.

    Args:
        names: fields; none = all that have an Option.
        values: field -> a default instead of its own; for a field that is not an option, its value.
    """
    return Taken(names, values)


def bound(command: Callable[..., T]) -> Callable[..., T]:
    """The command as typer sees it: an option for each field of its configs.

    Raises: KeyError if `take` names a field without an Option.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: _group_of(hint) for name, hint in hints.items() if name != "return"}
    own = inspect.signature(command).parameters
    parameters: list[inspect.Parameter] = []
    for name, group in groups.items():
        parameters += group.parameters(name) if group else [own[name].replace(annotation=hints[name])]

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        return command(**{name: group.build(name, values) if group else values[name] for name, group in groups.items()})

    parameters.sort(key=lambda each: each.kind)  # keywords last, as a signature wants it
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@dataclass(frozen=True, slots=True)
class _Group:
    """A config that is a parameter of a command."""

    kind: type[Any]
    taken: Taken

    def parameters(self, group: str) -> list[inspect.Parameter]:
        options, parts = self.taken.options(self.kind), self._parts()
        found: list[inspect.Parameter] = []
        for name in self.taken.names or hints_of(self.kind):
            if name in options:
                found.append(self._parameter(f"{group}_{name}", name, options[name]))
            elif name in parts:
                found += parts[name].parameters(f"{group}_{name}")
        return found

    def _parts(self) -> dict[str, _Group]:
        """The fields that are configs with options of their own."""
        if self.taken.names:
            return {}
        groups = {name: _group_of(hint) for name, hint in hints_of(self.kind).items()}
        return {name: group for name, group in groups.items() if group and options_of(group.kind)}

    def _parameter(self, parameter: str, name: str, option: Option) -> inspect.Parameter:
        default = _written(self._default(name), option)
        if default == "" and option.shown is None:
            option = replace(option, shown=NONE_GIVEN)
        return inspect.Parameter(
            parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[_typer_type(self.kind, name, option), _typer_option(name, option)],
        )

    def _default(self, name: str) -> Any:
        if name in self.taken.values:
            return self.taken.values[name]
        field: Field[Any] = self.kind.__dataclass_fields__[name]
        return field.default if field.default_factory is MISSING else field.default_factory()

    def build(self, group: str, values: Mapping[str, Any]) -> Any:
        """The config. Raises: ConfigError or BadParameter for a value of the wrong form, or one that is not allowed."""
        options = self.taken.options(self.kind)
        read = {name: _read(values[f"{group}_{name}"], name, option) for name, option in options.items()}
        said = {name: value for name, value in read.items() if value is not None}
        parts = {name: part.build(f"{group}_{name}", values) for name, part in self._parts().items()}
        return self.kind(**{**self.taken.values, **parts, **said})


def _group_of(hint: Any) -> _Group | None:
    kind, extras = split(hint)
    if not is_dataclass(kind) or not isinstance(kind, type):
        return None
    return _Group(kind, next((each for each in extras if isinstance(each, Taken)), take()))


def flag_of(kind: type, name: str) -> str:
    """The option's first name, as in `--spec-tokens`."""
    return options_of(kind)[name].names(name)[0]


def _typer_option(name: str, option: Option) -> Any:
    has_range = option.form == "plain"
    return typer.Option(
        *option.names(name),
        help=option.help,
        rich_help_panel=option.panel,
        min=option.least if has_range else None,
        max=option.most if has_range else None,
        show_default=True if option.shown is None else option.shown,
        envvar=option.envvar,
    )


def _typer_type(kind: type, name: str, option: Option) -> Any:
    if option.form == "path":
        return Path | None
    if option.form != "plain":
        return str | None
    hint, _ = split(hints_of(kind)[name])
    return list[str] | None if hint == tuple[str, ...] else hint


def _written(default: Any, option: Option) -> Any:
    """A default in the form of the command line; None = typer has no default, and the config's own applies."""
    if default is MISSING or option.form == "plain":
        return None if default == () else default
    if not default:
        return None
    if option.form == "arguments":
        return shlex.join(default)
    return ",".join(map(str, default)) if option.form in ("numbers", "reals", "names", "list") else str(default)


def _read(value: Any, name: str, option: Option) -> Any:
    """The written value as the field's type; None = the config's default."""
    has_bounds = (option.least, option.most) != (None, None)
    if isinstance(value, float) and has_bounds and not math.isfinite(value):
        raise typer.BadParameter(f"a finite number, not {value}", param_hint=option.names(name)[0])
    if value is None or option.form == "plain":
        return tuple(value) if isinstance(value, list) else value
    if option.form == "path":
        return str(value)
    return TEXT_FORMS[option.form](value, option.names(name)[0], option)
