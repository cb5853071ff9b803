"""A star of real processes for tests: started one by one, so that a test may kill, stop and restart the hub."""

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

START_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class ServerProcess:
    """One `starspec` server command; ends with the test."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "starspec", *arguments]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environ)

    def wait_ready(self) -> str:
        """Returns: the address that it says it serves."""
        deadline_s = time.monotonic() + START_S
        pause = threading.Event()
        while time.monotonic() < deadline_s:
            found = re.search(r"ready at (\S+?),? ", self.output() + " ")
            if found:
                return found[1]
            assert self.process.poll() is None, f"{self.arguments} ended:\n{self.output()}"
            pause.wait(0.05)
        raise AssertionError(f"{self.arguments} is not ready:\n{self.output()}")

    def output(self) -> str:
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Returns: the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


class StarProcesses:
    """One hub, several targets, one gateway."""

    def __init__(self, target: str, draft: str, num_targets: int = 2, target_options: tuple[str, ...] = ()) -> None:
        port = free_port()
        self._hub_arguments = ("draft", "--draft", draft, "--port", str(port), "--max-num-seqs", "16")
        if not draft.startswith("synthetic"):
            self._hub_arguments += ("--draft-quantization", "int4", "--max-model-len", "512")
        self.hub = ServerProcess(*self._hub_arguments)
        hub = ("--hub", f"tcp://127.0.0.1:{port}")
        self.targets = [
            ServerProcess("target", "--target", target, "--port", "0", "--name", f"t{each}", *hub, *target_options)
            for each in range(num_targets)
        ]
        endpoints = [each.wait_ready() for each in self.targets]
        words = [word for endpoint in endpoints for word in ("--endpoint", endpoint)]
        self.gateway = ServerProcess("gateway", "--target", target, "--port", "0", *hub, *words)
        self.url = self.gateway.wait_ready().removesuffix("/v1")
        self.hub.wait_ready()

    def restart_hub(self) -> None:
        """A hub on the same port as the one that is gone."""
        self.hub = ServerProcess(*self._hub_arguments)
        self.hub.wait_ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        servers = [self.gateway, *self.targets, self.hub]
        if error is not None:
            for each in servers:
                sys.stderr.write(f"---- {' '.join(each.arguments[:2])}\n{each.output()[-3000:]}\n")
        for each in servers:
            each.end()
