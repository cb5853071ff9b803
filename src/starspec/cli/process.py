"""What every server command does around its server: logs, progress, signals, reports to a supervisor, the trace."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from rich.console import Console

from starspec.cli.output import LogStream
from starspec.config import ProcessConfig
from starspec.errors import ConfigError, StarspecError, out_of_memory
from starspec.models.loading.progress import listening
from starspec.observe.progress import ProgressBar, with_share
from starspec.observe.trace import Trace
from starspec.openmp import unless_given
from starspec.output_files import why_no_file, why_no_log
from starspec.quoting import harmless
from starspec.supervise.report import HURRY, Failed, Loading, Ready, SupervisorLine, supervisor_line

if TYPE_CHECKING:
    from structlog.typing import EventDict


class Server(Protocol):
    """What a server command runs."""

    @property
    def address(self) -> str: ...

    @property
    def memory(self) -> str:
        """The memory that it keeps for sequences, as text for people; empty = none."""
        ...

    def run(self) -> None:
        """Serve; returns when the server has stopped."""
        ...

    def stop(self) -> None:
        """Stop in good order; a second call stops at once. Callable from a signal handler."""
        ...


class ServerProcess:
    """This process as its operator sees it, or the supervisor that started it.

    Args:
        name: shown in logs, tables and traces.
    Raises: ConfigError if the trace cannot be written where it is told to.
    Effects: sets up logging. Makes idle OpenMP threads sleep soon, unless torch is loaded already.
    """

    def __init__(self, name: str, config: ProcessConfig) -> None:
        self._trace_file = None if config.trace_file is None else Path(config.trace_file)
        check_file(self._trace_file, "--trace")
        os.environ.update(unless_given(os.environ))
        self._name = name
        self._line = supervisor_line(os.environ)
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self.trace = Trace(name) if self._trace_file else None
        log_to_stderr(config.log_level)

    @contextmanager
    def loading(self, what: str) -> Iterator[None]:
        """Show that something slow runs, and how far: a bar on a terminal, lines elsewhere, reports to a supervisor."""
        if self._line is not None:
            self._line.send(Loading(what))
            with listening(_Reports(self._line, what).show):
                yield
            return
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {what} ...", soft_wrap=True)
        with ProgressBar(f"{self._name}: {what}", console=self._console) as bar, listening(bar.show):
            yield

    def serve(self, server: Server) -> None:
        """Say that the server is ready, run it, and write the trace when it has stopped.

        Effects: SIGINT and SIGTERM stop the server, and a supervisor in a hurry stops it a second time.
        """
        stop_on_signal(server.stop, then=signal.SIG_DFL if self._line is None else signal.SIG_IGN)
        if self._line is not None:
            signal.signal(HURRY, lambda number, frame: server.stop())  # noqa: ARG005 (the signature of a handler)
            self._line.send(Ready(server.address, server.memory))
        else:
            memory = server.memory and f", {server.memory}"
            self._console.print(f"{self._name}: ready at {server.address}{memory}, Ctrl-C stops it", soft_wrap=True)
        try:
            server.run()
        finally:
            if self.trace is not None and self._trace_file is not None:
                self.trace.write(self._trace_file)

    @contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Tell the supervisor, if there is one, why this process ends."""
        try:
            yield
        except StarspecError as error:
            if self._line is not None:
                self._line.send(Failed(str(error)))
                raise SystemExit(2 if isinstance(error, ConfigError) else 1) from error  # the supervisor prints it
            raise
        except (OSError, MemoryError, RuntimeError, ImportError) as error:
            if self._line is not None and (sentence := out_of_memory(error)):
                self._line.send(Failed(sentence))
                raise SystemExit(1) from error
            raise


class _Reports:
    """Reports of a model's loading to a supervisor, one for each tenth of a stage."""

    def __init__(self, line: SupervisorLine, what: str) -> None:
        self._line = line
        self._what = what
        self._last = ""

    def show(self, stage: str, num_done: int, num_all: int) -> None:
        text = f"{self._what}: {with_share(stage, num_done, num_all)}"
        if text != self._last:
            self._last = text
            self._line.send(Loading(text))


def check_file(file: Path | str | None, option: str) -> None:
    """Check early that a file can be written later. Raises: ConfigError that names the option."""
    if file is not None and (why := why_no_file(Path(file))):
        raise ConfigError(f"{option}: {why}")


def check_log(file: str | None) -> None:
    """Check early that an audit log can be appended to. Raises: ConfigError that names the option."""
    if file is not None and (why := why_no_log(Path(file))):
        raise ConfigError(f"--audit-log: {why}")


def stop_on_signal(stop: Callable[[], None], then: signal.Handlers) -> None:
    """Make SIGINT and SIGTERM stop the server in good order.

    Args:
        then: what a second signal does. It ends a process that a person started. A supervised process ignores it: when
            a whole service is told to stop, its supervisor sends a second SIGTERM, and has SIGKILL too.
    """

    def handle(number: int, frame: object) -> None:  # noqa: ARG001 (the signature of a handler)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, then)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def log_to_stderr(level: str) -> None:
    """Log lines of this process, for people, from `level` on."""
    import structlog  # noqa: PLC0415 (servers alone log)

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S"),
            structlog.processors.format_exc_info,
            _without_commands,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                exception_formatter=structlog.dev.plain_traceback,  # the default prints local variables: prompts
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LogStream())),
    )


def _without_commands(logger: object, method: str, fields: EventDict) -> EventDict:  # noqa: ARG001 (of structlog)
    """Keep the words of clients and peers, and a traceback that quotes them, from commanding the terminal."""
    return {key: harmless(value) if isinstance(value, str) else value for key, value in fields.items()}
