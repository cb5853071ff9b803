"""A network namespace without a name, and what is done in it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self, TypeVar

from starspec.errors import ConfigError
from starspec.lab.link import socket_for
from starspec.lab.netem import Command

T = TypeVar("T")
CLONE_NEWNET: Final = 0x40000000  # of unshare(2)
COMMAND_S: Final = 10.0  # longest wait for `ip` and `tc`
NO_NETEM: Final = "qdisc kind is unknown"  # says tc, if the kernel has no netem


class Namespace:
    """A thread that has left the network of its process. All that it starts, and its sockets, are in its own one.

    The kernel drops the namespace when the thread and the last socket are gone, also if the process is killed. Made by
    `open`. The event loop goes on while something is done here.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "starspec-netns")
        self.thread_id = 0

    @classmethod
    async def open(cls) -> Self:
        """Raises: ConfigError if this process may not make a namespace."""
        made = cls()
        try:
            made.thread_id = await made._do(_leave)
        except OSError as error:
            made.close()
            raise ConfigError(
                f"--netem needs the right to make network namespaces, as root has it: {error.strerror}"
            ) from error
        return made

    async def run(self, command: Command) -> str:
        """Run a command, and wait for its end. Returns: what it prints. Raises: ConfigError if it fails."""
        return await self._do(lambda: _run(command))

    async def socket(self, host: str) -> socket.socket:
        """Implements MakeSocket, in this namespace."""
        return await self._do(lambda: socket_for(host))

    def close(self) -> None:
        """Let the thread end. Sockets live on."""
        self._thread.shutdown(wait=False)

    async def _do(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _leave() -> int:
    """Put this thread into a new network namespace. Returns: its id for other processes. Raises: OSError."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return threading.get_native_id()


def _run(command: Command) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"--netem needs the program `{command[0]}`, of the package iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"--netem: `{' '.join(command)}` did not end within {COMMAND_S:g} s") from error
    if done.returncode == 0:
        return done.stdout
    why = done.stderr.strip().removeprefix("Error: ").rstrip(".")
    if NO_NETEM in why:
        raise ConfigError("--netem needs a kernel with netem, and this one has none: load the module sch_netem")
    raise ConfigError(f"--netem: `{' '.join(command)}` failed: {why}")
