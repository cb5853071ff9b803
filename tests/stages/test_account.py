"""What stages cost, as their coordinator adds it up: bytes, computing and waits."""

from __future__ import annotations

import pytest
from memory_pipe import MemoryPipe
from stage_driver import Driver, no_draft
from toy_stages import toy_stages

from starspec.ids import TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.stages.account import PipeAccount
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.windows.window import Law
from starspec.wire.messages import StageWork

LAW = Law(SamplingSpec(temperature=0.0), None, None)
PROMPT = [3, 1, 4, 1, 5]


def piped(num_stages: int) -> tuple[MemoryPipe, RemoteVerifier]:
    pipe = MemoryPipe(toy_stages(num_stages), lambda: 0.01)
    attached = attach(pipe, pipe.names, TargetId("t"), lease_s=9.0, timeout_s=9.0, clock=pipe.clock)
    return pipe, RemoteVerifier(pipe, attached, pipe.runners[0].info, depth=4, clock=pipe.clock)


def test_bytes_on_all_links_are_counted_and_traversals_of_all_tokens() -> None:
    pipe, verifier = piped(3)
    driver = Driver(verifier, no_draft)
    driver.begin(PROMPT, LAW, 6)
    driver.decode_all()
    stats = verifier.pipe
    assert sum(each.num_bytes for each in stats.stages) == pipe.num_bytes
    assert stats.num_bytes > pipe.num_bytes  # and the answers
    own = pipe.runners[0].info.hidden_size * pipe.runners[0].cache.keys[0].element_size()
    num_positions = len(PROMPT) - 1 + 6  # all that were forwarded
    assert [each.num_hidden_bytes for each in stats.stages] == [0, num_positions * own, num_positions * own]
    assert stats.num_traversals >= 7  # the prompt, and six tokens
    assert [each.layers for each in stats.stages] == ["0:1", "1:2", "2:3"]
    assert all(each.is_attached for each in stats.stages)


def test_a_pipe_whose_slowest_stage_always_computes_is_full_and_sums_are_kept() -> None:
    account, work = PipeAccount(2), (StageWork(0.1, 0.0, 10, 0, 0, 1), StageWork(0.2, 0.05, 10, 8, 1, 2))
    account.note(work, 5, launched_s=0.0, now=0.4)
    assert account.stats.fill.value == pytest.approx(0.5)
    account.note(work, 5, launched_s=0.1, now=0.6)  # it waited for the one before
    assert account.stats.fill.value == pytest.approx(0.75)
    assert (account.stats.num_traversals, account.stats.num_landing_bytes) == (2, 10)
