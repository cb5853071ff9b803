"""Whatever a hub sends, a target says what it says alone, and is hardly slower than alone: in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hostile_hubs import BUSY, HOSTILE, Clock, Doubts, DoubtsAllButOne, GoodHub, OneTokenJustInTime, linked_to
from structlog.testing import capture_logs
from toy import HashRunner, WordTokenizer, next_of

from starspec.config import TargetConfig
from starspec.engine.drafts import Drafts, NgramDrafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.engine.sequence import TargetSequence
from starspec.ids import RequestId
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import RequestSpec

STEP_S = 0.075  # of a round without drafts
DRAFTED_S = 0.018  # what each draft token adds to a round: drafts that are wrong cost time, too
PROMPT = list(range(1, 12))
NUM_TOKENS = 200
NUM_STREAMS = 3
POLICY = FixedLength(DraftBudget.chain(4))
MOST = 1.2  # times plain decoding,
FIRST_S = 1.0  # after this


class CostlyRunner(HashRunner):
    def __init__(self, clock: Clock) -> None:
        super().__init__(max_len=NUM_TOKENS + 32)
        self._clock = clock

    def forward(self, segments: Sequence[Any], feature_layers: Sequence[int] = ()) -> Any:
        most = max(len(segment.token_ids) for segment in segments)
        self._clock.now += STEP_S + DRAFTED_S * (most - 1)
        return super().forward(segments, feature_layers)


class TwoRightTokens(NgramDrafts):
    """N-grams that fit the toy's text."""

    def __init__(self) -> None:
        super().__init__(POLICY, 1, 2, TargetStats())

    def _chain(self, sequence: TargetSequence, length: int) -> DraftTree:
        path = list(sequence.token_ids)
        for _ in range(min(length, 2)):
            path.append(next_of(path))
        return DraftTree.chain(path[len(sequence.token_ids) :])


def seconds_of(hub: type[GoodHub] | None, num_requests: int, fallback: NgramDrafts | None = None) -> list[float]:
    """When each round of requests that begin together has ended, with a hub or without, by the tokens of all so far.

    Checks every token.
    """
    clock, stats = Clock(), TargetStats()
    served_by = None if hub is None else hub(clock)
    drafts: Drafts = fallback or NoDrafts()
    if served_by is not None:
        drafts = RemoteDrafts(linked_to(served_by, clock), POLICY, stats, clock, fallback=fallback)
    engine = TargetEngine(
        LocalVerifier(CostlyRunner(clock)), WordTokenizer(), drafts, TargetConfig(prefill_chunk=11), stats, clock
    )
    wanted, got = {}, {}
    for number in range(num_requests):
        path = PROMPT[number:]
        spec = RequestSpec(list(path), SamplingSpec(temperature=0.0), max_tokens=NUM_TOKENS)
        engine.submit(RequestId(str(number)), spec)
        for _ in range(NUM_TOKENS):
            path = [*path, next_of(path)]
        wanted[str(number)], got[str(number)] = path[len(PROMPT) - number :], []
    started_s, ended_s = clock.now, [0.0] * (num_requests * NUM_TOKENS + 1)
    while engine.has_work:
        for each in engine.step().values():
            got[each.request_id].extend(each.token_ids)
        ended_s[sum(map(len, got.values()))] = clock.now - started_s
    assert got == wanted
    drafts.shutdown()
    return ended_s


@pytest.fixture(scope="module")
def plain() -> dict[int, list[float]]:
    """As `seconds_of` without a hub, by the number of requests."""
    return {num: seconds_of(None, num) for num in (1, NUM_STREAMS)}


@pytest.mark.parametrize("num_requests", [1, NUM_STREAMS])
def test_a_good_hub_is_faster_than_plain(num_requests: int, plain: dict[int, list[float]]) -> None:
    assert seconds_of(GoodHub, num_requests)[-1] < 0.6 * plain[num_requests][-1]


def test_what_is_called_just_in_time_is_in_time() -> None:
    assert 0.0 in seconds_of(OneTokenJustInTime, 1)[1:10], "no round had two tokens"


@pytest.mark.parametrize("hub", HOSTILE, ids=lambda hub: hub.__name__)
def test_no_hub_makes_a_target_much_slower_than_plain(hub: type[GoodHub], plain: dict[int, list[float]]) -> None:
    check(hub, 1, plain)


@pytest.mark.parametrize("hub", BUSY, ids=lambda hub: hub.__name__)
def test_nor_one_with_several_streams(hub: type[GoodHub], plain: dict[int, list[float]]) -> None:
    check(hub, NUM_STREAMS, plain)


@pytest.mark.parametrize(("hub", "num_requests"), [(Doubts, 1), (DoubtsAllButOne, NUM_STREAMS)])
def test_no_hub_lives_on_what_the_fallback_gains(hub: type[GoodHub], num_requests: int) -> None:
    without_s = seconds_of(None, num_requests, TwoRightTokens())[-1]
    measuring_s = 3 * STEP_S  # so many rounds measure what decoding costs without any draft
    assert seconds_of(hub, num_requests, TwoRightTokens())[-1] <= MOST * without_s + FIRST_S + measuring_s


def check(hub: type[GoodHub], num_requests: int, plain: dict[int, list[float]]) -> None:
    """At each moment, decoding is behind plain decoding by at most a fifth of its time, and a second."""
    with capture_logs() as logs:
        ended_s = seconds_of(hub, num_requests)
    plain_s = plain[num_requests]
    for num_tokens in range(len(plain_s) - 2, -1, -1):  # not every number of tokens is the end of a round
        plain_s[num_tokens] = plain_s[num_tokens] or plain_s[num_tokens + 1]
    late_s = max(at_s - MOST * alone_s for at_s, alone_s in zip(ended_s, plain_s, strict=True))
    assert late_s <= FIRST_S
    assert ended_s[-1] <= MOST * plain_s[-1]
    assert len(logs) <= 2 * ended_s[-1]
    texts = [str(value) for line in logs for value in line.values()]
    assert all(len(text) <= 400 and text.isprintable() for text in texts)
