"""Do training prompts share text with benchmarks? `python benchmarks/head/overlap.py PROMPTS.jsonl BENCHMARK.jsonl ...`

Compared are runs of 13 words, the usual measure (Brown et al., 2020, appendix C), whatever their case and punctuation.
Prints what is shared, and exits 1 if anything is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from starspec.harness.datasets import Prompt, read_prompts

NUM_WORDS = 13


def main(prompts: Path, benchmarks: Sequence[Path]) -> int:
    """Returns: how many benchmark entries share a run of words with a prompt."""
    shared: dict[str, tuple[str, str]] = {}
    entries = {run: f"{file.name}: {entry.name}" for file in benchmarks for entry, run in runs(file)}
    for prompt, run in runs(prompts):
        if run in entries:
            shared.setdefault(entries[run], (prompt.name, " ".join(run)))
    for entry, (name, words) in shared.items():
        print(f"{entry} and {name}: {words}")
    print(
        f"{len(read_prompts(prompts))} prompts; benchmark entries that share {NUM_WORDS} words with one: {len(shared)}"
    )
    return len(shared)


def runs(file: Path) -> Iterator[tuple[Prompt, tuple[str, ...]]]:
    """Every run of words of every entry."""
    for entry in read_prompts(file):
        words = re.findall(r"\w+", entry.text.lower())
        for start in range(len(words) - NUM_WORDS + 1):
            yield entry, tuple(words[start : start + NUM_WORDS])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]]) > 0)
