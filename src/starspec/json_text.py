"""JSON that people write and files hold: every fault of it is a ValueError with a reason in words."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

MAX_DIGITS: Final = 4300  # of an integer: Python refuses more, and advises programmers


def parse_json(text: str | bytes, *, may_repeat_keys: bool = True) -> Any:
    """The value of a JSON text.

    Args:
        may_repeat_keys: the last of several equal keys of an object counts, as in files of other programs.
    Raises: ValueError; json.JSONDecodeError, which has a position, if it is not JSON at all.
    """
    try:
        return json.loads(text, parse_int=_integer, object_pairs_hook=None if may_repeat_keys else _object)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    (key, times), *_ = Counter(key for key, _ in pairs).most_common(1) or [("", 0)]
    if times > 1:
        raise ValueError(f"it has the key '{key}' {times} times")
    return dict(pairs)
