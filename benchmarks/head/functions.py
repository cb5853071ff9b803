"""Small functions of our own making: a name, types, a description, and examples that were really run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Step = tuple[str, str, Callable[[Any], Any]]  # word of the name, description, what it does

NUMBER_FILTERS: tuple[Step, ...] = (
    ("even", "that are even", lambda x: x % 2 == 0),
    ("odd", "that are odd", lambda x: x % 2 == 1),
    ("positive", "that are greater than zero", lambda x: x > 0),
    ("negative", "that are below zero", lambda x: x < 0),
    ("large", "that are at least ten", lambda x: x >= 10),
    ("two_digit", "that have exactly two digits", lambda x: 10 <= abs(x) <= 99),
    ("divisible_by_three", "that three divides without a remainder", lambda x: x % 3 == 0),
    ("non_zero", "that are not zero", lambda x: x != 0),
    ("square", "that are perfect squares", lambda x: x >= 0 and int(x**0.5) ** 2 == x),
    ("ending_in_five", "whose last digit is five", lambda x: abs(x) % 10 == 5),
)
NUMBER_MAPS: tuple[Step, ...] = (
    ("squared", "squared", lambda x: x * x),
    ("doubled", "doubled", lambda x: 2 * x),
    ("halved", "divided by two, rounding down", lambda x: x // 2),
    ("negated", "with their sign changed", lambda x: -x),
    ("absolute", "as absolute values", abs),
    ("digit_sums", "replaced by the sum of their digits", lambda x: sum(map(int, str(abs(x))))),
    ("incremented", "increased by one", lambda x: x + 1),
    ("binary_lengths", "replaced by the number of their binary digits", lambda x: x.bit_length()),
    ("clipped", "limited to the range from 0 to 20", lambda x: max(0, min(20, x))),
    ("remainders", "replaced by their remainder modulo seven", lambda x: x % 7),
)
NUMBER_ENDS: tuple[tuple[str, str, str, Callable[[list[int]], Any]], ...] = (
    ("sum", "the sum of", "int", sum),
    ("count", "how many there are of", "int", len),
    ("largest", "the largest, or None if there is none, of", "Optional[int]", lambda v: max(v, default=None)),
    ("smallest", "the smallest, or None if there is none, of", "Optional[int]", lambda v: min(v, default=None)),
    ("sorted", "in increasing order", "List[int]", sorted),
    ("reversed", "in reverse order", "List[int]", lambda v: v[::-1]),
    ("unique", "without repetitions, in the order of first appearance,", "List[int]", lambda v: list(dict.fromkeys(v))),
    ("list", "as a list", "List[int]", list),
    (
        "range",
        "the difference between largest and smallest, 0 if empty, of",
        "int",
        lambda v: max(v) - min(v) if v else 0,
    ),
    ("joined", "separated by commas in a string,", "str", lambda v: ",".join(map(str, v))),
    ("running_total", "the running totals of", "List[int]", lambda v: [sum(v[: i + 1]) for i in range(len(v))]),
    ("any_repeated", "whether any value occurs twice among", "bool", lambda v: len(set(v)) < len(v)),
)
WORD_FILTERS: tuple[Step, ...] = (
    ("long", "with more than four letters", lambda w: len(w) > 4),
    ("short", "with at most four letters", lambda w: len(w) <= 4),
    ("vowel", "that begin with a vowel", lambda w: w[0].lower() in "aeiou"),
    ("capital", "that begin with a capital letter", lambda w: w[0].isupper()),
    ("with_e", "that contain the letter e", lambda w: "e" in w.lower()),
    ("symmetric", "whose first and last letters are the same", lambda w: w[0].lower() == w[-1].lower()),
    ("without_s", "that do not end in s", lambda w: not w.endswith("s")),
    ("even_length", "with an even number of letters", lambda w: len(w) % 2 == 0),
)
WORD_MAPS: tuple[Step, ...] = (
    ("upper", "in capital letters", str.upper),
    ("backwards", "spelled backwards", lambda w: w[::-1]),
    ("initial", "reduced to their first letter", lambda w: w[0]),
    ("doubled", "written twice", lambda w: w + w),
    ("without_vowels", "without their vowels", lambda w: "".join(c for c in w if c.lower() not in "aeiou")),
    ("swapped", "with upper and lower case exchanged", str.swapcase),
    ("starred", "with a star at the end", lambda w: w + "*"),
)
WORD_ENDS: tuple[tuple[str, str, str, Callable[[list[str]], Any]], ...] = (
    ("joined", "joined by hyphens,", "str", "-".join),
    ("count", "the number of", "int", len),
    ("longest", "the longest, or an empty string, of", "str", lambda v: max(v, key=len, default="")),
    ("sorted", "in alphabetical order", "List[str]", sorted),
    ("lengths", "the lengths of", "List[int]", lambda v: [len(w) for w in v]),
    ("total_length", "the number of letters of all", "int", lambda v: sum(map(len, v))),
    ("list", "as a list", "List[str]", list),
    ("counts", "how often each occurs, as a dictionary, of", "Dict[str, int]", lambda v: {w: v.count(w) for w in v}),
)
WORDS = """apple River stone cloud Tiger engine small orange bus idea Anna level light water grass Moon seven table cup
open house Eve train salt echo window Paris dog kayak sun bottle Oslo nine paper radar ship green tree Berlin""".split()
SUBJECTS = ("numbers", "values", "items", "data", "readings", "scores", "prices", "ages", "sizes", "points")
FRAMES = ("{stub}",) * 8 + (
    "Complete this function:\n```python\n{stub}```",
    "Complete the following Python function.\n\n{stub}",
    "Finish the body of this function and explain it briefly.\n\n{stub}",
    "Write a Python function `{name}` that returns {what}.",
    "Write a function in Python which takes {arguments} and returns {what}. Include an example.",
    "How would you compute {what} in Python?",
    "Implement a function in {language} that returns {what}.",
    "Write a {language} program that reads {arguments} and prints {what}.",
    "Write unit tests for this function.\n\n{stub}",
    "What is the time complexity of a function that returns {what}? Show the code.",
)
LANGUAGES = ("C++", "Java", "JavaScript", "Go", "Rust", "Ruby", "TypeScript", "C", "Kotlin", "SQL", "Bash")


def made_up_function(dice: random.Random) -> str:
    """One prompt about a function that nobody has named before."""
    is_words = dice.random() < 0.4
    filters, maps, ends = (
        (WORD_FILTERS, WORD_MAPS, WORD_ENDS) if is_words else (NUMBER_FILTERS, NUMBER_MAPS, NUMBER_ENDS)
    )
    chosen = dice.choice(filters) if dice.random() < 0.8 else None
    mapped = dice.choice(maps) if chosen is None or dice.random() < 0.5 else None
    end_name, end_text, returned, end = dice.choice(ends)
    argument = "words" if is_words else dice.choice(SUBJECTS)
    what = _sentence(argument, chosen, mapped, end_text)
    name = "_".join([end_name, *(step[0] for step in (chosen, mapped) if step), argument][: dice.choice((3, 4))])

    def run(values: list[Any]) -> Any:
        kept = [value for value in values if chosen is None or chosen[2](value)]
        return end([mapped[2](value) for value in kept] if mapped else kept)

    stub = _stub(dice, name, argument, "str" if is_words else "int", returned, what, run)
    kind = "a list of words" if is_words else "a list of integers"
    return dice.choice(FRAMES).format(stub=stub, name=name, what=what, arguments=kind, language=dice.choice(LANGUAGES))


def _sentence(argument: str, chosen: Step | None, mapped: Step | None, end_text: str) -> str:
    things = f"the {argument}" + (f" {chosen[1]}" if chosen else "")
    things += f", {mapped[1]}" if mapped else ""
    if end_text.endswith((" of", " among", "all")):
        return f"{end_text} {things}"
    return f"{things}, {end_text}".rstrip(",")


def _stub(dice: random.Random, name: str, argument: str, kind: str, returned: str, what: str, run: Any) -> str:
    typed = dice.random() < 0.7
    signature = f"{argument}: List[{kind}]" if typed else argument
    arrow = f" -> {returned}" if typed else ""
    names = [each for each in ("Dict", "List", "Optional") if f"{each}[" in signature + arrow]
    imports = f"from typing import {', '.join(names)}\n\n\n" if typed else dice.choice(("", "\n"))
    opening = dice.choice(
        ("Return", "Returns", "Compute", "Given a list, return", "Find", "Write a function that returns")
    )
    lines = [f"{opening} {what}."]
    style = dice.randrange(4)
    for _ in range(dice.choice((0, 1, 2, 2, 3))):
        values = _example(dice, kind)
        result = run(values)
        lines += (
            [f">>> {name}({values})", repr(result)],
            [f"{name}({values}) == {result!r}"],
            [f"For {argument} = {values} the result is {result!r}."],
            [f"Example: {name}({values}) ➞ {result!r}"],
        )[style]
    body = "\n    ".join(lines)
    quotes = dice.choice(('"""', '"""', "'''"))
    space = dice.choice(("", " ", "\n    "))
    return f"{imports}def {name}({signature}){arrow}:\n    {quotes}{space}{body}\n    {quotes}\n"


def _example(dice: random.Random, kind: str) -> list[Any]:
    num = dice.choice((0, 2, 3, 4, 5, 6))
    return dice.choices(WORDS, k=num) if kind == "str" else [dice.randint(-12, 40) for _ in range(num)]
