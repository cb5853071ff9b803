"""Calling transformers: without its output, and with its many kinds of errors turned into one ModelError sentence."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from starspec.errors import ModelError, StarspecError

CONFIG_CHECKS: Final = "transformers.utils.type_validators"
MAX_QUOTED_CHARS: Final = 200  # of a foreign error message that is quoted
# nobody sees that report, because it goes to the suppressed log
ABOUT_A_REPORT: Final = re.compile(r"\s*For details look at [^.!]*above report[.!]?")


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


def hide_torch() -> None:
    """Let transformers do without torch in this process, which needs a tokenizer and no model.

    Importing torch takes two seconds of a processor.
    """
    from transformers import utils  # noqa: PLC0415 (a second to import)

    utils.is_torch_available = utils.import_utils.is_torch_available = lambda: False  # whence its modules take it


def import_config_checks() -> None:
    """Import what checks the values of configs, without the activation functions, which draw in torch's compiler.

    That takes four seconds of a processor in each process. transformers does the same where there is no torch; then it
    does not check the name of an activation function. Whoever builds the model would not find it.

    Effects: none if transformers has imported it already or does without torch, or if a later transformers has no such
        module.
    """
    from transformers.utils import import_utils  # noqa: PLC0415 (a second to import)

    if CONFIG_CHECKS in sys.modules or not import_utils.is_torch_available():
        return
    try:
        for name in ("tokenization_utils_base", "video_utils", "utils.generic"):  # they look for torch themselves
            import_module(f"transformers.{name}")
        is_available = import_utils.is_torch_available
        import_utils.is_torch_available = lambda: False
        try:
            checks: Any = import_module(CONFIG_CHECKS)
        finally:
            import_utils.is_torch_available = is_available
    except ImportError:
        return
    checks.is_torch_available, checks.torch = is_available, import_module("torch")


@contextlib.contextmanager
def naming(model: str, name: str) -> Iterator[None]:
    """Put the model in front of a ModelError that does not name it: it was raised where only the model's code is known.

    Args:
        model: as the user named it.
        name: the part of it by which a sentence is known to name it.
    """
    try:
        yield
    except ModelError as error:
        if name in str(error):
            raise
        raise ModelError(f"'{model}' is not supported: {error}") from error


def first_line(error: BaseException) -> str:
    """The message of a foreign error, shortened to one line that fits into a sentence."""
    said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    text = ABOUT_A_REPORT.sub("", said).strip() or type(error).__name__
    line = text.splitlines()[0].strip()
    if line.endswith(":"):  # the subject of the message is on the next lines
        line = " ".join(text.split())
    return line[:MAX_QUOTED_CHARS].rstrip(".: ")
