"""What a running vLLM server answers, and how long its steps take with so many requests at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

import httpx

from starspec.bench.vllm.reading import connection
from starspec.errors import ConfigError

TIMEOUT_S: Final = 120.0  # for anything to be heard; a slow machine may read a long prompt that long


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer as it came."""

    token_ids: list[int]
    step_s: list[float]  # of each token but those of the first piece


class VllmServer:
    """A server's model.

    Args:
        url: http://host:port; `/v1` may follow.
        model: one of those that it serves.
    """

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    def tokenize(self, text: str) -> list[int]:
        """Without tokens that mark a beginning. Raises: ConfigError if the server does not answer that."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            with httpx.Client(**connection(self.url), timeout=TIMEOUT_S) as http:
                found = http.post("/tokenize", json=body).raise_for_status().json()
            return [int(each) for each in found["tokens"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"vLLM at {self.url} does not tokenize: {error}") from error

    def answer_all(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, at_once: int, temperature: float, to_the_end: bool
    ) -> list[Streamed]:
        """Stream answers to prompts of token ids, `at_once` of them at a time.

        No seed is sent: vLLM 0.32 on CPU ends at a seeded request whose prompt is read in chunks.

        Args:
            to_the_end: to the end of the text, if that comes before `max_tokens`.
        Raises: ConfigError if the server refuses one, or ends.
        """
        body = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "ignore_eos": not to_the_end,
            "stream": True,
            "return_token_ids": True,
        }
        return asyncio.run(self._answer_all(prompts, at_once, body))

    def step_seconds(self, prompts: Sequence[Sequence[int]], *, at_once: int, num_tokens: int) -> float:
        """Median time from token to token of one request, beside so many others less one. Raises: as `answer_all`."""
        chosen = [prompts[index % len(prompts)] for index in range(at_once)]
        answers = self.answer_all(chosen, max_tokens=num_tokens, at_once=at_once, temperature=0.0, to_the_end=False)
        return median_step(answers)

    async def _answer_all(self, prompts: Sequence[Sequence[int]], at_once: int, body: dict[str, Any]) -> list[Streamed]:
        free = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(**connection(self.url), timeout=TIMEOUT_S) as http:

            async def answer(prompt: Sequence[int]) -> Streamed:
                async with free:
                    return await self._stream(http, body | {"prompt": list(prompt)})

            try:
                return list(await asyncio.gather(*(answer(prompt) for prompt in prompts)))
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"vLLM at {self.url} does not answer: {error!r}") from error

    async def _stream(self, http: httpx.AsyncClient, body: dict[str, Any]) -> Streamed:
        pieces: list[tuple[float, list[int]]] = []
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if not response.is_success:
                said = (await response.aread()).decode(errors="replace")
                raise ConfigError(f"vLLM at {self.url} refuses: {said[:500]}")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    token_ids = _token_ids(line.removeprefix("data: "))
                    pieces += [(time.monotonic(), token_ids)] if token_ids else []
        return Streamed(
            [token_id for _, token_ids in pieces for token_id in token_ids],
            [
                (arrived_s - before_s) / len(token_ids)
                for (before_s, _), (arrived_s, token_ids) in pairwise(pieces)
                for _ in token_ids
            ],
        )


def median_step(answers: Sequence[Streamed]) -> float:
    """Of all steps of all answers. Raises: ConfigError if no answer has two pieces."""
    steps = [step_s for answer in answers for step_s in answer.step_s]
    if not steps:
        raise ConfigError("every answer came in one piece, so no step could be timed: allow more --max-tokens")
    return median(steps)


def _token_ids(data: str) -> list[int]:
    """Of one event. Raises: ValueError, KeyError, TypeError if it is none of a completion."""
    choices = json.loads(data)["choices"]
    return [int(each) for choice in choices for each in choice["token_ids"] or ()]
