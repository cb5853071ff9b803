"""Compares decoding with drafts and without, in turns, and runs the race of one stream at a time on one target.

That race shows what drafting gains where it should.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

from openai import AsyncOpenAI
from rich.console import Console

from starspec.harness.report import Spread
from starspec.models.loading.demo_model import demo_head_folder

KINDS = {
    "code": (
        "Write a Python function that tells whether a number is prime.",
        "Write a Python function that counts how often each word occurs in a text.",
    ),
    "conversation": (
        "Explain in three sentences why the sky is blue.",
        "List five things to pack for a week in the mountains.",
    ),
}
ALL = "all"  # kinds of prompts


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts in a race."""

    name: str
    options: Callable[[Path], list[str]]  # the target's folder -> options of `starspec up`


HEAD_TREE = {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6, "draft_p_min": 0.3}  # small: rows are dear on some
HEAD_OPTIONS = [
    "--speculative-config",
    json.dumps(HEAD_TREE),
    "--draft-num-threads",
    "1",
    "--draft-quantization",
    "int4",
]
HEAD = Draft("the EAGLE head", lambda _: ["--draft", str(demo_head_folder()), *HEAD_OPTIONS])
SELF_DRAFT = Draft("the target itself in int4", lambda model: ["--draft", str(model), "--draft-quantization", "int4"])


@dataclass(frozen=True, slots=True)
class Turn:
    """The prompts answered once."""

    token_ids: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds

    def __add__(self, other: Turn) -> Turn:
        return Turn(self.token_ids + other.token_ids, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRow:
    """One kind of prompts in a race, as a receipt keeps it."""

    drafts: str
    prompts: str
    tokens_per_s: Spread  # with drafts
    plain_tokens_per_s: Spread
    speed_up: float  # median of the repeats' ratios
    is_identical: bool
    num_tokens: int  # of one repeat


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Pairs of turns over prompts of one kind, with drafts and plainly."""

    pairs: list[tuple[Turn, Turn]]

    @property
    def is_identical(self) -> bool:
        return all(drafted.token_ids == plain.token_ids and all(plain.token_ids) for drafted, plain in self.pairs)

    @property
    def speed_up(self) -> float:
        """Rounded here, once: of 1.5352 the line would say 1.54, and the receipt's 1.535 reads 1.53."""
        return round(_ratio(self._median_pair), 3)

    @property
    def line(self) -> str:
        """The median repeat; what is said of it belongs together, whatever the machine did in another."""
        drafted, plain = self._median_pair
        return f"{self.speed_up:.2f}x ({drafted.tokens_per_s:.1f} against {plain.tokens_per_s:.1f} tokens/s)"

    @property
    def _median_pair(self) -> tuple[Turn, Turn]:
        return sorted(self.pairs, key=_ratio)[(len(self.pairs) - 1) // 2]  # of an even number, not the better one

    def row(self, drafts: str, prompts: str) -> RaceRow:
        """For the receipt."""
        drafted, plain = (Spread.of([turn.tokens_per_s for turn in turns]) for turns in zip(*self.pairs, strict=True))
        return RaceRow(
            drafts=drafts,
            prompts=prompts,
            tokens_per_s=drafted,
            plain_tokens_per_s=plain,
            speed_up=self.speed_up,
            is_identical=self.is_identical,
            num_tokens=sum(map(len, self.pairs[0][0].token_ids)),
        )

    def __add__(self, other: RaceResult) -> RaceResult:
        """The prompts of both kinds, one after the other, repeat by repeat."""
        both = zip(self.pairs, other.pairs, strict=True)
        return RaceResult([(one[0] + two[0], one[1] + two[1]) for one, two in both])


def _ratio(pair: tuple[Turn, Turn]) -> float:
    drafted, plain = pair
    return drafted.tokens_per_s / plain.tokens_per_s


async def race(gateway: str, num_repeats: int, max_tokens: int) -> dict[str, RaceResult]:
    """Answer prompts of each kind greedily, plainly and with drafts in turns; one answer each warms up."""
    client = AsyncOpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    pairs: dict[str, list[tuple[Turn, Turn]]] = {kind: [] for kind in KINDS}
    try:
        model = (await client.models.list()).data[0].id
        for is_speculative in (True, False):
            await _turn(client, model, KINDS["code"][:1], max_tokens, is_speculative=is_speculative)
        for repeat in range(num_repeats):
            with Console().status(f"one stream at a time: {repeat + 1} of {num_repeats}"):
                for kind, prompts in KINDS.items():
                    plain = await _turn(client, model, prompts, max_tokens, is_speculative=False)
                    drafted = await _turn(client, model, prompts, max_tokens, is_speculative=True)
                    pairs[kind].append((drafted, plain))
    finally:
        await client.close()
    return {kind: RaceResult(each) for kind, each in pairs.items()}


def race_rows(name: str, results: dict[str, RaceResult]) -> list[RaceRow]:
    """A row for each kind of prompts, and one for all of them."""
    return [each.row(name, kind) for kind, each in {**results, ALL: overall_result(results)}.items()]


def overall_result(results: dict[str, RaceResult]) -> RaceResult:
    """All kinds of prompts as one."""
    return reduce(add, results.values())


def race_line(name: str, results: dict[str, RaceResult]) -> str:
    """One line for what drafted, medians of the repeats."""
    overall = overall_result(results)
    same = "identical" if overall.is_identical else "DIFFERENT"
    kinds = ", ".join(f"{kind} {each.speed_up:.2f}x" for kind, each in results.items())
    return (
        f"one stream, drafts by {name}, against plain decoding: {overall.line}; {kinds};"
        f" median of {len(overall.pairs)}, {same}"
    )


async def _turn(
    client: AsyncOpenAI, model: str, prompts: Sequence[str], max_tokens: int, *, is_speculative: bool
) -> Turn:
    started_s, answers = time.monotonic(), list[list[int]]()
    for prompt in prompts:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0.0,
            stream=True,
            extra_body={"speculative": is_speculative, "return_token_ids": True},
        )
        ids: list[int] = []
        async for chunk in stream:
            for choice in chunk.choices:
                ids += (choice.model_extra or {}).get("token_ids") or []
        answers.append(ids)
    return Turn(answers, time.monotonic() - started_s)
