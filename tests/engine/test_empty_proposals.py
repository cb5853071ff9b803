"""A hub may have nothing for a tag, now or for good: rounds do not wait for that again and again, and others draft."""

from __future__ import annotations

import msgspec
from toy_hub import STEP_S, Star, ToyHub

from starspec.engine.sequence import TargetSequence
from starspec.ids import RequestId
from starspec.wire.messages import HubToTarget, Proposal

PROMPT = list(range(1, 12))


def test_a_hub_that_has_nothing_for_a_tag_is_waited_for_ever_more_rarely_and_again_when_it_has() -> None:
    star = Star()
    star.submit("a", PROMPT, 80)
    for _ in range(5):
        star.step()
    star.hub.mood = "empty"
    num_waits = 0
    for _ in range(30):
        started_s = star.clock.now
        star.step()
        num_waits += star.clock.now - started_s > 1.1 * STEP_S
    assert 0 < num_waits <= 5
    star.hub.mood = "good"
    before = star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > before


def test_one_tag_that_gets_nothing_keeps_no_other_from_drafts() -> None:
    class Choosy(ToyHub):
        def _post(self, delay_s: float, message: HubToTarget) -> None:
            if isinstance(message, Proposal) and message.tag == 1:
                message = msgspec.structs.replace(message, token_ids=[])
            super()._post(delay_s, message)

    class ChoosyStar(Star):
        def make_hub(self) -> ToyHub:
            return Choosy(self.clock)

    star = ChoosyStar()
    star.submit("a", PROMPT, 41)
    star.submit("b", PROMPT[1:], 41)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 32  # all but the last of each five of b's


class LookingHub(ToyHub):
    """When it says nothing it has looked."""

    def _post(self, delay_s: float, message: HubToTarget) -> None:
        if isinstance(message, Proposal):
            message = msgspec.structs.replace(message, service_s=0.001)
        super()._post(delay_s, message)


class LookingStar(Star):
    def make_hub(self) -> ToyHub:
        return LookingHub(self.clock)


def test_a_hub_that_looks_and_finds_nothing_is_asked_as_much_as_ever() -> None:
    star = LookingStar()
    star.submit("a", PROMPT, 84)
    for step in range(48):
        star.hub.mood = "empty" if step % 8 else "good"
        star.step()
    acceptance = star.stats.acceptance
    assert acceptance.num_drafts == 48 // 8
    assert acceptance.num_accepted_tokens == 4 * acceptance.num_drafts
    star.finish()


def test_rounds_for_which_the_hub_has_nothing_are_drafted_by_the_fallback() -> None:
    star = Star(fallback=True)
    star.submit("a", PROMPT, 70)
    star.hub.mood = "empty"
    asked: list[RequestId] = []
    propose = star.fallback.propose

    def counted(sequence: TargetSequence, num_tokens: int) -> list[int]:
        asked.append(sequence.request_id)
        return propose(sequence, num_tokens)

    star.fallback.propose = counted  # type: ignore[method-assign]
    star.finish()
    assert len(asked) == star.stats.num_rounds
