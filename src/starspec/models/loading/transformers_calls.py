"""Calling transformers: without its output, and with its many kinds of errors turned into one ModelError sentence."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator

from starspec.errors import ModelError, StarspecError

MAX_QUOTED_CHARS = 200  # of a foreign error message that is quoted
# nobody sees that report, because it goes to the suppressed log
ABOUT_A_REPORT = re.compile(r"\s*For details look at [^.!]*above report[.!]?")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress progress bars, advice and warnings of transformers inside the block, then restore its settings."""
    from transformers.utils import logging  # noqa: PLC0415 (a second to import; synthetic models do without)

    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def as_model_error(complaint: str) -> Iterator[None]:
    """Turn anything that transformers raises inside the block into a ModelError. Errors of starspec pass through.

    Args:
        complaint: the start of the sentence; a colon and the first line of the error follow.
    """
    with quiet_transformers():
        try:
            yield
        except StarspecError:
            raise
        except Exception as error:  # for a bad folder transformers raises nearly every type there is
            raise ModelError(f"{complaint}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The message of a foreign error, shortened to one line that fits into a sentence."""
    text = ABOUT_A_REPORT.sub("", str(error)).strip() or type(error).__name__
    line = text.splitlines()[0].strip()
    if line.endswith(":"):  # the subject of the message is on the next lines
        line = " ".join(text.split())
    return line[:MAX_QUOTED_CHARS].rstrip(".: ")
