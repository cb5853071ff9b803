"""The proposer, a real hub and loopback sockets; only vLLM is made of cardboard."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from starspec.config import HubConfig, SpeculativeConfig
from starspec.gateway.hub_status import HubStatusClient
from starspec.hub.server import DraftServer
from starspec.integrations.vllm import StarProposer

PATIENCE_S = 20.0  # of a test; nothing waits this long unless it fails
PERIOD = [4, 5, 6, 7, 8]
pytestmark = pytest.mark.system


@contextmanager
def serving(port: int = 0) -> Iterator[DraftServer]:
    server = DraftServer(HubConfig(port=port), SpeculativeConfig(method="ngram"), None)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)


def num_tags(server: DraftServer) -> int:
    async def once() -> int:
        asker = HubStatusClient(server.address)
        try:
            return (await asker()).stats.num_tags
        finally:
            asker.close()

    return asyncio.run(once())


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, "the condition never held"
        time.sleep(0.01)


class Vllm:
    """One request whose text repeats, so that the hub's n-grams are right."""

    def __init__(self, proposer: StarProposer) -> None:
        self._proposer = proposer
        self._token_ids = np.zeros((2, 4096), np.int32)
        self._length = 10
        self._token_ids[0, : self._length] = PERIOD * 2

    def step(self) -> list[int]:
        """Add one token. Returns: the draft that follows."""
        self._token_ids[0, self._length] = added = PERIOD[self._length % 5]
        self._length += 1
        [draft] = self._proposer.propose([[added]], np.array([self._length, 0]), self._token_ids)
        if draft:
            assert draft == [PERIOD[position % 5] for position in range(self._length, self._length + len(draft))]
        return draft


def test_a_hub_drafts_is_lost_comes_back_and_is_left_without_tags(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARSPEC_FALLBACK", "none")
    monkeypatch.setenv("STARSPEC_DEADLINE_MS", "500")
    monkeypatch.setenv("STARSPEC_ADAPTIVE", "false")  # each step drafts, whether or not it pays
    vllm_config.model_config.max_model_len = 4096
    with serving() as server:
        monkeypatch.setenv("STARSPEC_HUB", server.address)
        proposer = StarProposer(vllm_config)
        vllm = Vllm(proposer)
        until(lambda: len(vllm.step()) == 3)
        assert len(vllm.step()) == 3
        until(lambda: bool(vllm.step()) and num_tags(server) == 1)
        until(lambda: num_tags(server) == 0)  # no step follows: the request has ended
        port = int(server.address.rsplit(":", 1)[1])
    assert vllm.step() == []
    with serving(port):
        until(lambda: len(vllm.step()) == 3)
    proposer.shutdown()
