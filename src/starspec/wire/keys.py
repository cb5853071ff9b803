"""CURVE keys: the files of one process, and when keys are not needed.

`generate_keys` writes one key pair for each role into a folder: NAME.secret (readable by its owner only) and
NAME.public. A machine needs the secret of its own role and the public keys of the roles that it connects to. A server
accepts the clients whose public keys are in its folder; see `callers.py`.
"""

from __future__ import annotations

import ipaddress
import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import zmq
from zmq.utils import z85

from starspec.errors import ConfigError
from starspec.wire.transports.sockets import ZAP_DOMAIN

KeyRole = Literal["hub", "target", "gateway", "stage"]
ROLES: Final[tuple[KeyRole, ...]] = ("hub", "target", "gateway", "stage")
KEY_LEN: Final = 40  # characters of a z85 key
MAX_FILE_BYTES: Final = 1024  # of a key's file that are read: white space around the key does no harm
MISSING_KEY: Final = (
    "`starspec keygen FOLDER` makes the keys of all roles; copy this one from there, or give --keys the right folder"
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one process. Keys are z85 text, 40 bytes."""

    folder: Path
    role: KeyRole
    public: bytes
    secret: bytes = field(repr=False)

    def secure_server(self, socket: zmq.Socket[bytes], only: bytes = b"") -> None:
        """Let the socket accept only clients that the Doorkeeper of its context allows. Call before `bind`.

        Args:
            only: the only public key that may connect; empty = every allowed key.
        """
        socket.curve_server = True
        socket.zap_enforce_domain = 1  # without a Doorkeeper, nobody may connect
        socket.curve_secretkey = self.secret
        socket.curve_publickey = self.public
        socket.zap_domain = ZAP_DOMAIN.encode() + only

    def secure_client(self, socket: zmq.Socket[Any], server_key: bytes) -> None:
        """Let the socket connect only to the server that holds the secret of `server_key`. Call before `connect`."""
        socket.curve_serverkey = server_key
        socket.curve_secretkey = self.secret
        socket.curve_publickey = self.public

    def public_key_of(self, role: KeyRole) -> bytes:
        """The public key of another role. Raises: ConfigError if the folder has none."""
        return read_key(self.folder / f"{role}.public")

    def newer_key_of(self, role: KeyRole, used: bytes) -> bytes | None:
        """The public key of another role if it is not the one that was used: servers get new keys, and files mistakes.

        Returns: None if it is the same, or cannot be read now.
        """
        try:
            key = self.public_key_of(role)
        except ConfigError:
            return None
        return key if key != used else None


class NamedKey(NamedTuple):
    """With which key a connection was made, and as what. If either has changed in the folder, it may not go on."""

    public: bytes
    name: str  # as `Caller.key_name`, or the key itself if it was removed meanwhile


NO_KEY: Final = NamedKey(b"", "")  # of a connection to a server without keys, or of one that is not known


def generate_keys(folder: Path) -> list[Path]:
    """Generate a key pair for every role.

    Returns: the files written.
    Raises: ConfigError if any of them exists, or if the folder cannot be written.
    Effects: creates the folder (mode 700), secrets of mode 600 and public keys of mode 644; all files or none.
    """
    paths = [folder / f"{role}.{kind}" for role in ROLES for kind in ("secret", "public")]
    try:
        if existing := [path.name for path in paths if path.exists()]:
            there = ", ".join(existing)
            raise ConfigError(f"{folder} already holds {there}: choose another folder or remove them first")
        with ExitStack() as undo:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for role in ROLES:
                public, secret = zmq.curve_keypair()
                _write(folder / f"{role}.secret", secret, 0o600, undo)
                _write(folder / f"{role}.public", public, 0o644, undo)
            undo.pop_all()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(f"cannot write keys to {folder}: {where}{error.strerror}") from error
    return paths


def load_keys(folder: str | Path | None, role: KeyRole) -> Keys | None:
    """Load the keys of one role.

    Returns: None if no folder is given; links on loopback need no keys.
    Raises: ConfigError naming the file that is missing, malformed or open to other users.
    """
    if folder is None:
        return None
    path = Path(folder) / f"{role}.secret"
    secret = read_key(path)
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"other users can read {path}: run `chmod 600 {path}`")
    return Keys(Path(folder), role, zmq.curve_public(secret), secret)


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine. Names are not resolved: only `localhost` counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def lacks_keys(host: str, keys: Keys | None, is_insecure: bool) -> bool:
    """The rule: a link that leaves this machine is encrypted, unless the operator says otherwise."""
    return keys is None and not is_insecure and not is_loopback(host)


def require_keys(host: str, keys: Keys | None, is_insecure: bool, what: str) -> None:
    """Enforce the rule of `lacks_keys`.

    Args:
        what: subject of the sentence, such as "the hub would listen on".
    Raises: ConfigError if `host` is not loopback and there are neither keys nor `is_insecure`.
    """
    if lacks_keys(host, keys, is_insecure):
        remedy = (
            "make keys with `starspec keygen FOLDER` and pass --keys FOLDER, or pass --insecure on a trusted network"
        )
        raise ConfigError(f"{what} {host} without keys: {remedy}")


def read_key(path: Path) -> bytes:
    """The key in a file. Raises: ConfigError that names the file if it cannot be read or holds no key."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe could wait for ever
            raise ConfigError(f"cannot read the key {path}: it is not a file")
        with path.open("rb") as file:
            key = file.read(MAX_FILE_BYTES).strip()
    except OSError as error:
        remedy = f"; {MISSING_KEY}" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"cannot read the key {path}: {error.strerror}{remedy}") from error
    try:
        is_key = len(key) == KEY_LEN and len(z85.decode(key)) == 32
    except (ValueError, KeyError):
        is_key = False
    if not is_key:
        raise ConfigError(
            f"{path} does not contain a key: it must be the {KEY_LEN} characters that `starspec keygen` wrote"
        )
    return key


def _write(path: Path, key: bytes, mode: int, undo: ExitStack) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    undo.callback(path.unlink, missing_ok=True)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n")
