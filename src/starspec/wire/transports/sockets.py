"""ZeroMQ sockets with a bound on every queue, frame and silence, and with errors that say what to do."""

from __future__ import annotations

import errno
import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import zmq
from zmq.utils.monitor import recv_monitor_message

from starspec.config.network import check_host
from starspec.errors import ConfigError
from starspec.wire.codec import MAX_MESSAGES

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]
S = TypeVar("S", bound=zmq.Socket[Any])

HIGH_WATER: Final = 512  # multiparts queued to be sent by a DEALER
SERVER_HIGH_WATER: Final = 16384  # frames queued for one peer of a ROUTER; `unsent.py` bounds their bytes
MAX_MULTIPART_BYTES: Final = 2 * 2**20  # that an honest peer sends at once, if it has more than one frame
HEARTBEAT_MS: Final = 500  # ZMTP ping of an idle connection
HEARTBEAT_TIMEOUT_MS: Final = 2000  # a connection silent for longer is dropped: a stopped or unplugged peer
HANDSHAKE_MS: Final = 6000  # four round trips with keys; also the wait for a peer that accepts and then sends nothing
# A connection that is not made so long after it broke is one that ZeroMQ does not make again, since what came was not
# ZMTP, or a frame beyond the limit. A socket of ours then starts anew.
GIVEN_UP_S: Final = HANDSHAKE_MS / 1000
NETWORK_BITS: Final = 64  # of an IPv6 address that tell one owner from another
KEEPALIVE: Final = (10, 5, 3)  # the kernel asks a machine that was silent for 10 s, three times in 5 s: is it there?
REFUSED_KEY_RETRY_S: Final = 2.0  # until a client tries again whose key was refused
ZAP_DOMAIN: Final = "starspec:"  # of a server, and the name of the only key that may connect, if there is one
GOODBYE_MS: Final = 200  # at most, for the last messages to leave when a socket closes

HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]")  # a name, IPv4, [IPv6]

LOST: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def make_socket(context: Context, kind: int, max_frame_bytes: int) -> Socket:
    """A ROUTER or DEALER socket with `set_limits`."""
    return set_limits(context.socket(kind), max_frame_bytes)


def set_limits(socket: S, max_frame_bytes: int) -> S:
    """Set limits so that a ROUTER or DEALER socket never blocks, queues or waits without bound.

    A queue of what arrived has no bound in multiparts: `unread.py` bounds its bytes. At such a bound libzmq 4.3.5 stops
    to read the connection. If that then breaks, and a heartbeat is due or waits to be answered, it aborts the process
    (libzmq issue 4364; docs/adr/039-what-arrives-is-counted-in-bytes.md).

    Only DEALERs send heartbeats, and each tells the ROUTER its timeout.

    Args:
        max_frame_bytes: a peer that sends a longer frame is disconnected before the frame is read.
    Returns: the socket.
    """
    socket.linger = 0
    socket.rcvhwm = 0
    socket.maxmsgsize = max_frame_bytes
    socket.handshake_ivl = HANDSHAKE_MS
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = KEEPALIVE
    if socket.type == zmq.ROUTER:
        socket.sndhwm = SERVER_HIGH_WATER
        socket.zap_domain = ZAP_DOMAIN.encode()  # the context's Doorkeeper is asked, if there is one
        socket.router_mandatory = 1  # sending to a peer that is gone fails instead of vanishing
    else:
        socket.sndhwm = HIGH_WATER
        socket.heartbeat_ivl = HEARTBEAT_MS
        socket.heartbeat_timeout = socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS
        socket.immediate = 1  # queue messages only for connections that exist
    return socket


def bind(socket: Socket, host: str, port: int, what: str) -> int:
    """Listen.

    Args:
        port: 0 = any free one.
        what: who listens, for the error message, such as "the hub".
    Returns: the port.
    Raises: ConfigError that says what to do if the port is taken or the interface does not exist.
    Effects: `number_peers`, if it is a ROUTER.
    """
    address = "127.0.0.1" if host == "localhost" else host
    if ":" in address:
        socket.ipv6 = True
        address = f"[{address.strip('[]')}]"
    try:
        socket.bind(f"tcp://{address}:{port or '*'}")
    except zmq.ZMQError as error:
        raise ConfigError(_why_not_bound(error, host, port, what)) from error
    if socket.type == zmq.ROUTER:
        number_peers(socket)
    return port_of(socket)


def number_peers(socket: Socket) -> None:
    """Make a ROUTER that is bound know each peer by a number of its own, whatever name the peer claims.

    libzmq 4.3.5 aborts its process if a peer claims as its name the number that another one gets.
    A ROUTER reads no names if it is set to carry raw bytes. A listener that exists by then still speaks ZMTP, because
    it took its settings when it was bound. Such a ROUTER sends single frames only: no multiparts. `name_of` tells what
    a peer calls itself.
    """
    socket.router_raw = True


def name_of(frame: zmq.Frame) -> bytes:
    """What the peer that sent this calls itself, up to the first zero byte; empty if it has no name, or an odd one."""
    try:
        name: Any = frame.get("Identity")
    except (zmq.ZMQError, UnicodeDecodeError):
        return b""
    return str(name).encode()


def receive_at_most(socket: Socket, most: int) -> tuple[zmq.Frame, list[zmq.Frame], int]:
    """The next multipart of a ROUTER, without waiting.

    Args:
        most: frames. What is beyond them is read and dropped: to read one takes half a microsecond.
    Returns: the sender; the frames; how many more it had.
    Raises: zmq.Again if nothing has arrived.
    """
    peer = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [socket.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more and len(frames) < most:
        frames.append(socket.recv(zmq.NOBLOCK, copy=False))
    num_beyond, has_more = 0, frames[-1].more
    while has_more:
        has_more = socket.recv(zmq.NOBLOCK, copy=False).more
        num_beyond += 1
    return peer, frames, num_beyond


def port_of(socket: Socket) -> int:
    """The port to which a socket was bound."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return int(endpoint.rstrip(b"\0").rsplit(b":", 1)[1])


def multiparts(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The frames in multiparts of at most MAX_MESSAGES frames and MAX_MULTIPART_BYTES, unless a frame is longer."""
    start = num_bytes = 0
    for stop, frame in enumerate(frames):
        if stop > start and (stop - start == MAX_MESSAGES or num_bytes + len(frame) > MAX_MULTIPART_BYTES):
            yield frames[start:stop]
            start, num_bytes = stop, 0
        num_bytes += len(frame)
    if start < len(frames):
        yield frames[start:]


def check_free(host: str, port: int, what: str) -> None:
    """Check that a port is free, before a long start such as loading a model.

    Args: as `bind`.
    Raises: as `bind`.
    """
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        bind(socket, host, port, what)


def check_any_free(host: str, ports: Sequence[int], what: str, why: str) -> None:
    """Check that one of several ports is free.

    Args: host, what: as `bind`; why: they are needed, for the sentence.
    Raises: ConfigError that says what is wrong with the last one.
    """
    problem = "the hub's own port is the only one"
    with zmq.Context() as context:
        for port in ports:
            try:
                with context.socket(zmq.ROUTER) as socket:
                    bind(socket, host, port, what)
                return
            except ConfigError as error:
                problem = str(error)
    raise ConfigError(f"{why}, and {problem}")


def _why_not_bound(error: zmq.ZMQError, host: str, port: int, what: str) -> str:
    if error.errno == errno.EADDRINUSE:
        in_use = "the port is in use; stop the process that listens there or choose another"
        return f"{what} cannot listen on {host}:{port}: {in_use}"
    if error.errno == errno.EACCES:
        return f"{what} may not listen on {host}:{port}: choose a port above 1023"
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV, errno.EINVAL):
        return f"{what} cannot listen on {host}: this machine has no such address"
    return f"{what} cannot listen on {host}:{port}: {error.strerror}"


def host_of(endpoint: str, what: str) -> str:
    """The host in tcp://host:port. Raises: ConfigError if ZeroMQ would refuse the endpoint."""
    scheme, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if scheme != "tcp" or not (port.isascii() and port.isdigit()) or not HOST.fullmatch(host):
        raise ConfigError(f"{what} is at '{endpoint}', which is not of the form tcp://host:port")
    if not 0 < int(port.lstrip("0")[:6] or 0) < 65536:  # Python reads no number of 5000 digits
        raise ConfigError(f"{what} is at '{endpoint}', and a port must be 1 to 65535")
    check_host(host, f"{what} is at '{endpoint}'")
    return host


def network_of(address: str) -> str:
    """Where an address is, for what the owners of addresses share: an IPv6 network holds addresses without number."""
    try:
        host = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    return str(host.ipv4_mapped or ipaddress.ip_network((host, NETWORK_BITS), strict=False))


def endpoint_at(host: str, port: int) -> str:
    """The endpoint tcp://host:port, with an IPv6 address in brackets."""
    return f"tcp://[{host.strip('[]')}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def connect(socket: zmq.Socket[Any], endpoint: str) -> None:
    """Start to connect. Never waits."""
    if "[" in endpoint:
        socket.ipv6 = True
    socket.connect(endpoint)


def events_of(monitor: Socket) -> Iterator[tuple[int, int]]:
    """(event, value) pairs that a monitor has sent; never waits."""
    while monitor.poll(0):
        message = recv_monitor_message(monitor)
        yield message["event"], message["value"]


class SocketMonitor:
    """Monitors the connection events of one socket, which may be an asyncio one.

    Raises: ZMQError if the process has no socket left; the monitored socket is closed then.
    """

    def __init__(self, socket: zmq.Socket[Any], events: int) -> None:
        self._monitored = socket
        name = f"inproc://monitor-{socket.FD}"
        try:
            socket.monitor(name, events)
            self.socket: Socket = zmq.Context.shadow(socket.context).socket(zmq.PAIR)
            self.socket.connect(name)
        except zmq.ZMQError:
            socket.close()
            raise

    def events(self) -> Iterator[tuple[int, int]]:
        """(event, value) pairs since the last call; never waits."""
        return events_of(self.socket)

    def close(self) -> None:
        """Close the monitored socket and the monitor. Call this instead of closing the socket."""
        self.stop()
        self._monitored.close()

    def stop(self) -> None:
        """Monitor no more. Call this before another one closes the socket."""
        self._monitored.disable_monitor()
        self.socket.close(linger=0)
