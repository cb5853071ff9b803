"""Progress on standard error: lines where there is no terminal, and only of what takes a while."""

import io

import pytest
from rich.console import Console

from starspec.models.loading.progress import counted, counting, listening, report
from starspec.observe.progress import ProgressBar


def lines_of(moments: list[tuple[float, str, int, int]], width: int = 100, **options: object) -> list[str]:
    """What a bar prints that is told these things at these times."""
    written = io.StringIO()
    now_s = 0.0
    bar = ProgressBar("loading", console=Console(file=written, width=width), clock=lambda: now_s, **options)
    with bar:
        for now_s, stage, num_done, num_all in moments:  # noqa: B007 (the clock reads it)
            bar.show(stage, num_done, num_all)
    return written.getvalue().splitlines()


def test_what_is_soon_done_prints_nothing() -> None:
    assert lines_of([(0.0, "reading", 0, 10), (0.5, "packing", 3, 10), (1.9, "packing", 10, 10)]) == []


def test_each_stage_is_a_line_after_two_seconds_and_a_long_one_another_every_ten() -> None:
    moments = [
        (0.0, "reading", 0, 10),
        (3.0, "reading", 4, 10),
        (8.0, "reading", 5, 10),
        (14.0, "reading", 8, 10),
        (15.0, "packing", 0, 4),
        (16.0, "packing", 4, 4),
        (17.0, "probing", 0, 0),
    ]
    assert lines_of(moments) == [
        "loading: reading, 40%",
        "loading: reading, 80%",
        "loading: packing, 0%",
        "loading: probing",
    ]


def test_a_line_is_never_cut_where_there_is_no_terminal() -> None:
    assert lines_of([(3.0, "reading smollm2-135m", 2, 10)], width=20) == ["loading: reading smollm2-135m, 20%"]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_names_are_no_markup_and_command_no_terminal(is_terminal: bool) -> None:
    written, name = io.StringIO(), "[/]a[red]\x1b[2J\x9b\r:smile:"
    console = Console(file=written, width=100, force_terminal=is_terminal, color_system=None)
    with ProgressBar(name, first_line_s=0.0, console=console) as bar:
        bar.show(name, 1, 2)
    assert r"[/]a[red]\x1b[2J\x9b\r:smile:: [/]a[red]\x1b[2J\x9b\r:smile:" in written.getvalue()


def test_nothing_is_shown_if_nobody_wants_it() -> None:
    assert lines_of([(5.0, "reading", 1, 2)], is_shown=False) == []


def test_turns_are_counted_whatever_is_shown_between_them() -> None:
    written = io.StringIO()
    now_s = 0.0
    console = Console(file=written, width=100)
    with ProgressBar("bench", first_line_s=0.0, console=console, clock=lambda: now_s) as bar:
        bar.begin("serving", 4)
        for now_s in (10.0, 20.0):  # noqa: B007 (the clock reads it)
            bar.turn("the hub")
            bar.show("reading", 1, 2)
            bar.turn("the target")
        bar.turn("one that was not expected")
    assert written.getvalue().splitlines() == [
        "bench: serving, 0%",
        *("bench: serving, 20%", "bench: reading, 50%", "bench: serving, 50%"),
        *("bench: serving, 70%", "bench: reading, 50%", "bench: serving, 100%"),
    ]


def test_a_terminal_gets_a_bar_with_the_stage() -> None:
    written = io.StringIO()
    with ProgressBar("loading", console=Console(file=written, width=100, force_terminal=True)) as bar:
        bar.show("reading", 1, 2)
        bar.show("packing", 3, 4)
    assert "loading: packing" in written.getvalue()


def test_names_are_shown_as_they_are() -> None:
    name = "reading [/x] [bold] :star:"
    assert lines_of([(3.0, name, 1, 2)]) == [f"loading: {name}, 50%"]
    written = io.StringIO()
    with ProgressBar("loading", console=Console(file=written, width=100, force_terminal=True)) as bar:
        bar.show(name, 1, 2)
    assert f"loading: {name}" in written.getvalue()


def test_reports_reach_the_listener_of_their_block_alone() -> None:
    heard: list[tuple[str, int, int]] = []
    report("nobody listens")
    with listening(lambda *said: heard.append(said)):
        assert list(counted("reading", [("a", 30), ("b", 70)], 100)) == ["a", "b"]
        pack = counting("packing", lambda x: x + 1, 2)
        assert [pack(1), pack(2)] == [2, 3]
        with listening(None):
            report("not heard")
    report("nobody listens any more")
    assert heard == [
        ("reading", 0, 100),
        ("reading", 30, 100),
        ("reading", 100, 100),
        ("packing", 0, 2),
        ("packing", 1, 2),
        ("packing", 1, 2),
        ("packing", 2, 2),
    ]
