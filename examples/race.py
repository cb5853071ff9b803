"""One stream at a time on one target, with drafts and without, in turns: what drafting gains where it should."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from openai import AsyncOpenAI
from rich.console import Console

from starspec.models.embedded import embedded_head_folder

NUM_PROMPTS = 4
NUM_REPEATS = 3
MAX_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts in a race."""

    name: str
    options: Callable[[Path], list[str]]  # the target's folder -> options of `starspec up`


HEAD_OPTIONS = ["--spec-tokens", "3", "--draft-num-threads", "1", "--draft-quantization", "int4"]
HEAD = Draft("the EAGLE head", lambda _: ["--draft", str(embedded_head_folder()), *HEAD_OPTIONS])
SELF_DRAFT = Draft("the target itself in int4", lambda model: ["--draft", str(model), "--draft-quantization", "int4"])


@dataclass(frozen=True, slots=True)
class Turn:
    """The prompts answered once, one after the other."""

    token_ids: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Pairs of turns, with drafts and plainly."""

    pairs: list[tuple[Turn, Turn]]

    @property
    def is_identical(self) -> bool:
        return all(drafted.token_ids == plain.token_ids and all(plain.token_ids) for drafted, plain in self.pairs)

    @property
    def speed_up(self) -> float:
        """Median of the repeats."""
        return median(drafted.tokens_per_s / plain.tokens_per_s for drafted, plain in self.pairs)

    @property
    def line(self) -> str:
        drafted, plain = (median(turn.tokens_per_s for turn in turns) for turns in zip(*self.pairs, strict=True))
        same = "identical" if self.is_identical else "DIFFERENT"
        rates = f"{drafted:.1f} against {plain:.1f} tokens/s"
        return f"{self.speed_up:.2f}x plain ({rates}, median of {len(self.pairs)}), {same}"


async def race(gateway: str, prompts: Sequence[str]) -> RaceResult:
    """Answer the first prompts greedily, plainly and with drafts in turns; one answer each warms up."""
    client = AsyncOpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    chosen, pairs = prompts[:NUM_PROMPTS], []
    try:
        model = (await client.models.list()).data[0].id
        for is_speculative in (True, False):
            await _turn(client, model, chosen[:1], is_speculative=is_speculative)
        for repeat in range(NUM_REPEATS):
            with Console().status(f"one stream at a time: {repeat + 1} of {NUM_REPEATS}"):
                plain = await _turn(client, model, chosen, is_speculative=False)
                drafted = await _turn(client, model, chosen, is_speculative=True)
            pairs.append((drafted, plain))
    finally:
        await client.close()
    return RaceResult(pairs)


async def _turn(client: AsyncOpenAI, model: str, prompts: Sequence[str], *, is_speculative: bool) -> Turn:
    started_s, answers = time.monotonic(), list[list[int]]()
    for prompt in prompts:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=MAX_TOKENS,
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
