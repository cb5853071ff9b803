"""What a hub costs is known also where it works on the target's thread, and while it prefills."""

from __future__ import annotations

from toy_hub import DRAFT_S, STEP_S, Star, ToyHub

from starspec.ids import LinkId, RequestId
from starspec.policy.length.goodput import Goodput
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import PROTOCOL_VERSION, HubToTarget, RequestSpec, Welcome

CHAINS = Goodput(DraftBudget.chain(4))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


class HubOnThread(ToyHub):
    """As a hub in the target's process: whoever asks for messages does the hub's work first."""

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        due = min((when for when, _ in self.mail), default=self.clock.now)
        return super().receive(max(timeout_s, due - self.clock.now))


class StarOnThread(Star):
    deadline_s = 1e9  # as LLM: the hub cannot be late

    def __init__(self) -> None:
        super().__init__(policy=CHAINS)

    def make_hub(self) -> ToyHub:
        return HubOnThread(self.clock)

    def seconds_of(self, name: str, num_tokens: int) -> float:
        started_s = self.clock.now
        self.submit(name, PROMPT, num_tokens)
        self.finish()
        return self.clock.now - started_s


def seconds_without_drafts(star: Star, name: str, num_tokens: int) -> float:
    started_s = star.clock.now
    spec = RequestSpec(PROMPT, SamplingSpec(temperature=0.0), max_tokens=num_tokens, num_draft_tokens=0)
    star.engine.submit(RequestId(name), spec)
    while star.engine.has_work:
        star.engine.step()
    return star.clock.now - started_s


def test_drafts_that_take_longer_than_they_save_are_noticed_on_the_targets_own_thread() -> None:
    star = StarOnThread()
    star.hub.token_s = 2 * STEP_S
    star.seconds_of("first", 40)  # in which costs are learnt
    drafted_s = star.seconds_of("second", 80)
    assert drafted_s < 1.1 * seconds_without_drafts(star, "plain", 80)


def test_drafts_that_pay_are_made_on_the_targets_own_thread() -> None:
    star = StarOnThread()
    star.hub.token_s = STEP_S / 10
    star.seconds_of("first", 40)
    drafted_s = star.seconds_of("second", 80)
    assert drafted_s < 0.6 * seconds_without_drafts(star, "plain", 80)


def test_no_longer_drafts_are_tried_than_a_hub_gives() -> None:
    """Drafts take 1.4 steps and have two tokens, which pay. The four of the policy would bring much more."""
    star = StarOnThread()
    star.hub.busy_s = 1.4 * STEP_S - DRAFT_S
    star.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("l"), 1, "toy", 2, 10.0)
    for name in "abc":
        star.seconds_of(name, 80)
    lengths = star.stats.lengths
    assert len(lengths.num_by_length) == 3
    assert lengths.num_by_reason["cap"] > 10 * lengths.num_by_reason["probe"]


def test_short_answers_are_not_worth_the_prefill_of_long_prompts() -> None:
    star = StarOnThread()
    star.hub.prefill_token_s = STEP_S
    for number in range(20):
        star.seconds_of(f"{number}", 6)
    assert star.hub.num_opens == 1, "it saves four steps at most, and takes as long as twelve"


def test_long_answers_are_worth_the_same_prefill() -> None:
    star = StarOnThread()
    star.hub.prefill_token_s = STEP_S
    for number in range(6):
        star.seconds_of(f"{number}", 80)
    assert star.hub.num_opens >= 5
