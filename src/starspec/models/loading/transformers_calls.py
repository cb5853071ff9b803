"""Calling transformers: quietly, and with its many kinds of errors turned into one sentence of ours."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from starspec.errors import ModelError, StarspecError

MAX_QUOTED_CHARS = 200  # of someone else's error in a sentence of ours


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars, no advice and no warnings from transformers inside; its settings are put back after."""
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
    """Turn whatever transformers raises over a model that it cannot read into a ModelError.

    Args:
        complaint: the start of the sentence; a colon and the first line of the error follow.
    """
    with quiet_transformers():
        try:
            yield
        except StarspecError:
            raise
        except Exception as error:  # over a bad folder transformers raises nearly every type there is
            raise ModelError(f"{complaint}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error of someone else's code says, cut to one line that fits into a sentence."""
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0].strip()
    if line.endswith(":"):  # what it is about comes behind
        line = " ".join(text.split())
    return line[:MAX_QUOTED_CHARS].rstrip(".: ")
