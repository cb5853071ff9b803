"""A star whose processes are started one by one, so that the hub can be killed, stopped and restarted."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, Self

from starspec.bench.orphans import end_with_parent
from starspec.errors import PeerLost
from starspec.openmp import WAIT_BRIEFLY

START_S = 120.0  # longest wait until a process serves
STOP_S = 20.0
LOG_BYTES = 1 << 20


class ServerProcess:
    """One `starspec` server command, with one thread, as several processes share the machine.

    It has a session of its own, as a service has: Linux shares the cores among sessions first, and all of a star and of
    the test that runs it would get as much as each one of the servers beside them.

    Args:
        arguments: of the command line.
    """

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **WAIT_BRIEFLY}
        command = [sys.executable, "-m", "starspec", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            env=environ,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 (it takes no lock)
        )

    def wait_ready(self) -> str:
        """Returns: the address that it says it serves. Raises: PeerLost, with its output, if it does not come up."""
        deadline_s = time.monotonic() + START_S
        pause = threading.Event()
        while time.monotonic() < deadline_s:
            found = re.search(r"ready at (\S+?),? ", self.output() + " ")
            if found:
                return found[1]
            if self.process.poll() is not None:
                raise PeerLost(f"starspec {' '.join(self.arguments)} ended:\n{self.output()}")
            pause.wait(0.02)
        raise PeerLost(f"starspec {' '.join(self.arguments)} is not ready:\n{self.output()}")

    def output(self) -> str:
        """What it has printed so far."""
        return os.pread(self.log.fileno(), LOG_BYTES, 0).decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it, by force after STOP_S. Returns: the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


class StarProcesses:
    """One hub, several targets, one gateway. A context manager; leaving it ends all of them.

    Args:
        draft_options, target_options: words added to the command lines.
    Raises: PeerLost if one of them does not come up.
    """

    def __init__(
        self,
        target: str,
        draft: str,
        num_targets: int = 2,
        *,
        draft_options: tuple[str, ...] = (),
        target_options: tuple[str, ...] = (),
    ) -> None:
        port = free_port()
        self._hub_arguments = ("draft", "--draft", draft, "--port", str(port), *draft_options)
        hub = ("--hub", f"tcp://127.0.0.1:{port}")
        self._servers = [self._start_hub()]
        try:
            self.targets = [
                self._start("target", "--target", target, "--port", "0", "--name", f"t{each}", *hub, *target_options)
                for each in range(num_targets)
            ]
            words = [word for each in self.targets for word in ("--endpoint", each.wait_ready())]
            self.gateway = self._start("gateway", "--target", target, "--port", "0", *hub, *words)
            self.url = self.gateway.wait_ready().removesuffix("/v1")
            self.hub.wait_ready()
        except BaseException:
            self.end()
            raise

    def restart_hub(self) -> None:
        """A hub on the same port as the one that is gone; it serves when this returns."""
        self._servers.remove(self.hub)
        self._servers.append(self._start_hub())
        self.hub.wait_ready()

    def end(self) -> None:
        """End every process, the hub last."""
        for each in reversed(self._servers):
            each.end()
        self._servers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for each in self._servers:
                sys.stderr.write(f"---- {' '.join(each.arguments[:2])}\n{each.output()[-3000:]}\n")
        self.end()

    def _start_hub(self) -> ServerProcess:
        self.hub = ServerProcess(*self._hub_arguments)
        return self.hub

    def _start(self, *arguments: str) -> ServerProcess:
        server = ServerProcess(*arguments)
        self._servers.append(server)
        return server


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
