"""The commands that make a link in the kernel: a veth pair, with a netem queue at each end (tc-netem(8)). Pure.

    near, 10.0.0.1 ── netem, `forth` ──►  veth pair  ◄── netem, `back` ── far, 10.0.0.2

Each end has a network namespace of its own, in which nothing else is, so all links have the same names and addresses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from starspec.config.lab import PACKET_BYTES, LabLink, LinkShape
from starspec.errors import ConfigError
from starspec.lab.travel import Way

Command = Sequence[str]
"""A program and its arguments."""

MIN_PACKETS: Final = 1000  # that a netem queue holds by default, on their way and waiting


class End(NamedTuple):
    """One end of a veth pair."""

    device: str
    address: str
    mac: str


NEAR: Final = End("near", "10.0.0.1", "02:00:00:00:00:01")
FAR: Final = End("far", "10.0.0.2", "02:00:00:00:00:02")


def check_netem(link: LabLink, seed: int) -> None:
    """Raises: ConfigError if a seed or `stall_ms` is given: the kernel decides these by itself."""
    if seed:
        raise ConfigError("--netem takes no seed: the kernel draws jitter and losses")
    if link.shape.stall_ms is not None or link.shape_back.stall_ms is not None:
        raise ConfigError("--netem takes no stall_ms: the kernel's TCP decides how long a lost packet stalls")


def pair_command(far_thread_id: int) -> Command:
    """Makes the pair. To be run at the near end. Args: far_thread_id: a thread in the far end's namespace."""
    peer = ("peer", "name", FAR.device, "address", FAR.mac, "netns", str(far_thread_id))
    return ("ip", "link", "add", NEAR.device, "address", NEAR.mac, "type", "veth", *peer)


def end_commands(own: End, other: End, shape: LinkShape) -> list[Command]:
    """Brings one end up. To be run there. Args: shape: of the way to the other end.

    Packets are single segments, or a loss would take 64 KiB at once. The other end is known without asking, since
    questions would take a round trip, and might be lost.
    """
    return [
        ("ip", "link", "set", "dev", own.device, "up", "gso_max_segs", "1"),
        ("ip", "address", "add", f"{own.address}/30", "dev", own.device),
        ("ip", "neighbour", "add", other.address, "lladdr", other.mac, "dev", own.device, "nud", "permanent"),
        shape_command(own, shape),
    ]


def shape_command(own: End, shape: LinkShape) -> Command:
    """Gives the way to the other end this shape, instead of the one that it has."""
    words = ["tc", "qdisc", "replace", "dev", own.device, "root", "netem", "limit", str(_max_packets(shape))]
    words += ["delay", f"{shape.delay_ms:g}ms", f"{shape.jitter_ms:g}ms", "loss", f"{100.0 * shape.loss:g}%"]
    return (*words, "rate", f"{(shape.mbit_s or 0.0) * 1e6:.0f}bit")  # 0 = no limit


def losses_command(own: End) -> Command:
    """Prints JSON with the packets that were lost on the way to the other end, as `drops` of the only queue."""
    return ("tc", "-statistics", "-json", "qdisc", "show", "dev", own.device)


def _max_packets(shape: LinkShape) -> int:
    """Packets that the queue holds: what one connection has on the way, and as much again before the transmitter."""
    return max(MIN_PACKETS, math.ceil(2 * Way(shape).window_bytes / PACKET_BYTES))
