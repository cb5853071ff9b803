"""A client of a running vLLM server: its version, models and counters, its answers, and how long its steps take."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

import httpx

from starspec.errors import ConfigError

STATUS_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class VllmStatus:
    """The status of a server. Counts are since its start."""

    version: str
    models: tuple[str, ...]
    is_speculating: bool  # whether it has counters for drafts
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step that verified a draft, including the target's last token."""
        return 1.0 + (self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0)

    def since(self, before: VllmStatus) -> VllmStatus:
        """The counts since an earlier status of the same server."""
        return replace(
            self,
            num_drafts=self.num_drafts - before.num_drafts,
            num_draft_tokens=self.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens - before.num_accepted_tokens,
        )


def vllm_status(url: str) -> VllmStatus:
    """Ask a server for its status. Raises: ConfigError if nothing answers, or something that is not vLLM."""
    try:
        with httpx.Client(**connection(url), timeout=STATUS_TIMEOUT_S) as http:
            version, metrics = _get(http, "/version"), _get(http, "/metrics")
            listed = http.get("/v1/models")  # only this request needs the api key
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no vLLM server answers at {url}: {error}") from error
    try:
        listing = listed.json()["data"] if listed.is_success else []
        models = tuple(str(each["id"]) for each in listing)
        if any(each.get("owned_by") == "starspec" for each in listing):
            raise ConfigError(f"what answers at {url} is a gateway of starspec: `starspec top` shows its drafts")
        return status_of(str(version.json()["version"]), models, metrics.text)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"what answers at {url} is not a vLLM server") from error


def connection(url: str) -> dict[str, Any]:
    """Arguments for an httpx client. The api key comes from OPENAI_API_KEY, as with OpenAI's own client.

    Raises: ConfigError if the key cannot be sent in a header.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key and not key.isascii():
        raise ConfigError("OPENAI_API_KEY must be of ASCII characters: no server can be asked with it")
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
    }


def status_of(version: str, models: tuple[str, ...], metrics: str) -> VllmStatus:
    """Args: metrics: Prometheus text."""
    drafts = _sum(metrics, "num_drafts")
    return VllmStatus(
        version,
        models,
        drafts is not None,
        drafts or 0,
        _sum(metrics, "num_draft_tokens") or 0,
        _sum(metrics, "num_accepted_tokens") or 0,
    )


def _get(http: httpx.Client, path: str) -> httpx.Response:
    return http.get(path).raise_for_status()


def _sum(metrics: str, name: str) -> int | None:
    """The sum of a counter over all engines; None if the counter does not exist."""
    found = re.findall(rf"^vllm:spec_decode_{name}_total(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return round(sum(float(each) for each in found)) if found else None


TIMEOUT_S: Final = 120.0  # for one piece of an answer; a slow machine may need that long to prefill a long prompt


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer."""

    token_ids: list[int]
    step_s: list[float]  # seconds of each token, except those of the first piece


class VllmClient:
    """A client of one model of a server.

    Args:
        url: http://host:port; `/v1` may follow.
        model: one of those that it serves.
    """

    def __init__(self, url: str, model: str) -> None:
        self.url = url
        self.model = model

    def tokenize(self, text: str) -> list[int]:
        """Token ids without special tokens. Raises: ConfigError if the server cannot tokenize."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        try:
            with httpx.Client(**connection(self.url), timeout=TIMEOUT_S) as http:
                found = http.post("/tokenize", json=body).raise_for_status().json()
            return [int(each) for each in found["tokens"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ConfigError(f"vLLM at {self.url} does not tokenize: {error}") from error

    def answer_all(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, at_once: int, temperature: float, to_the_end: bool
    ) -> list[Streamed]:
        """Stream answers to prompts of token ids, `at_once` of them at a time.

        No seed is sent: vLLM 0.32 on CPU crashes on a seeded request with a chunked prefill.

        Args:
            to_the_end: stop at the end of the text, if it comes before `max_tokens`.
        Raises: ConfigError if the server refuses a request or ends.
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
        """Median time between tokens of one request while `at_once` requests run. Raises: as `answer_all`."""
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
            except (httpx.HTTPError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
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
    """The median step of all answers. Raises: ConfigError if no answer has two pieces."""
    steps = [step_s for answer in answers for step_s in answer.step_s]
    if not steps:
        raise ConfigError("every answer came in one piece, so no step could be timed: allow more --max-tokens")
    return median(steps)


def _token_ids(data: str) -> list[int]:
    """The token ids of one event. Raises: ValueError, KeyError, TypeError if it is not of a completion."""
    choices = json.loads(data)["choices"]
    return [int(each) for choice in choices for each in choice["token_ids"] or ()]
