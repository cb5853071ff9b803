"""`starspec top`: the star behind a running gateway, in the terminal."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from starspec.cli.gateway_client import DEFAULT_URL, ApiKey, GatewayClient, GatewayUrl
from starspec.config.option import PROCESS
from starspec.errors import StarspecError
from starspec.quoting import harmless

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from starspec.observe.view import StarView

NUM_EVENTS: Final = 5
LINE_INTERVAL_S: Final = 10.0  # between two lines where there is no terminal


def top(
    url: GatewayUrl = DEFAULT_URL,
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once and end.", rich_help_panel=PROCESS)
    ] = False,
    api_key: ApiKey = None,
) -> None:
    """Show the star behind a running gateway: what each target and the hub do now, and what happened last.

    Ctrl-C ends it. Where there is no terminal, it prints a line every ten seconds.
    """
    from rich.console import Console  # noqa: PLC0415

    client, console = GatewayClient(url, api_key), Console(highlight=False)
    if once:
        console.print(table_of(next(client.views()), client.url))
        return
    with suppress(KeyboardInterrupt):
        if console.is_terminal:
            _watch(client, console)
        else:
            _print_lines(client)
        raise StarspecError(f"the gateway at {client.url} has stopped")


def _watch(client: GatewayClient, console: Console) -> None:
    from rich.live import Live  # noqa: PLC0415

    with Live(console=console, auto_refresh=False, screen=False) as live:
        for view in client.views():
            live.update(table_of(view, client.url), refresh=True)


def _print_lines(client: GatewayClient) -> None:
    from starspec.observe.table import star_line  # noqa: PLC0415
    from starspec.observe.view import snapshot_of  # noqa: PLC0415

    printed_s = float("-inf")
    for view in client.views():
        if time.monotonic() - printed_s >= LINE_INTERVAL_S:
            printed_s = time.monotonic()
            print(star_line(snapshot_of(view), *_states(view)), flush=True)


def table_of(view: StarView, url: str) -> RenderableType:
    """The table of `starspec up`, and the last events."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from starspec.observe.table import star_table  # noqa: PLC0415
    from starspec.observe.view import snapshot_of  # noqa: PLC0415

    table = star_table(snapshot_of(view), f"{', '.join(view.models)} at {url}", *_states(view))
    events = [Text(harmless(f"{_time_of_day(each.time_s)}  {each.text}")) for each in view.events[:NUM_EVENTS]]
    return Group(table, *events)


def _states(view: StarView) -> tuple[dict[str, str], str | None]:
    """The states of the targets by their names, and of the hub, as tables take them."""
    return {each.name: each.state for each in view.targets}, view.hubs[0].state if view.hubs else None


def _time_of_day(time_s: float) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(time_s))
    except (ValueError, OverflowError, OSError):  # of no year that has a calendar
        return "--:--:--"
