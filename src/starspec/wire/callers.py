"""Who may connect to a server with keys, and as what.

The public keys of a server's folder say who may connect. The file's name is the key's name: `target.public` and
`target-NAME.public` are keys of targets, `gateway.public` and `gateway-NAME.public` of gateways. The folder is read
again when it changes: a key that is added is welcome at once, and the connections of one that was removed, renamed, or
replaced by another key end within RELOAD_S and a turn of the server's loop. While the folder or a file cannot be read,
the keys last known stay: only what is certainly gone counts as removed.
"""

from __future__ import annotations

import re
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import zmq
from zmq.utils import z85

from starspec.audit import AuditLog
from starspec.errors import ConfigError
from starspec.log_limit import LogLimit
from starspec.policy.newcomers import Door
from starspec.quoting import quoted
from starspec.wire.keys import NO_KEY, KeyRole, Keys, NamedKey, load_keys, read_key, require_keys
from starspec.wire.transports.sockets import ZAP_DOMAIN, check_free, network_of

CLIENTS: Final[dict[KeyRole, tuple[KeyRole, ...]]] = {
    "hub": ("target", "gateway"),
    "target": ("gateway",),
    "stage": ("target", "stage"),
}
ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
RELOAD_S: Final = 1.0  # between looks at the folder
UNSEEN: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})  # categories of white space, control and format characters
UNSEEN_MARKS: Final = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")

log = structlog.get_logger()

_Stamp = tuple[tuple[str | int, ...], ...]


class Caller(NamedTuple):
    """The owner of a key."""

    key_name: str  # "target-a" for target-a.public
    role: KeyRole

    @property
    def own_name(self) -> str:
        """The name that only this key may use: "a" for target-a.public; empty for the key that a role shares."""
        return self.key_name.removeprefix(self.role).removeprefix("-")


class Callers:
    """The clients that may connect to a server. Thread-safe.

    Args:
        keys: of the server.
        clock: seconds, monotonic.
    Raises: ConfigError if a client's key cannot be read.
    """

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = keys.folder
        self._roles = CLIENTS.get(keys.role, ())
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s = clock()
        self._log_limit = LogLimit(clock, num_lines=1)
        self._left_out = LogLimit(clock)  # the same is found each second, as long as some file cannot be read
        try:
            self._stamp: _Stamp | None = self._stamp_of_folder()  # None = some file could not be read
            self._by_key = dict[bytes, Caller]()
            for path, caller in self._files():
                self._add(self._by_key, read_key(path), caller)
        except OSError as error:
            raise ConfigError(f"cannot read the folder of keys {self._folder}: {error.strerror}") from error

    def owner_of(self, key: bytes) -> Caller | None:
        """The owner of a public key (z85); None if the key is not, or no longer, in the folder."""
        self._reload()
        return self._by_key.get(key)

    def is_allowed(self, key: NamedKey) -> bool:
        """Whether this key may still connect under this name."""
        owner = self.owner_of(key.public)
        return owner is not None and owner.key_name == key.name

    def why_not_named(self, caller: Caller, target_id: str) -> str | None:
        """Why a target with this key may not use this name; None if it may.

        Weights and rate limits go by name, so a name belongs to its key: `target-a.public` may only be target "a" or
        "target-a", and the shared key may not use these two names, nor one that people would take for them.
        """
        names = {caller.own_name, caller.key_name} - {""}
        if caller.own_name and target_id not in names:
            return f"the key {caller.key_name}.public is for a target named '{caller.own_name}', not '{target_id}'"
        if not caller.own_name and (owner := self._owner_of_name(target_id)) is not None:
            advice = "choose another name, or use that key"
            if target_id in (owner.own_name, owner.key_name):
                return f"the name '{target_id}' belongs to the key {owner.key_name}.public: {advice}"
            alike = f"the name {quoted(target_id)} looks like '{owner.own_name}'"
            return f"{alike}, which belongs to the key {owner.key_name}.public: {advice}"
        return None

    def _owner_of_name(self, target_id: str) -> Caller | None:
        """The key of a target with this name, or with one that looks like it."""
        look = _look_of(target_id)
        owners = (each for each in self._by_key.values() if each.role == "target" and each.own_name)
        return next((each for each in owners if look in (_look_of(each.own_name), _look_of(each.key_name))), None)

    def _reload(self) -> None:
        """Read the folder again if it has changed. It raises nothing: servers ask in the middle of their work."""
        with self._lock:
            now = self._clock()
            if now - self._looked_s < RELOAD_S:
                return
            self._looked_s = now
            try:
                stamp = self._stamp_of_folder()
                if stamp != self._stamp:
                    self._stamp = stamp if self._read_again() else None
            except OSError as error:
                self._stamp = None  # look again
                self._keep(f"{self._folder}: {error.strerror}")

    def _read_again(self) -> bool:
        """A file without a key counts as removed. Returns: whether all files could be read. Raises: OSError."""
        by_key, are_all_read = dict[bytes, Caller](), True
        for path, caller in self._files():
            try:
                self._add(by_key, read_key(path), caller)
            except ConfigError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                    by_key |= {key: known for key, known in self._by_key.items() if known == caller}
                    are_all_read = False
                    self._keep(str(error))
                else:
                    self._left_out.log(log.warning, "a key is left out", why=str(error))
        if by_key != self._by_key:
            log.info("keys read again", folder=str(self._folder), num_keys=len(by_key))
        self._by_key = by_key
        return are_all_read

    def _add(self, by_key: dict[bytes, Caller], key: bytes, caller: Caller) -> None:
        """A key has one name: that of the last of its files."""
        if (twin := by_key.get(key)) is not None:
            event = "two files hold the same key: one is left out"
            self._left_out.log(log.warning, event, used=caller.key_name, left_out=twin.key_name)
        by_key[key] = caller

    def _keep(self, why: str) -> None:
        self._log_limit.log(log.warning, "keys cannot be read: those last known stay", why=why)

    def _files(self) -> list[tuple[Path, Caller]]:
        """The files of clients' keys; none if there is no folder. Raises: OSError."""
        try:
            paths = sorted(self._folder.iterdir())  # glob() takes a folder that cannot be read for an empty one
        except FileNotFoundError:
            paths = []
        return [
            (path, Caller(path.stem, role))
            for role in self._roles
            for path in paths
            if path.suffix == ".public" and (path.stem == role or path.stem.startswith(f"{role}-"))
        ]

    def _stamp_of_folder(self) -> _Stamp:
        """What changes when a key is added, removed or replaced, or can be read again. Raises: OSError."""
        stamps: list[tuple[str | int, ...]] = []
        for path, _ in self._files():
            try:
                stat = path.stat()
            except OSError as error:
                stamps.append((path.name, error.errno or 0))
            else:
                stamps.append((path.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size))
        return tuple(stamps)


class Doorkeeper:
    """A thread that tells ZeroMQ who may connect (ZAP, RFC 27), and with which key; `key_of` reads that.

    It serves every server's socket of `context` that `make_socket` made, and ends with the context. ZeroMQ reads no
    message of a connection before the answer, and breaks with one that sends some. So what a connection brings is
    bounded by the rate at which they are let in.

    Args:
        callers: who may connect; None = the server has no keys, and everybody may.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        callers: Callers | None,
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._callers = callers
        self._audit = audit
        self._clock = clock
        self._log_limit = LogLimit(clock, num_lines=1)
        self._door = Door()
        self._lock = threading.Lock()  # of the door
        socket = context.socket(zmq.REP)
        socket.linger = 0
        socket.bind(ZAP_ENDPOINT)
        threading.Thread(target=self._serve, args=(socket,), name="starspec-keys", daemon=True).start()

    def shut_behind(self, frame: zmq.Frame) -> None:
        """The connection of this frame flooded: let no other one of its owner in for a while. From any thread."""
        self.shut(owner_of(frame, self._callers))

    def shut(self, owner: str) -> None:
        """As `shut_behind`, for an owner as `owner_of` tells it."""
        with self._lock:
            self._door.shut(owner, self._clock())

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        with socket:
            while True:
                try:
                    request = socket.recv_multipart()
                    socket.send_multipart(self._answer_any(request))
                except zmq.ContextTerminated:
                    return

    def _answer_any(self, request: list[bytes]) -> list[bytes]:
        """As `_answer`. It raises nothing: without this thread, nobody could connect any more."""
        try:
            return self._answer(request)
        except Exception:
            self._log_limit.log(log.exception, "a client is refused, since it could not be checked")
            return [b"1.0", request[1], b"500", b"internal error", b"", b""]

    def _answer(self, request: list[bytes]) -> list[bytes]:
        # version, request id, domain, address, identity, mechanism, credentials (CURVE: the client's public key)
        address = request[3].decode(errors="replace")
        if self._callers is None:
            return self._let_in(request[1], b"", network_of(address))
        if len(request) != 7 or request[5] != b"CURVE":
            return [b"1.0", request[1], b"400", b"no key", b"", b""]
        key = z85.encode(request[6])
        caller = self._callers.owner_of(key)
        only = request[2].removeprefix(ZAP_DOMAIN.encode())
        if caller is None or (only and key != only):
            self._refuse(key.decode(), address)
            return [b"1.0", request[1], b"400", b"unknown key", b"", b""]
        return self._let_in(request[1], key, _owner(caller, address))

    def _let_in(self, request_id: bytes, key: bytes, owner: str) -> list[bytes]:
        with self._lock:
            is_let_in = self._door.lets_in(owner, self._clock())
        if is_let_in:
            return [b"1.0", request_id, b"200", b"OK", key, b""]
        self._log_limit.log(log.warning, "connections come too fast, and have to try again", owner=owner)
        return [b"1.0", request_id, b"300", b"too many come", b"", b""]  # then ZeroMQ tries again, after HANDSHAKE_MS

    def _refuse(self, key: str, address: str) -> None:
        self._audit.note("key_refused", key=key, address=address)
        self._log_limit.log(log.warning, "a client's key is refused", key=key, address=address)


def _look_of(name: str) -> str:
    """What people see of a name: without case, width, white space, and characters that show nothing."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return "".join(each for each in plain if unicodedata.category(each) not in UNSEEN and not UNSEEN_MARKS.match(each))


def key_of(frame: zmq.Frame) -> bytes:
    """The public key (z85) whose connection this frame came from; empty if there are no keys."""
    key: Any = frame.get("User-Id")
    return str(key).encode()


def named_key_of(frame: zmq.Frame, callers: Callers | None) -> NamedKey:
    """As `key_of`, with its name. Args: callers: of the server; None = it has no keys."""
    if callers is None:
        return NO_KEY
    key = key_of(frame)
    owner = callers.owner_of(key)
    return NamedKey(key, key.decode() if owner is None else owner.key_name)


def owner_of(frame: zmq.Frame, callers: Callers | None) -> str:
    """Whose connection this frame came from, where owners share something.

    A key that has a name of its own is an owner. Who uses a key that a role shares, or none, is told by the address, of
    IPv6 by its network.

    Args:
        callers: of the server; None = it has no keys.
    """
    caller = None if callers is None else callers.owner_of(key_of(frame))
    return _owner(caller, str(frame.get("Peer-Address")))


def _owner(caller: Caller | None, address: str) -> str:
    return f"key {caller.key_name}" if caller is not None and caller.own_name else network_of(address)


def keys_to_listen(role: KeyRole, folder: str | None, host: str, port: int, is_insecure: bool) -> Keys | None:
    """The keys of a server, before a long start such as loading a model.

    Args:
        role: of the server: a hub, a target or a stage.
        folder: of the keys; None = it has none.
        is_insecure: allow a host that is not loopback without keys.
    Raises: ConfigError if a key of the server or of its clients is missing or is not a key, or if it cannot or must not
        listen there.
    """
    keys = load_keys(folder, role)
    require_keys(host, keys, is_insecure, f"the {role} would listen on")
    if keys is not None:
        Callers(keys)
    check_free(host, port, f"the {role}")
    return keys
