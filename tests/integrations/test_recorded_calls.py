"""Calls that a real vLLM made (record_calls.py): its rows are recognised, and a hub hears what was really committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_hub import ToyHub, VirtualClock

from starspec.integrations.vllm.drafting import StepDrafter
from starspec.integrations.vllm.hub_client import HubClient
from starspec.integrations.vllm.rows import RowBook
from starspec.integrations.vllm.settings import VllmSettings
from starspec.policy.deadline import StepTimeDeadline
from starspec.wire.messages import Open, TargetToHub, Verdict

RECORDINGS = sorted((Path(__file__).parent / "vllm_calls").glob("*.json"))
NUM_ROWS, MAX_MODEL_LEN = 8, 256
STEP_S = 0.02
VOCAB_SIZE = 1 << 20  # more than the recorded model's


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.stem)
def recording(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def arrays(recording: Any, rows: Any) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """A call's arguments. Behind a row's tokens lies what was there before, as in vLLM."""
    token_ids = np.full((NUM_ROWS, MAX_MODEL_LEN), 13, np.int32)
    lengths = np.full(NUM_ROWS, 99, np.int32)
    for row, each in enumerate(rows):
        lengths[row] = each["length"]
        token_ids[row, : each["length"]] = recording["token_ids"][each["request"]][: each["length"]]
    return [each["sampled"] for each in rows], lengths, token_ids


def test_there_is_a_recording() -> None:
    assert RECORDINGS


def test_it_holds_what_makes_rows_hard_to_follow(recording: Any) -> None:
    calls = [call["rows"] for call in recording["calls"]]
    places: dict[str, list[tuple[int, int]]] = {}
    for index, rows in enumerate(calls):
        for row, each in enumerate(rows):
            places.setdefault(each["request"], []).append((index, row))
    assert any(len({row for _, row in seen}) > 1 for seen in places.values()), "none moved"
    assert any(seen[-1][0] - seen[0][0] + 1 > len(seen) for seen in places.values()), "none was preempted"
    assert any(not each["sampled"] for rows in calls for each in rows), "no prompt was prefilled in chunks"
    assert any(len(each["sampled"]) > 1 for rows in calls for each in rows), "no draft was accepted"


def test_every_row_is_recognised(recording: Any) -> None:
    book = RowBook()
    names: dict[Any, str] = {}
    for call in recording["calls"]:
        for each, seen in zip(call["rows"], book.see(*arrays(recording, call["rows"]), now=0.0), strict=True):
            assert (seen is not None) == bool(each["sampled"])
            if seen is not None:
                assert names.setdefault(seen.request, each["request"]) == each["request"]
                assert seen.request.token_ids() == recording["token_ids"][each["request"]][: each["length"]]
                assert seen.is_first or seen.num_new == len(each["sampled"])
    assert len(names) == len(set(names.values()))


class ListeningHub(ToyHub):
    """Proposes nothing, and keeps the tokens of every tag."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.mood = "mute"
        self.told: list[list[TargetToHub]] = []

    def send(self, messages: Any) -> None:
        self.told.append(list(messages))
        super().send(messages)


def test_the_hub_hears_each_token_once_and_forgets_what_ends(recording: Any) -> None:
    clock = VirtualClock()
    hub = ListeningHub(clock)
    deadline = StepTimeDeadline(0.001)
    client = HubClient(hub, deadline, VOCAB_SIZE, clock=clock)
    settings = VllmSettings(fallback="none", adaptive=False)
    drafter = StepDrafter(client, deadline, settings, recording["num_draft_tokens"], MAX_MODEL_LEN, clock)
    for call in recording["calls"]:
        before = len(hub.told)
        drafts = drafter.step(*arrays(recording, call["rows"]))
        assert len(hub.told) <= before + 1
        assert len(drafts) == len(call["rows"])
        texts = recording["token_ids"].values()
        assert all(any(ids == text[: len(ids)] for text in texts) for ids in hub.ids.values())
        clock.now += STEP_S
    told = [each for messages in hub.told for each in messages if isinstance(each, Open | Verdict)]
    assert len({each.tag for each in told}) == len(recording["token_ids"])
    clock.now += 1.5
    drafter.maintain()
    assert not hub.ids
    assert client.num_tags == 0
