"""How far a head's drafts go: `python benchmarks/head/acceptance.py TARGET HEAD OUT.json PROMPTS.jsonl ...`.

The first turns of all prompts are answered greedily, 128 tokens each, once for each shape. Nothing is timed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.progress import track

from starspec import LLM, SamplingParams
from starspec.harness.datasets import read_prompts
from starspec.harness.provenance import collect_provenance

SHAPES: dict[str, dict[str, int]] = {
    "chain of 3": {"num_speculative_tokens": 3},
    "chain of 4": {"num_speculative_tokens": 4},
    "tree of 24 nodes, 6 x 8": {"num_steps": 6, "eagle_topk": 8, "num_draft_tokens": 25},  # SGLang counts the root
}
MAX_TOKENS, AT_ONCE = 128, 8


def main(target: str, head: str, out: Path, files: list[Path]) -> None:
    """Effects: writes `out` after each shape."""
    found: dict[str, dict[str, float]] = {}
    provenance = asdict(collect_provenance({"target": target, "head": head}))
    for name, shape in track(SHAPES.items(), "shapes"):
        llm = LLM(
            target,
            max_model_len=1024,
            max_num_seqs=AT_ONCE,
            speculative_config={"method": "eagle3", "model": head, **shape},
        )
        counts = {file.stem: count(llm, file) for file in files}
        counts["all"] = [sum(each) for each in zip(*counts.values(), strict=True)]
        found[name] = {file: round(1 + accepted / drafts, 4) for file, (accepted, drafts) in counts.items()}
        out.write_text(json.dumps({"provenance": provenance, "tokens_a_round": found}, indent=2) + "\n")


def count(llm: LLM, file: Path) -> list[int]:
    """[accepted tokens, rounds with drafts] over a file's prompts."""
    messages = [[{"role": "user", "content": prompt.text}] for prompt in read_prompts(file)]
    results = llm.chat(messages, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    stats = [result.metrics.acceptance for result in results]
    return [sum(each.num_accepted_tokens for each in stats), sum(each.num_drafts for each in stats)]


if __name__ == "__main__":
    target, head, out, *files = sys.argv[1:]
    main(target, head, Path(out), [Path(file) for file in files])
