"""What a request states as a grammar is bounded before it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from starspec.sampling.grammar import MAX_FLOATS, MAX_GRAMMAR_BYTES, QUICK_DIGITS, check_size

ROOM = 1000


@pytest.mark.parametrize("value", ["x" * 900, [-(10**300)] * 2, {"a" * 400: ["b" * 400]}, [True, None, 0.5] * 40])
def test_what_fits_is_let_through(value: Any) -> None:
    assert len(json.dumps(value)) <= ROOM
    check_size(value, ROOM)


@pytest.mark.parametrize("value", ["x" * 1001, [[1] * 501] * 2, {"a" * 501: "b" * 501}, [10**400] * 3, [-(10**900)]])
def test_what_does_not_fit_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="has more than the 1000 bytes that are allowed"):
        check_size(value, ROOM)


def test_integers_count_by_the_time_that_it_takes_to_write_them() -> None:
    """To write 900 integers of 4,200 digits held Python's lock, and so a gateway's event loop, for 0.3 s."""
    check_size([10**QUICK_DIGITS] * 60, MAX_GRAMMAR_BYTES)
    with pytest.raises(ValueError, match="more than the 1048576 bytes"):
        check_size([10**4200] * 30, 2**20)  # 126 kB


def test_floats_are_few_since_each_takes_long_to_be_written() -> None:
    """To write 200,000 of them held Python's lock, and so a gateway's event loop, for 0.3 s."""
    check_size([1.5] * MAX_FLOATS, MAX_GRAMMAR_BYTES)
    with pytest.raises(ValueError, match="has 16385 numbers with a fraction or an exponent; 16384 are allowed"):
        check_size({"a": [1.5] * MAX_FLOATS, "b": 1e-300}, MAX_GRAMMAR_BYTES)
