"""How a config field appears on a command line. The field's annotation says it once, beside its name and type.

    num_rows: Annotated[int, Option("Sequences held at once.", LIMITS, least=1)] = 8

`starspec.cli.binder` makes command-line options of such fields, and `check_ranges` tests the same bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MODELS: Final = "Models"
SPECULATION: Final = "Speculation"
NETWORK: Final = "Network"
LIMITS: Final = "Limits"
PROCESS: Final = "Process"
SAMPLING: Final = "Sampling"
MEASURE: Final = "Measurement"

NONE_GIVEN: Final = "none"
A_MODEL: Final = "Hugging Face folder, hub id, .gguf file, or synthetic:KEY=VALUE,..."
P_MIN_RULE: Final = "drafting stops when the draft gives the nodes to expand, together, a lower probability; 0 = never"

LARGEST: Final = 10**9
"""Of a number without a bound of its own. Larger ones overflow what counts milliseconds, rows or bytes somewhere."""

Form = Literal[
    "plain",
    "path",
    "memory",
    "by_name",
    "word_or_number",
    "ports",
    "numbers",
    "reals",
    "names",
    "list",
    "arguments",
]
"""How a value is written on the command line.

plain             as the field's own type
path              a file or folder; the field holds text
memory            512MiB, 2GiB or a number of bytes
by_name           NAME=NUMBER,...
word_or_number    one of the field's words, or a number
ports             FIRST-LAST
numbers, reals    several with commas between, each once
names             several words with commas between, each once
list              several words with commas between, in an order that counts
arguments         words of a command line, as a shell splits them
"""


@dataclass(frozen=True, slots=True)
class Option:
    """A field as a command-line option.

    Args:
        help: a sentence for `--help`.
        panel: the heading under which `--help` lists the option.
        flags: its names; empty = the field's name.
        least, most: bounds of a number, or of each number in `numbers` and `reals`. Both inclusive.
        shown: what `--help` shows as the default, where the default itself says nothing.
        form: how the value is written.
        words: those of a `word_or_number`.
        unit: what its number counts.
        envvar: an environment variable that gives the value too.
    """

    help: str
    panel: str
    flags: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    shown: str | None = None
    form: Form = "plain"
    words: tuple[str, ...] = ()
    unit: str = ""
    envvar: str | None = None

    def names(self, field: str) -> tuple[str, ...]:
        """Its names on a command line, the usual one first. Args: field: the name of the field."""
        return self.flags or (f"--{field.replace('_', '-')}",)

    @property
    def known(self) -> str:
        """What a `word_or_number` may be, for an error's sentence."""
        return f"{', '.join(self.words)} or a number of {self.unit}"


DRAFT_P_MIN: Final = Option(f"Least probability of a draft, 0 to 1: {P_MIN_RULE}.", SPECULATION, least=0.0, most=1.0)
"""`draft_p_min`, wherever it is an option. `DraftBudget.p_min` has the whole rule."""
