"""One target cannot starve another, whatever it sends: a whole star in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from hub_toys import ToyStar, ToyTag
from synthetic_star import SyntheticStar
from torch import Tensor

from starspec.config import HubConfig
from starspec.hub import children
from starspec.hub.causal import CausalDrafter
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.policy.peer_limits import DRAFT_WORK, TOKEN_BYTES, WORK_BURST, Allowance, backlog_of, share_of_work
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_coupled import propose_token
from starspec.wire.messages import (
    Close,
    Fault,
    HubToTarget,
    Open,
    Ping,
    Proposal,
    Reopen,
    TargetToHub,
    Verdict,
)
from starspec.wire.transports.base import Arrival
from starspec.wire.transports.hub_link import READ_BURST

HOSTILE = LinkId("hostile")
HANDLE_S = 50e-6  # what a message costs the hub's thread
SECONDS = 4.0
DEAR = SamplingSpec(temperature=1.0, repetition_penalty=1.3, seed=3)
LONG = [7] * 600  # a prompt of a hostile target
DRAFT = SyntheticSpec(role="draft", alpha=0.8, step_ms=4.0, per_sequence=0.05, per_token=0.02)
TARGET = SyntheticSpec(role="target", alpha=0.8, step_ms=25.0)
CONFIG = HubConfig(max_tags=16, max_draft_tokens=8, prefill_chunk=64)
Attack = Callable[[], Iterator[TargetToHub]]


def pings() -> Iterator[TargetToHub]:
    return (Ping(number) for number in count(1))


def opens_of_new_tags() -> Iterator[TargetToHub]:
    return (Open(Tag(tag), Epoch(1), [*LONG, tag % 400], 600, SamplingSpec(temperature=0.0), 8) for tag in count(1))


def opens_of_one_tag() -> Iterator[TargetToHub]:
    texts = ([*LONG, epoch % 400] for epoch in count(1))
    return (Open(Tag(1), Epoch(n), text, 600, SamplingSpec(temperature=0.0), 8) for n, text in enumerate(texts, 1))


def verdicts_of_unknown_tags() -> Iterator[TargetToHub]:
    return (Verdict(Tag(tag), Epoch(2), 5, [1], 4) for tag in count(1))


def closes_and_faults() -> Iterator[TargetToHub]:
    return (Close(Tag(number), Epoch(1)) if number % 2 else Fault("x" * 300) for number in count(1))


ATTACKS: list[Attack] = [pings, opens_of_new_tags, opens_of_one_tag, verdicts_of_unknown_tags, closes_and_faults]


class StarUnderAttack(SyntheticStar):
    """Honest targets, and one that sends as much as its link lets through."""

    def __init__(self, attack: Attack | None, num_honest: int) -> None:
        super().__init__(num_honest, CONFIG, draft=DRAFT, target=TARGET, depth=4, num_rows=6)
        self._attack = None if attack is None else attack()
        self._allowance = Allowance(share_of_work(num_honest + 1), WORK_BURST)
        self.num_sent = 0
        if attack is not None:
            self.hub.join(HOSTILE, TargetId("hostile"), TARGET.vocab)

    def receive(self, timeout_s: float) -> list[Arrival]:
        if self._attack is None:
            return super().receive(timeout_s)
        before_s = self.clock()
        arrived = super().receive(0.0)
        for _ in range(READ_BURST):
            if not self._allowance.has_units(self.clock()):
                break
            self._allowance.take(1.0, self.clock())
            arrived.append(Arrival(HOSTILE, TargetId("hostile"), next(self._attack), self.clock()))
            self.num_sent += 1
        if not arrived and timeout_s:
            self.clock.advance(min(timeout_s, 1e-3))
        self.clock.advance(HANDLE_S * len(arrived))
        assert self.clock() >= before_s
        return arrived

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        theirs = replies.get(HOSTILE, ())
        self._allowance.owe(DRAFT_WORK * sum(isinstance(each, Proposal) and bool(each.token_ids) for each in theirs))
        super().send({link: messages for link, messages in replies.items() if link != HOSTILE})


class StarWithDearLaws(SyntheticStar):
    """An honest target, and one for whose requests it takes long to draw. It verifies at once.

    Args:
        law_s: seconds for each node.
    """

    def __init__(self, num_tags: int, law_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1, CONFIG, draft=DRAFT, target=TARGET, depth=4, num_rows=1 + num_tags)
        self.hub.join(HOSTILE, TargetId("hostile"), TARGET.vocab)
        self._tags = {number: ToyTag(number, [7, number], DEAR) for number in range(num_tags)}
        self._said: list[TargetToHub] = [tag.open(4) for tag in self._tags.values()]
        self.num_drafted = 0  # tokens for the hostile target

        def drawn(logits: Tensor, *rest: Any) -> int:
            self.clock.advance(law_s)
            return propose_token(logits, *rest)

        monkeypatch.setattr(children, "propose_token", drawn)

    def receive(self, timeout_s: float) -> list[Arrival]:
        said, self._said = self._said, []
        self.clock.advance(HANDLE_S * len(said))
        arrived = super().receive(0.0 if said else timeout_s)
        return arrived + [Arrival(HOSTILE, TargetId("hostile"), each, self.clock()) for each in said]

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        for each in replies.get(HOSTILE, ()):
            if isinstance(each, Proposal) and self._tags[each.tag].receive(each):
                self.num_drafted += len(each.token_ids)
                self._said.append(self._tags[each.tag].verdict([7], 4))
        super().send({link: messages for link, messages in replies.items() if link != HOSTILE})


@pytest.fixture(scope="module")
def beside_an_honest_one() -> float:
    """Tokens a second of a target beside another honest one."""
    return StarUnderAttack(None, 2).run(SECONDS)[LinkId("t0")]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_target_beside_a_hostile_one_is_at_least_half_as_fast(attack: Attack, beside_an_honest_one: float) -> None:
    star = StarUnderAttack(attack, 1)
    rate = star.run(SECONDS)[LinkId("t0")]
    assert star.num_sent > 500
    assert rate >= 0.5 * beside_an_honest_one, f"{rate / beside_an_honest_one:.2f}"


@pytest.mark.parametrize(("num_tags", "law_s"), [(1, 0.03), (1, 0.06), (8, 0.01), (8, 0.03)])
def test_a_target_beside_one_with_dear_laws_is_at_least_half_as_fast(
    num_tags: int, law_s: float, beside_an_honest_one: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    star = StarWithDearLaws(num_tags, law_s, monkeypatch)
    rate = star.run(SECONDS)[LinkId("t0")]
    assert rate >= 0.5 * beside_an_honest_one, f"{rate / beside_an_honest_one:.2f}"
    assert star.num_drafted * law_s > 0.25 * SECONDS, "its laws have a share, too"


def test_laws_as_dear_as_a_draft_step_cost_nobody_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a big vocabulary, say: a target has its share before it has to wait."""
    star = StarWithDearLaws(1, 0.004, monkeypatch)
    star.run(SECONDS)
    assert star.hub.stats.num_cut == 0


def test_a_newcomer_gets_tags_from_the_target_that_holds_all() -> None:
    star = ToyStar("greedy", "late", max_tags=8, num_rows=4)
    for number in range(8):
        star.send("greedy", ToyTag(number, [1, 2, 3 + number]).open(0))
    for number in range(6):
        star.send("late", ToyTag(number, [5, 6, 7 + number]).open(2))
    replies = star.drain()
    proposed = [each for name, each in replies if name == "late" and isinstance(each, Proposal) and each.token_ids]
    assert len(proposed) == 4, "half of the places, and no more"
    assert sum(isinstance(each, Reopen) for name, each in replies if name == "greedy") == 4
    targets = star.hub.status(star.clock()).targets
    assert (targets[TargetId("greedy")].num_tags, targets[TargetId("late")].num_tags) == (4, 4)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalDrafter, "max_held_tokens", 2000)


@pytest.mark.usefixtures("little_memory")
def test_a_hub_holds_no_more_tokens_than_it_has_memory_for() -> None:
    star = ToyStar("greedy", "honest", max_tags=64, num_rows=4, max_len=1000)
    for number in range(8):
        star.send("greedy", ToyTag(number, [*LONG, number]).open(0))
    star.drain()
    assert star.hub.status(star.clock()).targets[TargetId("greedy")].num_tags == 3
    honest = [ToyTag(number, [5, 6, 7 + number] * 60) for number in range(4)]
    for each in honest:
        star.send("honest", each.open(2))
    star.drain()
    targets = star.hub.status(star.clock()).targets
    assert (targets[TargetId("greedy")].num_tags, targets[TargetId("honest")].num_tags) == (2, 4)


@pytest.mark.usefixtures("little_memory")
def test_a_verdict_that_is_too_long_to_be_held_is_declined() -> None:
    star, tag = ToyStar("greedy", num_rows=4), ToyTag(1, [1, 2, 3])
    star.send("greedy", tag.open(2))
    star.drain()
    star.send("greedy", Verdict(Tag(1), Epoch(2), 3, [4] * 2000, 2))
    (declined,) = [each for _, each in star.drain() if isinstance(each, Proposal)]
    assert declined.retry_after_s > 0.0
    assert star.hub.status(star.clock()).targets[TargetId("greedy")].num_tags == 0


def test_a_message_counts_by_its_tokens_while_it_waits_for_the_hub() -> None:
    opened = Open(Tag(1), Epoch(1), LONG, len(LONG), SamplingSpec(), 2)
    assert Arrival(HOSTILE, TargetId("h"), opened, 0.0).backlog == backlog_of(len(LONG) * TOKEN_BYTES) > 5
    assert Arrival(HOSTILE, TargetId("h"), Ping(1), 0.0).backlog == 1


def test_who_holds_the_most_tags_gets_no_more_of_them() -> None:
    star = ToyStar("a", "b", max_tags=4, num_rows=4)
    for number in range(2):
        star.send("b", ToyTag(number, [5, 6, 7 + number]).open(0))
    for number in range(4):
        star.send("a", ToyTag(number, [1, 2, 3 + number]).open(2))
    declined = [each for _, each in star.drain() if isinstance(each, Proposal) and each.retry_after_s]
    assert len(declined) == 2


def test_rows_of_a_target_that_verifies_are_not_taken_by_one_with_more() -> None:
    """So it is not prefilled again in each round."""
    star, honest = ToyStar("greedy", "honest", num_rows=4, max_tags=16), ToyTag(1, [1, 2, 3])
    star.send("honest", honest.open(2))
    for _, message in star.drain():
        honest.receive(message)
    for number in range(8):
        star.send("greedy", ToyTag(number, [5, 6, 7 + number]).open(2))
    star.drain()
    num_prompt_tokens = star.hub.stats.num_prompt_tokens
    star.send("honest", honest.verdict([*honest.proposal.token_ids, 9], 2))
    star.drain()
    assert star.hub.stats.num_prompt_tokens == num_prompt_tokens
