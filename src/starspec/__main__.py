"""The command `starspec`, also as `python -m starspec`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

EXIT_INTERRUPTED = 130
REPEATED_AFTER_S = 0.05  # an interrupt that was lost; by then its callback has returned
SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


def main() -> None:
    """Run the command line of this process. Ctrl-C never prints a traceback, also while modules are imported, and
    neither does a second one while the first ends the command.
    """
    end_imports_on_ctrl_c()
    sys.unraisablehook = _repeat_interrupt
    os.environ["PYTHONSAFEPATH"] = "1"  # no Python that this process starts imports from the present folder
    from starspec.cli import main as run  # noqa: PLC0415 (takes a second)

    try:
        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_imports_on_ctrl_c() -> None:
    """From now on Ctrl-C inside an import ends this process in silence."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a handler)
    """Raise KeyboardInterrupt; but end at once inside an import, where it may be swallowed or become another error."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            if sys.stderr is not None and sys.stderr.isatty():
                os.write(2, SHOW_CURSOR.encode())
            os._exit(EXIT_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that would be lost: what the callback of a weak reference or a `__del__` raises is ignored."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        threading.Timer(REPEATED_AFTER_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
