"""A model in two stages behind links of 40 ms: plain decoding against drafts that are verified in flight.

    .venv/bin/python examples/sharded.py

Two stages have half of the layers each, and stand behind a `starspec lab`. Hub, target and gateway are on this side.
Four prompts are answered at once: plainly, with drafts and one round in flight, and with several. The tokens are the
same each time; what differs is how many of them come with one traversal of the links.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx

from starspec.config.lab import LabLink, LinkShape
from starspec.harness.servers import StarspecServer, free_port
from starspec.lab import LabThread
from starspec.models.loading.demo_model import demo_model_folder

PROMPTS = (
    "Write a Python function that reverses the words of a sentence.",
    "Explain in three sentences why the sky is blue.",
    "List five things to pack for a week in the mountains.",
    "What is 17 times 24? Show each step.",
)
NAME = "far"
LIMIT_S = 600.0  # of one answer
START_LIMIT_S = 60.0  # until the gateway has found the target


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts, answered at once."""

    texts: list[str]
    num_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


class Far:
    """Two stages behind a lab, and a hub."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace) -> None:
        self._stack = stack
        self._model = ("--model", options.target, "--max-model-len", "1024")
        ports = [free_port(), free_port()]
        hub_port = free_port()
        hub = self.start(
            *("draft", "--draft", options.draft, "--draft-quantization", options.draft_quantization),
            *("--max-model-len", "1024", "--port", str(hub_port)),
        )
        stages = [
            self.start("stage", *self._model, "--layers", f"{number}/2", "--listen", f"tcp://127.0.0.1:{port}")
            for number, port in enumerate(ports, 1)
        ]
        shape = LinkShape(delay_ms=options.delay_ms)
        links = [LabLink(name=f"{port}", listen="0", to=f"tcp://127.0.0.1:{port}", shape=shape) for port in ports]
        self._lab = stack.enter_context(LabThread(*links))
        for each in (hub, *stages):
            each.wait_ready()
        self._stages = ",".join(self._lab.endpoint(f"{port}") for port in ports)
        self._hub = f"tcp://127.0.0.1:{hub_port}"

    def start(self, *arguments: str) -> StarspecServer:
        server = StarspecServer(*arguments)
        self._stack.callback(server.end)
        return server

    def passes(self, in_flight: str, max_tokens: int, *speculative: bool) -> list[Pass]:
        """One pass for each, with drafts or plainly, by a target of its own with so many rounds in flight."""
        target = self.start(
            *("target", *self._model, "--port", "0", "--name", "far", "--stages", self._stages),
            *("--in-flight", in_flight, "--hub", self._hub),
        )
        gateway = self.start(
            *("gateway", "--target", self._model[1], "--served-model-name", NAME, "--port", "0"),
            *("--endpoint", target.wait_ready()),
        )
        url = gateway.wait_ready().removesuffix("/v1")
        _wait_for_target(url)
        found = [self._pass(url, max_tokens, is_speculative) for is_speculative in speculative]
        gateway.end()
        target.end()
        return found

    def _pass(self, url: str, max_tokens: int, is_speculative: bool) -> Pass:
        body = {"model": NAME, "max_tokens": max_tokens, "temperature": 0.0, "speculative": is_speculative}

        def ask(prompt: str) -> dict[str, Any]:
            messages = [{"role": "user", "content": prompt}]
            response = httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": messages}, timeout=LIMIT_S)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return answer

        ask(PROMPTS[0])  # warms up
        started_s = time.monotonic()
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            answers = list(pool.map(ask, PROMPTS))
        seconds = time.monotonic() - started_s
        texts = [each["choices"][0]["message"]["content"] for each in answers]
        return Pass(texts, sum(each["usage"]["completion_tokens"] for each in answers), seconds)


def _wait_for_target(url: str) -> None:
    limit_s = time.monotonic() + START_LIMIT_S
    while not httpx.get(f"{url}/health/ready").is_success:
        if time.monotonic() > limit_s:
            sys.exit("sharded: the gateway finds no target")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=None, help="model; the demo model if not given")
    parser.add_argument("--draft", default=None, help="model that drafts; the target itself if not given")
    parser.add_argument("--draft-quantization", default="int4")
    parser.add_argument("--delay-ms", type=float, default=40.0, help="of each link, one way")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    options.target = options.target or str(demo_model_folder())
    options.draft = options.draft or options.target
    with ExitStack() as stack:
        far = Far(stack, options)
        plain, one = far.passes("1", options.max_tokens, False, True)
        [several] = far.passes("4", options.max_tokens, True)
    print(f"two stages, links of {options.delay_ms:g} ms one way, {len(PROMPTS)} streams, {plain.num_tokens} tokens")
    for name, each in (
        ("plain", plain),
        ("drafts, one round in flight", one),
        ("drafts, four rounds in flight", several),
    ):
        same = "" if each.texts == plain.texts else "  DIFFERENT"
        print(f"{name:<30}{each.tokens_per_s:7.1f} tokens/s  {each.tokens_per_s / plain.tokens_per_s:5.2f}x{same}")
    if one.texts != plain.texts or several.texts != plain.texts:
        sys.exit("sharded: drafts changed an answer")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
