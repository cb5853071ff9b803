"""A link whose bytes travel through the kernel's netem, between two ends that are links without a shape of their own.

    client ──► near link ──► veth, netem ──► far link ──► server

Clients and servers stay where they are, in the network of the process. Only what is between the two ends is in
namespaces: TCP with all that it has against losses.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from starspec.config.lab import LabLink, LinkShape, Listen
from starspec.lab.link import OpenLink, server_of
from starspec.lab.namespace import Namespace
from starspec.lab.netem import FAR, NEAR, End, check_netem, end_commands, losses_command, pair_command, shape_command
from starspec.lab.travel import MIN_WINDOW_BYTES, Traffic

FIRST_PORT: Final = 1024  # of the far end


class NetemLink:
    """Has the methods of OpenLink. Some of them wait for `ip` or `tc`, a few milliseconds.

    Args: as of OpenLink.
    Raises: ConfigError, also if the kernel or the rights of this process do not allow it, or if `check_netem` refuses.
    """

    def __init__(self, config: LabLink, seed: int) -> None:
        check_netem(config, seed)
        num_ports = Listen.parse(config.listen).num_ports
        server_of(config, num_ports)  # what may be wrong is found before anything is open
        self.name = config.label
        with ExitStack() as stack:
            self._near = Namespace()
            stack.callback(self._near.close)
            self._far = Namespace()
            stack.callback(self._far.close)
            self._near.run(pair_command(self._far.thread_id))
            for each in end_commands(NEAR, FAR, config.shape):
                self._near.run(each)
            for each in end_commands(FAR, NEAR, config.shape_back):
                self._far.run(each)
            plain = replace(config, name=self.name, shape=LinkShape(), back=None)
            entry = replace(plain, to=f"tcp://{FAR.address}:{FIRST_PORT}")
            way_out = replace(plain, listen=f"{FAR.address}:{FIRST_PORT}-{FIRST_PORT + num_ports - 1}")
            self._entry = OpenLink(entry, seed, connects=self._near.socket, max_window_bytes=MIN_WINDOW_BYTES)
            self._exit = OpenLink(way_out, seed, listens=self._far.socket, max_window_bytes=MIN_WINDOW_BYTES)
            stack.pop_all()

    @property
    def endpoint(self) -> str:
        return self._entry.endpoint

    @property
    def num_connections(self) -> int:
        return self._entry.num_connections

    @property
    def num_open(self) -> int:
        return self._entry.num_open

    def traffic(self) -> tuple[Traffic, Traffic]:
        forth, back = self._exit.traffic()[0], self._entry.traffic()[1]
        return (
            replace(forth, num_losses=_losses(self._near, NEAR)),
            replace(back, num_losses=_losses(self._far, FAR)),
        )

    def partition(self, *, cut: bool = False) -> None:
        for each in (self._entry, self._exit):
            each.partition(cut=cut)

    def heal(self) -> None:
        for each in (self._entry, self._exit):
            each.heal()

    def reset(self) -> None:
        for each in (self._entry, self._exit):
            each.reset()

    def reshape(self, shape: LinkShape, back: LinkShape | None = None) -> None:
        self._near.run(shape_command(NEAR, shape))
        self._far.run(shape_command(FAR, shape if back is None else back))

    async def close(self) -> None:
        await asyncio.gather(self._entry.close(), self._exit.close())
        for each in (self._near, self._far):
            each.close()


def _losses(namespace: Namespace, end: End) -> int:
    """Packets that netem lost on the way from this end."""
    [queue] = json.loads(namespace.run(losses_command(end)))
    return int(queue["drops"])
