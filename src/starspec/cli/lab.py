"""`starspec lab`: links of a wide area network between processes of this machine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from starspec.cli.binder import bound
from starspec.cli.files import check_file
from starspec.cli.measuring import show
from starspec.cli.output import check_output
from starspec.cli.process import stop_on_signal
from starspec.config.lab import (
    DELAY_MS,
    JITTER_MS,
    LINK,
    LOSS,
    MBIT_S,
    STALL_MS,
    LabConfig,
    LabLink,
    LinkShape,
    Partition,
)
from starspec.config.option import NETWORK, NONE_GIVEN, Option
from starspec.errors import ConfigError
from starspec.harness.table import Column, Table
from starspec.lab.file import PRESETS, read_lab, shapes_of
from starspec.lab.lab import Lab, LinkTraffic, precise_event_loop
from starspec.output_files import write_whole
from starspec.quoting import harmless

OR_PRESET: Final = "0, or the preset's"
COLUMNS: Final = (
    Column("link", "name"),
    Column("connections", "num_connections"),
    Column("MB to the server", lambda row: row.forth.num_bytes / 1e6, ".3f"),
    Column("MB back", lambda row: row.back.num_bytes / 1e6, ".3f"),
    Column("packets lost", lambda row: row.forth.num_losses + row.back.num_losses),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeOptions:
    """What of a `LinkShape` the command line says; None = not said."""

    delay_ms: Annotated[float | None, replace(DELAY_MS, shown=OR_PRESET)] = None
    jitter_ms: Annotated[float | None, replace(JITTER_MS, shown=OR_PRESET)] = None
    mbit_s: Annotated[float | None, replace(MBIT_S, shown="no limit, or the preset's")] = None
    loss: Annotated[float | None, replace(LOSS, shown=OR_PRESET)] = None
    stall_ms: Annotated[float | None, STALL_MS] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """The links that the command line names, and what they have in common."""

    link: Annotated[
        tuple[str, ...],
        Option(
            "A link, LISTEN=tcp://HOST:PORT; LISTEN is PORT, HOST:PORT or HOST:FIRST-LAST. May be repeated.",
            NETWORK,
            shown="those of FILE",
        ),
    ] = ()
    preset: Annotated[str | None, Option(f"Numbers of a usual link: {', '.join(PRESETS)}.", LINK, shown=NONE_GIVEN)] = (
        None
    )
    partition: Annotated[
        tuple[str, ...],
        Option(
            "Seconds from START to STOP, as 10-15, in which nothing passes. May be repeated.", LINK, shown=NONE_GIVEN
        ),
    ] = ()
    cut: Annotated[
        tuple[str, ...],
        Option("The same as --partition, with connections reset. May be repeated.", LINK, shown=NONE_GIVEN),
    ] = ()
    seed: Annotated[int | None, Option("Seed of jitter and losses.", LINK, least=0, shown="0, or that of FILE")] = None
    netem: Annotated[
        bool,
        Option("Let the kernel's netem delay and lose packets, between namespaces. Needs root.", LINK, ("--netem",)),
    ] = False
    insecure: Annotated[
        bool, Option("Allow to listen on addresses that are not loopback.", NETWORK, ("--insecure",))
    ] = False


@bound
def lab(
    links: LinkOptions,
    shape: ShapeOptions,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file that describes the links, instead of --link.", metavar="FILE", show_default=NONE_GIVEN
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            callback=check_file,
            help="Save what has passed each link here, at the end.",
            show_default=NONE_GIVEN,
            rich_help_panel=NETWORK,
        ),
    ] = None,
) -> None:
    """Put delay, jitter, limits, losses and partitions between processes: a WAN in a box.

    Clients connect to the lab, and the lab to their server. What passed each link is printed at the end.
    """
    config = _config(file, links, shape)
    lab = Lab(*config.links, seed=config.seed, is_insecure=links.insecure, by_netem=links.netem)
    check_output()
    traffic = _serve(lab, config, by_netem=links.netem)
    show([Table("What has passed", COLUMNS, traffic)])
    if json_file is not None:
        write_whole(json_file, msgspec.json.format(msgspec.json.encode(traffic), indent=2) + b"\n")


def _config(file: Path | None, links: LinkOptions, shape: ShapeOptions) -> LabConfig:
    """Raises: ConfigError if there are no links, or if a file and options both describe them."""
    if file is not None:
        own = [name for name, value in {**asdict(links), **asdict(shape)}.items() if value not in (None, (), False)]
        beside = [name for name in own if name not in ("seed", "netem", "insecure")]
        if beside:
            raise ConfigError(f"FILE describes all links: write {beside[0]} there, or give --link instead of FILE")
        found = read_lab(file)
        return found if links.seed is None else replace(found, seed=links.seed)
    if not links.link:
        raise ConfigError("a lab needs links: give FILE, or --link LISTEN=tcp://HOST:PORT")
    both = shapes_of(links.preset, asdict(shape), {}, "the link")
    made = [_link(each) for each in links.link]
    partitions = _partitions(links)
    return LabConfig(
        links=tuple(replace(each, shape=both.forth, back=both.back, partitions=partitions) for each in made),
        seed=links.seed or 0,
    )


def _link(text: str) -> LabLink:
    listen, sign, to = text.partition("=")
    if not sign:
        raise ConfigError(f"--link must be LISTEN=tcp://HOST:PORT, as in 7700=tcp://127.0.0.1:7701, not '{text}'")
    return LabLink(name=listen, listen=listen, to=to)


def _partitions(links: LinkOptions) -> tuple[Partition, ...]:
    """Raises: ConfigError that names the option."""
    found = [_partition(each, "--partition", is_cut=False) for each in links.partition]
    found += [_partition(each, "--cut", is_cut=True) for each in links.cut]
    return tuple(sorted(found, key=lambda each: each.start_s))


def _partition(text: str, option: str, *, is_cut: bool) -> Partition:
    start, _, stop = text.partition("-")
    try:
        start_s, stop_s = float(start), float(stop)
    except ValueError as error:
        raise ConfigError(f"{option} must be START-STOP in seconds, as in 10-15, not '{text}'") from error
    return Partition(start_s=start_s, stop_s=stop_s, cut=is_cut)


def _serve(lab: Lab, config: LabConfig, *, by_netem: bool) -> Sequence[LinkTraffic]:
    """Run the lab until SIGINT or SIGTERM. Returns: what has passed. Raises: as Lab."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)

    async def serve() -> Sequence[LinkTraffic]:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def stop() -> None:
            loop.call_soon_threadsafe(ended.set)

        stop_on_signal(stop, then=signal.SIG_DFL)
        async with lab:
            for each in config.links:
                described = _described(each, lab.link(each.label).endpoint) + (", by netem" if by_netem else "")
                console.print(harmless(f"lab: {described}"), soft_wrap=True)
            first = lab.link(config.links[0].label).endpoint
            console.print(f"lab: ready at {first}, Ctrl-C stops it")
            await ended.wait()
            return await lab.traffic()

    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(serve())


def _described(config: LabLink, endpoint: str) -> str:
    """A link in words, as `tcp://127.0.0.1:7700 leads to tcp://127.0.0.1:7701: 40 ms each way`."""
    forth, back = _words(config.shape), _words(config.shape_back)
    ways = f"{forth} each way" if forth == back else f"{forth}; back {back}"
    return f"{endpoint} leads to {config.to}: {ways}"


def _words(shape: LinkShape) -> str:
    """As `40 ms ± 2 ms, 10 Mbit/s, 0.1% lost`."""
    jitter = f" ± {shape.jitter_ms:g} ms" if shape.jitter_ms else ""
    rate = "" if shape.mbit_s is None else f", {shape.mbit_s:g} Mbit/s"
    loss = f", {100 * shape.loss:g}% lost" if shape.loss else ""
    return f"{shape.delay_ms:g} ms{jitter}{rate}{loss}"
