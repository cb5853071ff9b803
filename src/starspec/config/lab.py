"""What `starspec lab` puts between processes: links with the delays and faults of a wide area network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from starspec.config.checks import check_ranges
from starspec.config.network import LOOPBACK, check_host
from starspec.config.option import Option
from starspec.errors import ConfigError

LINK: Final = "Link"
MAX_DELAY_MS: Final = 60_000.0
MAX_PORTS: Final = 256  # of one link
PACKET_BYTES: Final = 1448  # of a TCP segment on Ethernet: 1500 less the headers of IP, of TCP, and its time stamps
MIN_TIMEOUT_MS: Final = 200.0  # Linux retransmits after a round trip and this long at the earliest (TCP_RTO_MIN)

DELAY_MS: Final = Option("Milliseconds that a byte takes in each direction.", LINK, least=0.0, most=MAX_DELAY_MS)
JITTER_MS: Final = Option(
    "Milliseconds by which delays differ from --delay-ms, up and down; bytes stay in order.",
    LINK,
    least=0.0,
    most=MAX_DELAY_MS,
)
MBIT_S: Final = Option(
    "Megabits a second of each direction, which all connections share.", LINK, least=0.001, shown="no limit"
)
LOSS: Final = Option(
    f"Share of packets of {PACKET_BYTES} bytes that is lost; each loss stalls its connection.",
    LINK,
    least=0.0,
    most=0.5,
)
STALL_MS: Final = Option(
    "Milliseconds that a lost packet stalls its connection; one lost again stalls it twice as long.",
    LINK,
    least=0.0,
    most=MAX_DELAY_MS,
    shown="a round trip and 200",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """What one direction of a link does to the bytes that pass it. Raises: ConfigError for impossible values."""

    delay_ms: Annotated[float, DELAY_MS] = 0.0
    jitter_ms: Annotated[float, JITTER_MS] = 0.0
    mbit_s: Annotated[float | None, MBIT_S] = None  # None = no limit
    loss: Annotated[float, LOSS] = 0.0
    stall_ms: Annotated[float | None, STALL_MS] = None  # None = `stall_s`

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.jitter_ms > self.delay_ms:
            raise ConfigError(
                f"jitter_ms must be at most delay_ms, {self.delay_ms:g}, got {self.jitter_ms:g}: nothing comes early"
            )

    @property
    def stall_s(self) -> float:
        """Seconds until a lost packet is sent again: by default TCP's retransmission timeout on this link."""
        return (2.0 * self.delay_ms + MIN_TIMEOUT_MS if self.stall_ms is None else self.stall_ms) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A time in which nothing passes a link. Raises: ConfigError unless it ends after it begins.

    Args:
        start_s, stop_s: since the lab was ready.
        cut: connections are also reset, and new ones refused.
    """

    start_s: float
    stop_s: float
    cut: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.start_s < self.stop_s:
            raise ConfigError(
                f"a partition must end after it begins, not last from {self.start_s:g} to {self.stop_s:g} s"
            )


class Listen(NamedTuple):
    """Where a link accepts connections. Of several ports, each leads to the one as far behind the first of `to`."""

    host: str
    first_port: int  # 0 = any free one
    last_port: int

    @classmethod
    def parse(cls, text: str) -> Listen:
        """Parse 7700, 127.0.0.2:7700 or 127.0.0.2:7700-7764. Raises: ConfigError."""
        where = f"a link listens on '{text}'"
        host, _, ports = text.rpartition(":")
        if not re.fullmatch(r"\d{1,5}(-\d{1,5})?", ports):
            raise ConfigError(f"{where}, which is not of the form PORT, HOST:PORT or HOST:FIRST-LAST")
        first, _, last = ports.partition("-")
        found = cls(host.strip("[]") or LOOPBACK, int(first), int(last or first))
        check_host(found.host, where)
        if not found.first_port <= found.last_port < 65536 or (found.first_port == 0 and last):
            raise ConfigError(f"{where}, and ports must be 1 to 65535, the first one first")
        if found.num_ports > MAX_PORTS:
            raise ConfigError(f"{where}, {found.num_ports} ports; a link has at most {MAX_PORTS}")
        return found

    @property
    def num_ports(self) -> int:
        return self.last_port - self.first_port + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LabLink:
    """One link: clients connect to `listen`, and their connections go on to `to`.

    Args:
        listen: as `Listen.parse` reads it; "0" = any free port of loopback.
        to: tcp://host:port of the server at the other end.
        name: for counters and for changes at run time; "" = `listen`.
        shape: of the way from clients to the server.
        back: of the way back; None = like `shape`.
        partitions: in the order of time.
    Raises: ConfigError if `listen` is malformed or two partitions overlap.
    """

    to: str
    listen: str = "0"
    name: str = ""
    shape: LinkShape = LinkShape()
    back: LinkShape | None = None
    partitions: tuple[Partition, ...] = ()

    def __post_init__(self) -> None:
        Listen.parse(self.listen)
        for earlier, later in zip(self.partitions, self.partitions[1:], strict=False):
            if later.start_s < earlier.stop_s:
                raise ConfigError(f"two partitions of a link overlap or are not in order, at {later.start_s:g} s")

    @property
    def label(self) -> str:
        return self.name or self.listen

    @property
    def shape_back(self) -> LinkShape:
        return self.shape if self.back is None else self.back


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """All links of a lab. Raises: ConfigError if there is none, or if two have one name.

    Args:
        seed: of jitter and losses: the same draws in the same order for the n-th connection of a link.
    """

    links: tuple[LabLink, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.links:
            raise ConfigError("a lab needs at least one link")
        labels = [each.label for each in self.links]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"two links are called '{label}': give each a name of its own")
