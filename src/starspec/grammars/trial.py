"""Compiles a grammar in a process that can be ended, before a process that serves does.

llguidance works on some short grammars for ever, such as 16 patterns of which a text must match all. It has no limit
for that, and a thread in it cannot be stopped. So a grammar first gets some time of a child's processor.

Run as a program, this is the child: a line of JSON for each grammar in, and one for each verdict out.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import Final

from starspec.errors import CapacityError, RequestError
from starspec.grammars.source import check_grammar
from starspec.sampling.grammar import GrammarSpec

MAX_CPU_S: Final = 0.5  # of the child's processor for one grammar; honest ones take a hundredth of it
MAX_WAIT_S: Final = 20.0  # for a verdict, on a machine with much else to do
MAX_MEMORY: Final = 2 * 2**30  # bytes of addresses of the child
MAX_KNOWN: Final = 256  # grammars whose verdict is remembered


class Trial:
    """Checks grammars, one at a time. Thread-safe. The child starts with the first grammar."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._known: OrderedDict[GrammarSpec, RequestError | None] = OrderedDict()  # the one asked last at the end

    def check(self, spec: GrammarSpec) -> None:
        """As `check_grammar`.

        Raises: RequestError also if the grammar takes too long; CapacityError if there can be no child.
        """
        with self._lock:
            if spec not in self._known:
                self._known[spec] = self._verdict(spec)
            self._known.move_to_end(spec)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            verdict = self._known[spec]
        if verdict is not None:
            raise RequestError(str(verdict), verdict.param)

    def close(self) -> None:
        """End the child, also in the middle of a grammar. Idempotent."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _verdict(self, spec: GrammarSpec) -> RequestError | None:
        try:
            if self._child is None or self._child.poll() is not None:
                self.close()
                self._child = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(MAX_CPU_S)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # it tells where the library failed, at any length
                )
            answer = _ask(self._child, spec)
        except OSError as error:
            self.close()
            raise CapacityError(f"no process can be started that checks grammars: {error.strerror}") from error
        if answer:
            complaint = json.loads(answer)
            return None if complaint is None else RequestError(*complaint)
        self.close()
        name = f"structured_outputs.{spec.kind}"
        return RequestError(f"{name}: it takes longer than {MAX_CPU_S:g} s to compile: ask for a simpler one", name)


def _ask(child: subprocess.Popen[bytes], spec: GrammarSpec) -> bytes:
    """The child's verdict; empty if it has ended, or gives none. Raises: OSError."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps([spec.kind, spec.text]).encode() + b"\n")
        child.stdin.flush()
    is_told, _, _ = select.select([child.stdout], [], [], MAX_WAIT_S)
    return child.stdout.readline() if is_told else b""


def main(max_cpu_s: float) -> None:
    """Serve until standard input ends. A grammar that takes too long ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and so standard input
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, max_cpu_s)
        try:
            check_grammar(GrammarSpec(*json.loads(line)))
            verdict = None
        except RequestError as error:
            verdict = [str(error), error.param]
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        sys.stdout.buffer.write(json.dumps(verdict).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
