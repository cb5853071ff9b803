"""Clients of a gateway, which note when each piece of an answer came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

DONE = "[DONE]"
TIMEOUT_S = 60.0


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


@dataclass(slots=True)
class Stream:
    """One answer as its client saw it."""

    text: str = ""
    moments_s: list[float] = field(default_factory=list)  # time.monotonic of each piece

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """The longest time between two pieces of which the later came in `start_s .. end_s`; 0 if none did."""
        pairs = zip(self.moments_s, self.moments_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if start_s <= later <= end_s), default=0.0)


class Clients:
    """As many clients as prompts. An async context manager.

    Args:
        url: of the gateway, without path.
        num_tokens: of each answer; eos is ignored, so that streams last.
    """

    def __init__(self, url: str, prompts: Sequence[str], num_tokens: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)
        self._model = ""
        self._prompts = prompts
        self._num_tokens = num_tokens

    async def __aenter__(self) -> Clients:
        models = await self._http.get("/v1/models")
        self._model = models.raise_for_status().json()["data"][0]["id"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answers(self) -> list[str]:
        """One answer to each prompt, decoded plainly, all at once. Raises: httpx.HTTPError."""
        streams = [Stream() for _ in self._prompts]
        pairs = zip(self._prompts, streams, strict=True)
        await asyncio.gather(*(self._ask(prompt, stream, speculative=False) for prompt, stream in pairs))
        return [stream.text for stream in streams]

    async def keep_asking(self, until: asyncio.Event) -> list[list[Stream]]:
        """Stream answers to each prompt, one after the other; those under way when the event comes are the last.

        Returns: [prompt][answer]. Raises: httpx.HTTPError.
        """
        return await asyncio.gather(*(self._keep_asking(prompt, until) for prompt in self._prompts))

    async def metrics(self) -> list[str]:
        """Lines of the gateway's /metrics. Raises: httpx.HTTPError."""
        return (await self._http.get("/metrics")).text.splitlines()

    async def _keep_asking(self, prompt: str, until: asyncio.Event) -> list[Stream]:
        streams = []
        while not until.is_set():
            streams.append(Stream())
            await self._ask(prompt, streams[-1], speculative=True)
        return streams

    async def _ask(self, prompt: str, stream: Stream, *, speculative: bool) -> None:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": self._num_tokens,
            "temperature": 0.7,
            "seed": 1,
            "stream": True,
            "ignore_eos": True,
            "speculative": speculative,
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                response.raise_for_status()
            async for line in response.aiter_lines():
                data = line.removeprefix("data: ")
                if data in (line, DONE):
                    continue
                text = "".join(choice.text for choice in msgspec.json.decode(data, type=_Chunk).choices)
                if text:
                    stream.text += text
                    stream.moments_s.append(time.monotonic())
