"""A target gets its share of draft steps beside one with very many sequences: a whole star in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import pytest
from hub_toys import ToyStar, ToyTag
from synthetic_star import SyntheticStar

from starspec.config import HubConfig
from starspec.hub.causal import CausalDrafter
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId, TargetId
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.policy.peer_limits import DRAFT_WORK, WORK_BURST, Allowance, share_of_work
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import HubToTarget, Open, Proposal, Reopen, TargetToHub, Verdict
from starspec.wire.transports.base import Arrival
from starspec.wire.transports.hub_link import READ_BURST

MAD, HONEST = LinkId("mad"), LinkId("t0")
DRAFT = SyntheticSpec(role="draft", alpha=0.8, step_ms=4.0, per_sequence=0.2, per_token=0.1)  # as on two cores
TARGET = SyntheticSpec(role="target", alpha=0.8, step_ms=25.0)
DEPTH = 4  # of honest proposals
CONFIG = HubConfig(max_tags=512, prefill_chunk=256)
HANDLE_S = 50e-6  # what a message costs the hub's thread
WARM_UP_S, SECONDS = 1.0, 4.0
MANY = 200  # tags
LONG = [7] * 600  # a prompt


class MadTarget:
    """Has very many tags, and uses each as fast as it can.

    Args:
        prompt: of each tag, before one more token that no other tag has.
        wanted: of each proposal.
    """

    def __init__(self, *, prompt: Sequence[int] = (5, 6), wanted: DraftBudget, num_tags: int = MANY) -> None:
        self._prompt, self._wanted = prompt, wanted
        self._numbers = count(1)
        self._tags: dict[int, ToyTag] = {}
        self.outbox: deque[TargetToHub] = deque()
        for _ in range(num_tags):
            self.open()

    def open(self) -> None:
        """One more tag."""
        number = next(self._numbers)
        tag = ToyTag(number, [number % 400, *self._prompt], SamplingSpec(temperature=0.0))
        self._tags[number] = tag
        self.outbox.append(tag.open(self._wanted))

    def close(self, tag: ToyTag) -> None:
        del self._tags[tag.session.tag]
        self.outbox.append(tag.close())

    def hear(self, message: HubToTarget) -> None:
        """What it makes of an answer."""
        if isinstance(message, Proposal | Reopen) and message.tag in self._tags:
            tag = self._tags[message.tag]
            if tag.session.take_if_sound(message):
                self.answer(tag, message)

    def answer(self, tag: ToyTag, message: Proposal | Reopen) -> None:
        """Ask for more."""
        if isinstance(message, Reopen) or message.retry_after_s:
            tag.session.lose()
            self.outbox.append(tag.open(self._wanted))
        else:
            self.outbox.append(tag.verdict([7], self._wanted))

    def next(self) -> TargetToHub | None:
        """What it sends next, if anything."""
        return self.outbox.popleft() if self.outbox else None


class Prompter(MadTarget):
    """Closes each tag that has a proposal, and opens another one."""

    def answer(self, tag: ToyTag, message: Proposal | Reopen) -> None:
        self.close(tag)
        self.open()


class Opener(MadTarget):
    """Opens tags, and closes them at once."""

    def next(self) -> TargetToHub | None:
        if not self.outbox:
            self.open()
            self.close(next(iter(self._tags.values())))
        return super().next()


class Resyncer(MadTarget):
    """Sends verdicts that do not follow, and opens the tags again when the hub asks for that."""

    def answer(self, tag: ToyTag, message: Proposal | Reopen) -> None:
        if isinstance(message, Proposal):
            tag.verdict([7])  # which is lost
            self.outbox.append(tag.verdict([7], self._wanted))
        else:
            super().answer(tag, message)


class Committer(MadTarget):
    """Commits 60 tokens at once, none of which was proposed."""

    def answer(self, tag: ToyTag, message: Proposal | Reopen) -> None:
        if isinstance(message, Reopen) or len(tag.token_ids) > 4000:
            self.close(tag)
            self.open()
        else:
            self.outbox.append(tag.verdict([9] * 60, self._wanted))


class Both(MadTarget):
    """Keeps tags waiting, and opens new ones with long prompts all the time."""

    def answer(self, tag: ToyTag, message: Proposal | Reopen) -> None:
        if tag.session.tag % 2:
            super().answer(tag, message)
        else:
            self.close(tag)
            self.open()


CHAIN, LONG_CHAIN = DraftBudget.chain(8), DraftBudget.chain(64)
TREE = DraftBudget(num_draft_tokens=48, num_steps=6, top_k=8)
MADNESS: dict[str, Callable[[], MadTarget]] = {
    "many tags that wait": lambda: MadTarget(wanted=CHAIN),
    "long chains": lambda: MadTarget(wanted=LONG_CHAIN),
    "wide trees": lambda: MadTarget(wanted=TREE),
    "many prompts": lambda: Prompter(prompt=LONG, wanted=DraftBudget.chain(1)),
    "tags that wait, and prompts": lambda: Both(prompt=LONG, wanted=CHAIN),
    "opens and closes": lambda: Opener(prompt=LONG, wanted=CHAIN, num_tags=0),
    "resyncs": lambda: Resyncer(prompt=LONG, wanted=CHAIN),
    "long verdicts": lambda: Committer(wanted=CHAIN),
}


class SharedStar(SyntheticStar):
    """Honest targets with a sequence each, and perhaps a mad one."""

    def __init__(self, mad: MadTarget | None, num_honest: int = 1) -> None:
        super().__init__(num_honest, CONFIG, draft=DRAFT, target=TARGET, depth=DEPTH, num_rows=32)
        self._mad = mad
        self._allowance = Allowance(share_of_work(num_honest + 1), WORK_BURST)
        self._asked_s: dict[LinkId, float] = {}
        self.longest_wait_s = 0.0  # of an honest target, for a proposal
        if mad is not None:
            self.hub.join(MAD, TargetId("mad"), TARGET.vocab)

    def receive(self, timeout_s: float) -> list[Arrival]:
        arrived = super().receive(0.0 if self._mad is not None and self._mad.outbox else timeout_s)
        for each in arrived:
            if isinstance(each.message, Open | Verdict):
                self._asked_s[each.link_id] = each.arrived_at
        for _ in range(READ_BURST):
            message = None
            if self._mad is not None and self._allowance.has_units(self.clock()):
                message = self._mad.next()
            if message is None:
                break
            self._allowance.take(1.0, self.clock())
            arrived.append(Arrival(MAD, TargetId("mad"), message, self.clock()))
        self.clock.advance(HANDLE_S * len(arrived) if arrived else min(timeout_s, 1e-3))
        return arrived

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        for link_id, messages in replies.items():
            if link_id != MAD:
                self.longest_wait_s = max(self.longest_wait_s, self.clock() - self._asked_s.pop(link_id))
            elif self._mad is not None:
                num_drafts = sum(isinstance(each, Proposal) and bool(each.token_ids) for each in messages)
                self._allowance.owe(DRAFT_WORK * num_drafts)
                for each in messages:
                    self._mad.hear(each)
        super().send({link: messages for link, messages in replies.items() if link != MAD})


def measured(mad: MadTarget | None, num_honest: int = 1) -> tuple[float, float]:
    """Tokens a second of an honest target, and its longest wait for a proposal, in seconds."""
    star = SharedStar(mad, num_honest)
    star.run(WARM_UP_S)
    star.longest_wait_s = 0.0
    return star.run(SECONDS)[HONEST], star.longest_wait_s


@pytest.fixture(scope="module")
def beside_an_honest_one() -> float:
    """Tokens a second of a target beside another honest one."""
    return measured(None, 2)[0]


@pytest.mark.parametrize("kind", MADNESS)
def test_a_target_gets_its_share_beside_one_with_very_many_sequences(kind: str, beside_an_honest_one: float) -> None:
    rate, longest_wait_s = measured(MADNESS[kind]())
    assert rate >= 0.5 * beside_an_honest_one, f"{rate / beside_an_honest_one:.2f}"
    assert longest_wait_s <= 24 * DRAFT.step_ms / 1e3, f"{longest_wait_s * 1e3:.0f} ms"


def test_a_target_that_is_alone_uses_the_whole_hub() -> None:
    star = ToyStar("a", "b", num_rows=16, max_tags=32)
    star.runner.step_s = 0.01
    tags = [ToyTag(number, [number, 2], SamplingSpec(temperature=0.0)) for number in range(16)]
    for _ in range(5):
        for tag in tags:
            star.send("a", tag.verdict([7], 4) if tag.proposal else tag.open(4))
        num_before = len(star.runner.draft_steps)
        for _, message in star.drain():
            assert tags[message.tag].receive(message)
        assert len(star.runner.draft_steps[num_before]) == 16


def test_long_proposals_of_one_target_do_not_keep_the_prompts_of_another_waiting() -> None:
    star = ToyStar("a", "b", max_draft_tokens=64, prefill_chunk=16, max_len=128)
    star.send("a", ToyTag(1, [1, 2], SamplingSpec(temperature=0.0)).open(60))
    star.step()
    star.send("b", ToyTag(1, [3] * 40).open(1))
    assert [name for name, _ in star.drain()] == ["b", "a"]


def test_how_many_sequences_a_draft_step_looks_at_does_not_grow_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking takes some ten microseconds each: thousands take longer than the draft step."""
    looks: list[DraftSequence] = []
    num_missing = CausalDrafter.num_missing

    def counted(self: CausalDrafter, sequence: DraftSequence) -> int:
        looks.append(sequence)
        return num_missing(self, sequence)

    monkeypatch.setattr(CausalDrafter, "num_missing", counted)
    found = []
    for num_tags in (30, 300):
        star = ToyStar("a", num_rows=4, max_tags=512)
        for number in range(num_tags):
            star.hub.handle(LinkId("a"), ToyTag(number, [number % 30, 2]).open(4), star.clock())
        looks.clear()
        star.hub.step(star.clock())
        found.append(len(looks))
    assert found[0] == found[1] < 20
