"""Logs are bounded, and say how much they leave out."""

from __future__ import annotations

from starspec.log_limit import INTERVAL_S, LINES, LogLimit


def test_log_lines_of_one_kind_are_limited_and_those_left_out_are_counted() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.admit("a") for _ in range(LINES + 2)] == [0] * LINES + [None, None]
    assert limit.admit("b") == 0
    now = INTERVAL_S
    assert [limit.admit("a"), limit.admit("a")] == [2, 0]


def test_a_clock_that_is_set_back_does_not_silence_the_log() -> None:
    now = 1e6
    limit = LogLimit(lambda: now, num_lines=1)
    assert [limit.admit(), limit.admit()] == [0, None]
    now = 0.0
    assert limit.admit() == 1


def test_a_line_says_how_many_of_its_kind_were_left_out_before_it() -> None:
    now, lines = 0.0, list[tuple[str, dict[str, object]]]()
    limit = LogLimit(lambda: now, num_lines=1)
    for _ in range(3):
        limit.log(lambda event, **fields: lines.append((event, fields)), "refused", why="full")
    now = INTERVAL_S
    limit.log(lambda event, **fields: lines.append((event, fields)), "refused", why="full")
    assert lines == [("refused", {"why": "full"}), ("refused", {"why": "full", "num_left_out": 2})]
