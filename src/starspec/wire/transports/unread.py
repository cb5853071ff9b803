"""How much one connection may make its reader hold, and how many connections there may be.

ZeroMQ queues whatever arrives, and gathers a multipart before it hands it over, however many frames it has. So this
module asks the kernel what came over a connection, hears from the reader what was read of that, and ends a connection
if the rest is too much (`unread_guard.py` lets it look). Only what leads to the expected port counts.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Final, NamedTuple

import zmq

from starspec.wire.transports.sockets import network_of
from starspec.wire.transports.tcp_state import bytes_received, bytes_waiting, copy_of, reset

MAX_UNREAD_BYTES: Final = 80 * 2**20  # the longest multipart, of a stage, and some more
NEWCOMER_BYTES: Final = 64 * 1024  # before its first message is read: honest peers ask, and wait for the answer
MOVED_BYTES: Final = 4096  # of a message that is not whole: more than heartbeats bring while a slow link is waited for
HEARTBEAT_BYTES: Final = 4096  # and no more than these between two messages that are read
MAX_FRAMES: Final = 65536  # that wait behind NUM_TELLING messages of the same kind: ZeroMQ takes 64 bytes for each
NUM_TELLING: Final = 256
BEAT_BYTES: Final = 128  # that come between two looks may be heartbeats: ten to fifty bytes each
SETTLED_LOOKS: Final = 20  # a connection that is heard after so many is not new any more
MAX_BARRED: Final = 4096  # peers that are remembered
SHORT_FRAME, LONG_FRAME = 2, 9  # bytes that ZMTP adds to a frame of at most LONGEST_SHORT, and to a longer one
LONGEST_SHORT: Final = 255
CURVE_FRAME: Final = 33  # bytes that CURVE adds to each frame
BEGUN: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class Limits(NamedTuple):
    """Bytes that may be unread of one connection; None = MAX_UNREAD_BYTES."""

    whole: int | None = None
    newcomer: int | None = NEWCOMER_BYTES  # until its first message has been read

    def of(self, connection: _Connection) -> int:
        """What this connection may have unread."""
        whole = MAX_UNREAD_BYTES if self.whole is None else self.whole
        if connection.has_spoken or self.newcomer is None:
            return whole
        return min(self.newcomer + connection.num_beaten, whole)


LARGE: Final = Limits(newcomer=None)


class _Connection:
    """One connection of a socket.

    Args:
        owner: whose it is, where owners share the places of a server.
        look: the number of the look before which it began.
    """

    def __init__(self, owner: str, look: int) -> None:
        self.owner = owner
        self.began = look
        self.came = 0  # bytes, at the last look
        self.came_before = 0  # at the look before that
        self.read = 0  # of these, as far as the reader has told
        self.moved = 0  # what had come when it last moved
        self.num_beaten = 0  # bytes that came so few at a time that they may be heartbeats
        self.has_spoken = False  # a message was read
        self.has_settled = False  # a message came, or anything after the first second
        self.front = _Heard()  # what was read of it since little was unread

    def grow(self, came: int, look: int) -> None:
        """So much has come over it by now."""
        if came - self.came <= BEAT_BYTES:
            self.num_beaten += came - self.came
        self.came_before, self.came = self.came, came
        self.has_settled |= look - self.began > SETTLED_LOOKS

    def moves(self) -> bool:
        """Whether MOVED_BYTES more have come since it last did so, or since its last message was read."""
        if self.came - self.moved < MOVED_BYTES:
            return False
        self.moved = self.came
        return True

    def hear(self, heard: _Heard) -> None:
        """Messages of it were read. If none waited then, heartbeats are read that had come at the look before."""
        read = self.read + heard.num_bytes
        most = max(read, min(read + HEARTBEAT_BYTES, self.came_before)) if heard.is_all else read
        self.read = min(self.came, most)
        if self.came - self.read <= NEWCOMER_BYTES:
            self.front = _Heard()
        else:
            self.front.add(heard)
        self.moved = self.came
        self.has_spoken = self.has_settled = True
        self.owner = heard.owner or self.owner

    def has_many(self) -> bool:
        """Whether very many short frames wait, if those behind are as those that were read before them."""
        front = self.front
        is_telling = front.num_messages >= NUM_TELLING
        return is_telling and (self.came - self.read) * front.num_frames > MAX_FRAMES * front.num_bytes


class _Heard:
    """What was read of one connection, such as since the last look."""

    def __init__(self) -> None:
        self.num_messages = self.num_frames = 0
        self.num_bytes = 0  # on the wire
        self.owner = ""  # whose the last message was, if that is known
        self.is_all = False  # nothing waited after the last message

    def note(self, num_frames: int, num_bytes: int, owner: str) -> None:
        """One message more was read."""
        self.num_messages += 1
        self.num_frames += num_frames
        self.num_bytes += num_bytes
        self.owner, self.is_all = owner, False

    def note_empty(self) -> None:
        """Nothing waited behind it."""
        self.is_all = True

    def add(self, other: _Heard) -> None:
        """That was read, too."""
        self.num_messages += other.num_messages
        self.num_frames += other.num_frames
        self.num_bytes += other.num_bytes


class _Reading:
    """What a socket's reader tells. It may be another thread than the one that looks: each step is atomic."""

    def __init__(self) -> None:
        self._notes: deque[tuple[int, int, int, str] | None] = deque()  # None: nothing waited
        self._is_empty = True  # the last note says so

    def note(self, fd: int, num_frames: int, num_bytes: int, owner: str) -> None:
        """A message was read."""
        self._is_empty = False
        self._notes.append((fd, num_frames, num_bytes, owner))

    def note_empty(self) -> None:
        """Nothing waits to be read."""
        if not self._is_empty:
            self._is_empty = True
            self._notes.append(None)

    def take(self) -> dict[int, _Heard]:
        """What was told since the last call, by descriptor."""
        heard: dict[int, _Heard] = {}
        for _ in range(len(self._notes)):
            note = self._notes.popleft()
            if note is None:
                for each in heard.values():
                    each.note_empty()
            else:
                fd, num_frames, num_bytes, owner = note
                heard.setdefault(fd, _Heard()).note(num_frames, num_bytes, owner)
        return heard


class Unread:
    """The connections of one socket, and what has come over each and is not read.

    Args:
        port: where the socket listens, or of the peer to which it connects.
        is_encrypted: the socket uses CURVE.
        most: connections at once. One more ends another, of the owner with the most: the one that was silent for
            longest, first among those that have said nothing since they began.
        limits: of each.
        shut: told the owner of a connection that is ended, unless that may be due to heartbeats alone.
    """

    def __init__(
        self,
        port: int,
        *,
        is_encrypted: bool,
        is_client: bool = False,
        most: float = math.inf,
        limits: Limits = LARGE,
        shut: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._port = port
        self._shut = shut
        self._num_added = CURVE_FRAME if is_encrypted else 0
        self._is_client = is_client
        self._most = most
        self._limits = limits
        self._connections: OrderedDict[int, _Connection] = OrderedDict()  # by descriptor; the one heard last at the end
        self._barred: OrderedDict[bytes, None] = OrderedDict()
        self._reading = _Reading()
        self._num_looks = 0
        self.num_moves = 0  # times that MOVED_BYTES more had come of a later message that was not whole
        self._num_crowded_out = 0  # since the last look

    def note(self, event: int, value: int) -> None:
        """The socket's monitor tells this: connections that begin are watched until they end."""
        if event & BEGUN:
            self._connections.pop(value, None)
            with contextlib.suppress(OSError), copy_of(value) as connection:
                if self._is_ours(connection):
                    self._begin(value, connection)
        elif event == zmq.EVENT_DISCONNECTED:
            self._connections.pop(value, None)

    def hear(self, first: zmq.Frame, rest: Sequence[Sized] = (), owner: str = "") -> int:
        """A whole message was read, of these frames. Callable from any thread.

        Args:
            owner: whose connection it is, if not its address's.
        Returns: the descriptor.
        """
        fd = int(first.get(zmq.SRCFD))
        self._reading.note(fd, 1 + len(rest), self._on_wire(first) + sum(map(self._on_wire, rest)), owner)
        return fd

    def note_empty(self) -> None:
        """Nothing that came waits to be read, but for parts of messages. By the thread that reads."""
        self._reading.note_empty()

    def cut(self, fd: int) -> None:
        """End this connection, if it is one. Callable from any thread."""
        with contextlib.suppress(OSError), copy_of(fd) as connection:
            if self._is_ours(connection):
                reset(connection)

    def is_barred(self, peer: bytes) -> bool:
        """Whether the connection of this peer was ended by `bar`."""
        return peer in self._barred

    def bar(self, peer: bytes, frame: zmq.Frame) -> bool:
        """End the connection of this peer, over which the frame came. By the thread that reads the socket.

        Once only: of what came before, more is read later, when its descriptor may be another one's. For the same
        reason, no connection of another address is ended.

        Returns: whether this is the first time.
        """
        is_new = peer not in self._barred
        self._barred[peer] = None
        if len(self._barred) > MAX_BARRED:
            self._barred.popitem(last=False)
        if is_new:
            with contextlib.suppress(OSError), copy_of(int(frame.get(zmq.SRCFD))) as connection:
                if self._is_ours(connection) and connection.getpeername()[0] == frame.get("Peer-Address"):
                    reset(connection)
        return is_new

    def look(self) -> int:
        """End the connections with too much unread. Never waits.

        Returns: how many were ended, with those that had to give way since the last look.
        """
        heard = self._reading.take()
        num_cut, self._num_crowded_out = self._num_crowded_out, 0
        self._num_looks += 1
        for fd, connection in list(self._connections.items()):
            try:
                num_cut += self._is_cut(fd, connection, heard)
            except OSError:  # it is closed, or no connection any more
                self._connections.pop(fd, None)
        return num_cut

    def _begin(self, fd: int, connection: socket.socket) -> None:
        self._connections[fd] = _Connection(network_of(connection.getpeername()[0]), self._num_looks)
        if len(self._connections) > self._most:
            given_way = self._who_gives_way(fd)
            del self._connections[given_way]
            self.cut(given_way)
            self._num_crowded_out += 1

    def _who_gives_way(self, newcomer: int) -> int:
        num_of = Counter(each.owner for each in self._connections.values())
        [(owner, _)] = num_of.most_common(1)
        able = [fd for fd, each in self._connections.items() if each.owner == owner and fd != newcomer]
        return next((fd for fd in able if not self._connections[fd].has_settled), able[0] if able else newcomer)

    def _is_cut(self, fd: int, connection: _Connection, heard: Mapping[int, _Heard]) -> bool:
        """Look at one connection. Returns: whether it was ended. Raises: OSError if it is not a connection any more."""
        came = bytes_received(fd)
        if came == connection.came and fd not in heard:
            return False
        connection.grow(came, self._num_looks)
        if connection.has_spoken:  # whoever has not may be a stranger
            self.num_moves += connection.moves()
        self._connections.move_to_end(fd)
        if fd in heard:
            connection.hear(heard[fd])
        if came - connection.read <= self._limits.of(connection) and not connection.has_many():
            return False
        with copy_of(fd) as copy:
            return self._is_reset(copy, connection)

    def _is_reset(self, copy: socket.socket, connection: _Connection) -> bool:
        """End a connection over which too much came, if that is not still with the kernel. Returns: whether it did."""
        num_unread = connection.came - bytes_waiting(copy) - connection.read
        is_cut = self._is_ours(copy) and (num_unread > self._limits.of(connection) or connection.has_many())
        if is_cut:
            reset(copy)
            if connection.has_spoken or not connection.has_settled:  # else heartbeats may have added up
                self._shut(connection.owner)
        return is_cut

    def _on_wire(self, frame: Sized) -> int:
        num_bytes = len(frame) + self._num_added
        return num_bytes + (SHORT_FRAME if num_bytes <= LONGEST_SHORT else LONG_FRAME)

    def _is_ours(self, connection: socket.socket) -> bool:
        if connection.family not in FAMILIES:
            return False
        address = connection.getpeername() if self._is_client else connection.getsockname()
        return bool(address[1] == self._port)
