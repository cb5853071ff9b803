"""A link whose bytes travel through the kernel's netem, between two ends that are links without a shape of their own.

    client ──► near link ──► veth, netem ──► far link ──► server

Clients and servers stay where they are, in the network of the process. Only what is between the two ends is in
namespaces: TCP with all that it has against losses.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final, Self

from starspec.config.lab import LabLink, LinkShape, Listen
from starspec.lab.link import OpenLink, server_of
from starspec.lab.namespace import Namespace
from starspec.lab.netem import FAR, NEAR, End, check_netem, end_commands, losses_command, pair_command, shape_command
from starspec.lab.travel import MIN_WINDOW_BYTES, Traffic

FIRST_PORT: Final = 1024  # of the far end


class NetemLink:
    """A Link that lets the kernel delay and lose packets. Made by `open`."""

    def __init__(self, near: Namespace, far: Namespace, entry: OpenLink, way_out: OpenLink) -> None:
        self._near, self._far = near, far
        self._entry, self._exit = entry, way_out

    @classmethod
    async def open(cls, config: LabLink, seed: int) -> Self:
        """Args: as of OpenLink.

        Raises: ConfigError, also if the kernel or the rights of this process do not allow it, or if `check_netem`
            refuses.
        """
        check_netem(config, seed)
        num_ports = Listen.parse(config.listen).num_ports
        server_of(config, num_ports)  # what may be wrong is found before anything is open
        async with AsyncExitStack() as stack:
            near = await Namespace.open()
            stack.callback(near.close)
            far = await Namespace.open()
            stack.callback(far.close)
            await near.run(pair_command(far.thread_id))
            for each in end_commands(NEAR, FAR, config.shape):
                await near.run(each)
            for each in end_commands(FAR, NEAR, config.shape_back):
                await far.run(each)
            plain = replace(config, name=config.label, shape=LinkShape(), back=None)
            to_far = replace(plain, to=f"tcp://{FAR.address}:{FIRST_PORT}")
            at_far = replace(plain, listen=f"{FAR.address}:{FIRST_PORT}-{FIRST_PORT + num_ports - 1}")
            entry = await OpenLink.open(to_far, seed, connects=near.socket, max_window_bytes=MIN_WINDOW_BYTES)
            stack.push_async_callback(entry.close)
            way_out = await OpenLink.open(at_far, seed, listens=far.socket, max_window_bytes=MIN_WINDOW_BYTES)
            stack.pop_all()
        return cls(near, far, entry, way_out)

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def endpoint(self) -> str:
        return self._entry.endpoint

    @property
    def num_connections(self) -> int:
        return self._entry.num_connections

    @property
    def num_open(self) -> int:
        return self._entry.num_open

    async def traffic(self) -> tuple[Traffic, Traffic]:
        (forth, _), (_, back) = await self._exit.traffic(), await self._entry.traffic()
        return (
            replace(forth, num_losses=await _losses(self._near, NEAR)),
            replace(back, num_losses=await _losses(self._far, FAR)),
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

    async def reshape(self, shape: LinkShape, back: LinkShape | None = None) -> None:
        await self._near.run(shape_command(NEAR, shape))
        await self._far.run(shape_command(FAR, shape if back is None else back))

    async def close(self) -> None:
        await asyncio.gather(self._entry.close(), self._exit.close())
        for each in (self._near, self._far):
            each.close()


async def _losses(namespace: Namespace, end: End) -> int:
    """Packets that netem lost on the way from this end."""
    [queue] = json.loads(await namespace.run(losses_command(end)))
    return int(queue["drops"])
