"""Links as users write them: a TOML file, or a preset with values of one's own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from starspec.config.checks import build, one_of
from starspec.config.lab import LabConfig, LabLink, LinkShape, Partition
from starspec.errors import ConfigError

SHAPE_KEYS: Final = tuple(each.name for each in fields(LinkShape))


class BothWays(NamedTuple):
    """The shapes of a link: from clients to the server, and back."""

    forth: LinkShape = LinkShape()
    back: LinkShape = LinkShape()


PRESETS: Final[Mapping[str, BothWays]] = {  # docs/lab.md says where the numbers come from
    "home-dsl": BothWays(
        LinkShape(delay_ms=15.0, jitter_ms=3.0, mbit_s=10.0, loss=0.001),
        LinkShape(delay_ms=15.0, jitter_ms=3.0, mbit_s=50.0, loss=0.001),
    ),
    "metro": BothWays(*[LinkShape(delay_ms=0.7, jitter_ms=0.1, mbit_s=1000.0)] * 2),
    "continents": BothWays(*[LinkShape(delay_ms=45.0, jitter_ms=1.0, mbit_s=100.0, loss=0.0001)] * 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileLink:
    """The keys of one `[[link]]`. Those of `LinkShape` are None if they are not given."""

    to: str
    listen: str | int
    name: str = ""
    preset: str | None = None
    delay_ms: float | None = None
    jitter_ms: float | None = None
    mbit_s: float | None = None
    loss: float | None = None
    stall_ms: float | None = None
    back: dict[str, Any] = field(default_factory=dict)
    partitions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The keys at the top of a file."""

    link: tuple[dict[str, Any], ...] = ()
    seed: int = 0


def shapes_of(preset: str | None, own: Mapping[str, Any], own_back: Mapping[str, Any], where: str) -> BothWays:
    """The shapes that a preset, or none, and values of one's own make.

    Args:
        own: keys of `LinkShape` for both directions; None = not given.
        own_back: the same, for the way back alone.
        where: what has these values, for the error's sentence.
    Raises: ConfigError for an unknown preset or key, a value out of range, or a `stall_ms` without a `loss`: nothing
        stalls then.
    """
    if preset is not None:
        one_of(f"{where}: preset", preset, tuple(PRESETS))
    given = {key: value for key, value in own.items() if value is not None}
    forth, back = PRESETS[preset] if preset is not None else BothWays()
    found = BothWays(
        build(LinkShape, {**_values(forth), **given}, where),
        build(LinkShape, {**_values(back), **given, **own_back}, f"{where}: back"),
    )
    said, meant = {**given, **own_back}, found if "stall_ms" in given else (found.back,)
    if "stall_ms" in said and "loss" not in said and not any(each.loss for each in meant):
        raise ConfigError(f"{where}: stall_ms is how long a lost packet stalls, and none is lost: give loss, too")
    return found


def _values(shape: LinkShape) -> dict[str, Any]:
    return {key: getattr(shape, key) for key in SHAPE_KEYS}


def read_lab(path: Path) -> LabConfig:
    """The links in a TOML file. Raises: ConfigError that says what is wrong, and in which link."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ConfigError(f"'{path}' cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"'{path}' is not valid TOML: {str(error)[:1].lower()}{str(error)[1:]}") from error
    file = build(_File, content, f"'{path}'")
    return LabConfig(
        links=tuple(_link(each, f"link {index}") for index, each in enumerate(file.link, 1)), seed=file.seed
    )


def _link(values: Mapping[str, Any], where: str) -> LabLink:
    found = build(_FileLink, values, where)
    forth, back = shapes_of(found.preset, {key: getattr(found, key) for key in SHAPE_KEYS}, found.back, where)
    partitions = tuple(build(Partition, each, f"{where}: partitions") for each in found.partitions)
    try:
        return LabLink(
            to=found.to, listen=str(found.listen), name=found.name, shape=forth, back=back, partitions=partitions
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
