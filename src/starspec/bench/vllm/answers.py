"""What a vLLM server answers, token by token, and where two servers' answers part."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from starspec.bench.vllm.server import MODEL_NAME
from starspec.errors import PeerLost
from starspec.harness.compare import first_difference

TIMEOUT_S: Final = 600.0  # of one answer
NUM_LIKELIEST: Final = 5  # tokens of each position whose log-probabilities are asked for
# Nats. bfloat16 has 8 bits: a logit of 16 to 32 is rounded to steps of 1/8, and kernels for one row and for several may
# differ by a few of them. float32 would not part there.
NEAR_TIE: Final = 0.5


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    """One completion."""

    token_ids: Sequence[int]
    likeliest: Sequence[dict[int, float]] = ()  # for each token, ids and log-probabilities; empty if not asked for


@dataclass(frozen=True, slots=True)
class Timed:
    """All answers, and how long they took together."""

    answers: list[VllmAnswer]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(len(each.token_ids) for each in self.answers) / self.seconds


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer first differs from that of the server without speculation."""

    prompt: int  # its index
    position: int  # of the token within the answer
    gap: float | None  # nats between the two tokens, there; None: the other one is not among the likeliest

    @property
    def is_near_tie(self) -> bool:
        return self.gap is not None and self.gap <= NEAR_TIE


async def ask_all(
    url: str,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    batch_size: int,
    with_likeliest: bool = False,
    sampling: dict[str, Any] | None = None,
) -> Timed:
    """Answer all prompts, `batch_size` at a time, each as soon as one before it has ended.

    Args:
        prompts: token ids.
        num_tokens: of each answer; the end of the text is ignored.
        sampling: further fields of each request; None = greedy.
    Raises: PeerLost if a request fails.
    """
    body = {"temperature": 0.0, **(sampling or {})}
    if with_likeliest:
        body |= {"logprobs": NUM_LIKELIEST, "return_tokens_as_token_ids": True}
    free = asyncio.Semaphore(batch_size)

    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:

        async def answer(prompt: Sequence[int]) -> VllmAnswer:
            async with free:
                return await _ask(http, prompt, num_tokens, body)

        started_s = time.monotonic()
        answers = await asyncio.gather(*(answer(prompt) for prompt in prompts))
        return Timed(answers, time.monotonic() - started_s)


def partings(expected: Sequence[VllmAnswer], found: Sequence[VllmAnswer]) -> list[Parting]:
    """Every answer that differs.

    Args:
        expected: with the likeliest tokens of each position.
    """
    all_partings = []
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        at = first_difference(one.token_ids, other.token_ids)
        if at is not None:
            likeliest = one.likeliest[at]
            said, instead = (likeliest.get(each.token_ids[at]) for each in (one, other))
            gap = None if said is None or instead is None else abs(said - instead)
            all_partings.append(Parting(index, at, gap))
    return all_partings


async def _ask(http: httpx.AsyncClient, prompt: Sequence[int], num_tokens: int, body: dict[str, Any]) -> VllmAnswer:
    request = {"model": MODEL_NAME, "prompt": list(prompt), "max_tokens": num_tokens, "ignore_eos": True}
    try:
        response = await http.post("/v1/completions", json=request | body | {"return_token_ids": True})
        choice = response.raise_for_status().json()["choices"][0]
    except httpx.HTTPError as error:
        raise PeerLost(f"vLLM at {http.base_url} failed to answer: {error!r}") from error
    logprobs = choice.get("logprobs") or {}
    likeliest = [
        {int(name.removeprefix("token_id:")): value for name, value in position.items()}
        for position in logprobs.get("top_logprobs") or ()
    ]
    return VllmAnswer(choice["token_ids"], likeliest)
