"""The published certificate is about the sample that the claims state, all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from starspec.bench import claims
from starspec.bench.claims import Part

PROJECT = Path(__file__).parents[2]
RECEIPTS = [
    json.loads(path.read_text()) for path in sorted((PROJECT / "benchmarks" / "results" / "certificate").glob("*.json"))
]
PARTS = [each for each in vars(claims).values() if isinstance(each, Part)]
every_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)


def shards_of(part: Part) -> list[dict[str, Any]]:
    return [receipt for receipt in RECEIPTS if [each["name"] for each in receipt["parts"]] == [part.name]]


@every_part
def test_the_receipts_of_a_part_are_all_its_shards_and_hold(part: Part) -> None:
    receipts = shards_of(part)
    numbers = sorted((each["shard"]["number"], each["shard"]["of"]) for each in receipts)
    assert numbers == [(number, len(receipts)) for number in range(1, len(receipts) + 1)]
    for receipt in receipts:
        assert receipt["holds"]
        assert all(row["num_identical"] == row["num_prompts"] for row in receipt["parts"][0]["rows"])


@every_part
def test_the_receipts_of_a_part_have_its_prompts_contenders_and_samplings(part: Part) -> None:
    parts = [receipt["parts"][0] for receipt in shards_of(part)]
    rows = [row for each in parts for row in each["rows"]]
    assert sum(each["num_prompts"] for each in parts) == part.num_prompts
    assert {each["dtype"] for each in parts} == {part.dtype}
    tried = {
        (row["sampling"], row["contender"], row["batch_size"], row["batching"], row.get("num_stages", 1))
        for row in rows
    }
    wanted = {
        (sampling.name, kind, batch_size, batching.method, num_stages)
        for sampling in part.samplings
        for kind, batch_size in part.contenders
        for batching in part.batchings
        for num_stages in part.stages
    }
    reference = {("greedy", "off", 1, "ragged", 1)} if part.is_against_transformers else set()
    assert tried == wanted | reference
    longest = max(row["num_tokens"] / row["num_prompts"] for row in rows)
    assert part.max_tokens / 2 < longest <= part.max_tokens


@pytest.mark.parametrize("page", ["README.md", "docs/measurements.md"])
def test_pages_say_how_many_tokens_the_receipts_have(page: str) -> None:
    num = sum(row["num_tokens"] for each in RECEIPTS for part in each["parts"] for row in part["rows"])
    assert f"0 of {num:,} tokens differ" in (PROJECT / page).read_text(encoding="utf-8")
