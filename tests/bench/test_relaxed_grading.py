"""Grading: the number of an answer, the end of a completion, and programs that run with limits."""

import time
from decimal import Decimal

import psutil
import pytest

from starspec.bench.relaxed import program
from starspec.bench.relaxed.grading import answer_number, cut_completion, is_same_number, program_of
from starspec.bench.relaxed.program import ProgramLimits, check_programs_run, run_program
from starspec.errors import ConfigError

NUMBERS = {
    "She makes 9 * 2 = $<<9*2=18>>18.\n#### 18": "18",
    "#### 2,125": "2125",
    "#### -10": "-10",
    "####$5.50 a day": "5.50",
    "**#### **42**": "42",
    "#### Step 1: add\n3 + 4 = 7\n#### 7\nThat took 2 steps.": "7",
    "The answer is \\boxed{12}.": "12",
    "So he pays $1,234.50.": "1234.50",
    "10-3=7": "7",
    "it is -5": "-5",
    "between 3-5": "5",
    "100,200": "100200",
    "4, 5": "5",
    "x2 is 3": "3",
}
LIMITS = ProgramLimits(memory_bytes=2**28)
ENDINGS = {
    "nothing raised": ("x = 1", "passed"),
    "an assertion that fails": ("assert 1 == 2", "failed"),
    "no Python": ("def", "failed"),
    "an end before the tests": ("import sys; sys.exit(0)\nassert False", "failed"),
    "an end that runs no cleanup": ("import os; os._exit(0)", "failed"),
    "a question to the user": ("input()", "failed"),
    "memory without bound": ("x = bytearray(2**29)", "failed"),
    "a file without bound": ("open('file', 'w').write('x' * 2**21)", "failed"),
    "many files": ("files = [open('program.py') for _ in range(100)]", "failed"),
    "a file in the folder": ("open('file', 'w').write('x')", "passed"),
    "half a character": ("x = '\ud800'", "passed"),
}


@pytest.mark.parametrize("text", NUMBERS)
def test_an_answer_ends_with_its_number(text: str) -> None:
    assert answer_number(text) == Decimal(NUMBERS[text])


def test_the_same_number_may_be_written_in_other_ways() -> None:
    assert is_same_number("... #### 18", "so it is $18.00")
    assert not is_same_number("#### 18", "#### 18\n#### 19")
    assert not is_same_number("#### 18", "I do not know.")
    assert not is_same_number("no number", "no number either")


@pytest.mark.parametrize(
    "after", ["def g():\n", "class A:\n", "if x:\n", "print(f(1))", "# Test\n", "@cache\ndef g(): ...", "```\nThis is"]
)
def test_a_completion_ends_before_what_is_not_its_function(after: str) -> None:
    body = "    if x:\n        # a comment\n        print(x)\n\n    return x"
    assert cut_completion(f"{body}\n{after}") == body
    assert cut_completion(body) == body


def test_a_program_is_prompt_completion_and_tests() -> None:
    tests = "def check(f):\n    assert f(2) == 4\n\ncheck(double)"
    prompt = "def double(x):\n"
    assert run_program(program_of(prompt, "    return 2 * x\n\nprint(double('never run'), 1 / 0)", tests)) == "passed"
    assert run_program(program_of(prompt, "    return x\n", tests)) == "failed"


@pytest.mark.parametrize(("source", "outcome"), ENDINGS.values(), ids=ENDINGS)
def test_a_program_passes_if_it_reaches_its_end_within_its_limits(source: str, outcome: str) -> None:
    assert run_program(source, LIMITS) == outcome


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # the system may leave dead orphans as they are
    except psutil.NoSuchProcess:
        return False


def test_a_program_without_an_end_is_killed_with_its_children(tmp_path) -> None:
    note = tmp_path / "pids"
    lines = [
        "import os, subprocess",
        "pids = [os.getpid()]",
        "try: pids.append(subprocess.Popen(['sleep', '600']).pid)",
        "except OSError: pass",  # only root may start processes
        f"open({str(note)!r}, 'w').write(' '.join(map(str, pids)))",
        "while True: pass",
    ]
    assert run_program("\n".join(lines), ProgramLimits(seconds=3.0)) == "timed out"
    pids = [int(each) for each in note.read_text().split()]
    deadline_s = time.monotonic() + 10.0
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline_s


def test_a_program_knows_no_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_program("import os; assert 'HF_TOKEN' not in os.environ") == "passed"


def test_a_system_on_which_right_programs_fail_grades_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check_programs_run()
    monkeypatch.setattr(program, "run_program", lambda _source: "failed")
    with pytest.raises(ConfigError, match="HumanEval cannot be graded here"):
        check_programs_run()
