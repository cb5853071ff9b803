"""Compiles a grammar in a process that can be ended, before a process that serves does.

llguidance never finishes some short grammars, such as 16 patterns that a text must all match. It has no limit for that,
and a thread in it cannot be stopped. So a child process with a limit on processor time compiles each grammar first.

Run as a program, this is the child: a line of JSON with the model's special tokens and one for each grammar in, and one
for each verdict out.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from starspec.errors import CapacityError, RequestError
from starspec.grammars.source import check_grammar
from starspec.grammars.vocabulary import bytes_and
from starspec.sampling.grammar import GrammarSpec

MAX_CPU_S: Final = 0.5  # of the child's processor for one grammar: usual ones take a hundredth, large ones a fifth
MAX_WAIT_S: Final = 20.0  # for a verdict, on a machine with much else to do
MAX_MEMORY: Final = 2 * 2**30  # bytes of addresses of the child
MAX_KNOWN: Final = 256  # grammars whose verdict is remembered


class TooSlow(RequestError):
    """The grammar took longer to compile than it may."""


class Trial:
    """Checks grammars, one at a time. Thread-safe. The child starts with the first grammar.

    Args:
        max_cpu_s: of a processor for one grammar.
        special_tokens: names of the model's, for which a grammar can ask.
    """

    def __init__(self, max_cpu_s: float = MAX_CPU_S, special_tokens: tuple[str, ...] = ()) -> None:
        self._max_cpu_s = max_cpu_s
        self._special_tokens = special_tokens
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._known: OrderedDict[GrammarSpec, RequestError | None] = OrderedDict()  # the one asked last at the end

    def check(self, spec: GrammarSpec) -> None:
        """As `check_grammar`.

        Raises: RequestError, which is TooSlow if the grammar takes too long; CapacityError if there can be no child.
        """
        with self._lock:
            if spec not in self._known:
                self._known[spec] = self._verdict(spec)
            self._known.move_to_end(spec)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            verdict = self._known[spec]
        if verdict is not None:
            raise type(verdict)(str(verdict), verdict.param)

    def close(self) -> None:
        """End the child, also in the middle of a grammar: nothing is checked any more. Idempotent."""
        self._is_closed = True
        self._end_child()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.kill()
            child.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.wait()

    def _verdict(self, spec: GrammarSpec) -> RequestError | None:
        """Raises: CapacityError if no child tells: nothing is known of the grammar then."""
        answer = self._answer(spec) or self._answer(spec)  # who ended or stopped the first child is not the grammar
        if not answer:
            raise CapacityError("the process that checks grammars was ended or did not answer; try again later")
        if answer.strip():
            complaint = json.loads(answer)
            return None if complaint is None else RequestError(*complaint)
        name = f"structured_outputs.{spec.kind}"
        return TooSlow(f"{name}: it takes longer than {self._max_cpu_s:g} s to compile: ask for a simpler one", name)

    def _answer(self, spec: GrammarSpec) -> bytes:
        """As `_ask`, of a child that runs. Raises: CapacityError. Effects: ends a child that does not answer."""
        if self._is_closed:
            raise CapacityError("no grammar is checked any more: this process ends")
        answer = b""
        try:
            if self._child is None or self._child.poll() is not None:
                self._end_child()
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, str(self._max_cpu_s)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # it tells where the library failed, at any length
                )
                _tell(self._child, self._special_tokens)
            answer = _ask(self._child, spec)
        except OSError as error:
            raise CapacityError(f"no process can be started that checks grammars: {error.strerror}") from error
        finally:
            if not answer:
                self._end_child()
        return answer


def _tell(child: subprocess.Popen[bytes], what: Sequence[str]) -> None:
    """Send a line, unless the child is gone. Raises: OSError."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(what).encode() + b"\n")
        child.stdin.flush()


def _ask(child: subprocess.Popen[bytes], spec: GrammarSpec) -> bytes:
    """The child's verdict: an empty line if the grammar took too long, nothing if the child is gone or stopped.

    Raises: OSError.
    """
    assert child.stdout is not None
    _tell(child, [spec.kind, spec.text])
    told = select.poll()  # unlike select(), for any descriptor
    told.register(child.stdout, select.POLLIN)
    answer = child.stdout.readline() if told.poll(MAX_WAIT_S * 1000) else b""
    return answer if answer.endswith(b"\n") else b""


def main(max_cpu_s: float) -> None:
    """Serve until standard input ends. Each grammar has a process of its own: to begin one takes a millisecond."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and so standard input
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    special_tokens = tuple(json.loads(sys.stdin.buffer.readline()))
    bytes_and(special_tokens)  # once, for all processes to come
    for line in sys.stdin.buffer:
        if (number := os.fork()) == 0:
            signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # its signal ends the process
            os.write(sys.stdout.fileno(), json.dumps(_verdict_of(line, special_tokens)).encode() + b"\n")
            os._exit(0)
        status = os.waitpid(number, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return  # somebody's, such as the kernel's for want of memory: the grammar is to be asked again
        if status:
            os.write(sys.stdout.fileno(), b"\n")


def _verdict_of(line: bytes, special_tokens: tuple[str, ...]) -> tuple[str, str | None] | None:
    try:
        check_grammar(GrammarSpec(*json.loads(line)), special_tokens)
    except RequestError as error:
        return str(error), error.param
    return None


if __name__ == "__main__":
    main(float(sys.argv[1]))
