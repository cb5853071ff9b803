"""Problems whose answers can be graded: HumanEval and GSM8K, as prompt files with references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from starspec.bench.relaxed.grading import MARKED_NUMBER, STOPS
from starspec.errors import ConfigError
from starspec.harness.datasets import CONTINUED, Prompt, read_prompts, spread

GSM8K_INSTRUCTION = 'Reason step by step. End with a line that has "#### " and the number of the answer.'


class Task(Enum):
    """What a problem asks for."""

    HUMAN_EVAL = "HumanEval"  # continue a Python function; the tests of the reference must pass
    GSM8K = "GSM8K"  # a question whose answer is a number; it must be the one that the reference marks with ####

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer."""
        return STOPS if self is Task.HUMAN_EVAL else ()


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, as a model is asked."""

    task: Task
    prompt: Prompt
    reference: str


def read_problems(paths: Sequence[Path], num: int) -> list[Problem]:
    """`num` problems of each task, evenly spread over its problems in all files; all, if there are fewer.

    Raises: ConfigError if there are no files, or if one cannot be read or has a prompt that cannot be graded.
    """
    if not paths:
        raise ConfigError(
            "bench relaxed grades answers, and starspec comes with no graded problems: give files of HumanEval or "
            "GSM8K with --dataset"
        )
    found = [problem for path in paths for problem in problems_of(read_prompts(path), str(path))]
    return [each for task in Task for each in spread([one for one in found if one.task is task], num)]


def by_task(problems: Sequence[Problem]) -> list[list[Problem]]:
    """The problems of each task that has any."""
    found = [[each for each in problems if each.task is task] for task in Task]
    return [each for each in found if each]


def problems_of(prompts: Sequence[Prompt], where: str) -> list[Problem]:
    """Each prompt as a problem. Raises: ConfigError that names the first one whose reference is of no known task."""
    problems = []
    for prompt in prompts:
        task = task_of(prompt.reference or "")
        if task is None:
            raise ConfigError(
                f"prompts '{where}': '{prompt.name}' has nothing to grade an answer with; bench relaxed needs "
                'JSON lines with "turns" and "reference", which is a solution that ends with "#### NUMBER" (GSM8K), or '
                'tests that define "check" and call it (HumanEval)'
            )
        problems.append(Problem(task, _asked(task, prompt), prompt.reference or ""))
    return problems


def task_of(reference: str) -> Task | None:
    """The task whose references look like this one."""
    if "def check(" in reference:
        return Task.HUMAN_EVAL
    return Task.GSM8K if MARKED_NUMBER.search(reference) else None


def _asked(task: Task, prompt: Prompt) -> Prompt:
    """What the model is given: code to continue as it is, a question with what its answer should look like."""
    if task is Task.HUMAN_EVAL:
        return replace(prompt, category=CONTINUED)
    return replace(prompt, text=f"{prompt.text}\n\n{GSM8K_INSTRUCTION}")


def check_may_run(problems: Sequence[Problem], may_run_code: bool) -> None:
    """Raises: ConfigError if grading would run programs of the model, and nobody has allowed it."""
    if not may_run_code and any(problem.task is Task.HUMAN_EVAL for problem in problems):
        raise ConfigError(
            "HumanEval is graded by running the code that the model writes, on this machine and without isolation: "
            "say --run-generated-code to allow it, or give files of GSM8K only"
        )
