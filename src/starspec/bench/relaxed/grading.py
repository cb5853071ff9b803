"""What is read from an answer before it is graded: pure functions of text.

GSM8K: the answer is the number after the last "####". Without one it is the last number of the text, which is the usual
"flexible" extraction. HumanEval: the answer is the completion up to the first line at the left margin that begins
something else, as in the Codex paper, and up to the end of a code block.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

NUMBER: Final = re.compile(r"(?<![\w)])-?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?", re.ASCII)
MARKED_NUMBER: Final = re.compile(r"####[\s*]*(" + NUMBER.pattern + ")", re.ASCII)
STOPS: Final = ("\nclass ", "\ndef ", "\nif ", "\nprint", "\n#", "\n@", "\n```")


def answer_number(text: str) -> Decimal | None:
    """The number that an answer, or a reference of GSM8K, ends with; None if it has none."""
    found = MARKED_NUMBER.findall(text) or NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None


def is_same_number(reference: str, answer: str) -> bool:
    """GSM8K's exact match. 18, 18.00 and $18 are the same."""
    expected = answer_number(reference)
    return expected is not None and answer_number(answer) == expected


def cut_completion(text: str) -> str:
    """The function body that a completion begins with."""
    return text[: min(place for stop in STOPS if (place := f"{text}{stop}".find(stop)) >= 0)]


def program_of(prompt: str, completion: str, tests: str) -> str:
    """The whole Python program of a HumanEval problem: it ends without an exception if the completion is right."""
    return f"{prompt}{cut_completion(completion)}\n{tests}\n"
