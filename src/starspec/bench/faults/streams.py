"""Clients of a gateway that keep asking, and note when each piece of an answer came."""

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
    """As many clients as prompts; each asks its own prompt again and again. An async context manager.

    Args:
        url: of the gateway, without path.
        num_tokens: of each answer; eos is ignored, so that streams last.
    """

    def __init__(self, url: str, model: str, prompts: Sequence[str], num_tokens: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)
        self._model = model
        self._prompts = prompts
        self._num_tokens = num_tokens
        self.streams: list[list[Stream]] = [[] for _ in prompts]  # [client][answer]
        self._is_stopping = False

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answers(self, *, speculative: bool) -> list[str]:
        """One answer for each prompt, all at once. Raises: httpx.HTTPError."""
        streams = [Stream() for _ in self._prompts]
        await asyncio.gather(
            *(self._ask(*each, speculative=speculative) for each in zip(self._prompts, streams, strict=True))
        )
        return [stream.text for stream in streams]

    async def keep_asking(self) -> None:
        """Ask until `stop`; answers under way are then read to their end. Raises: httpx.HTTPError."""
        self._is_stopping = False
        self.streams = [[] for _ in self._prompts]
        await asyncio.gather(*(self._keep_asking(client) for client in range(len(self._prompts))))

    def stop(self) -> None:
        """Ask no more."""
        self._is_stopping = True

    async def metrics(self) -> list[str]:
        """Lines of the gateway's /metrics. Raises: httpx.HTTPError."""
        return (await self._http.get("/metrics")).text.splitlines()

    async def _keep_asking(self, client: int) -> None:
        while not self._is_stopping:
            stream = Stream()
            self.streams[client].append(stream)
            await self._ask(self._prompts[client], stream, speculative=True)

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
