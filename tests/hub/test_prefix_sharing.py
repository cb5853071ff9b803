"""What one tag has prefilled, another that begins alike does not prefill again; only the time shows it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from eagle_toys import make_head
from hub_toys import GREEDY, SAMPLED, ToyStar, ToyTag, by_paths

from starspec.cache.prefixes import PREFIX_BLOCK
from starspec.config import HubConfig, ModelConfig, PrefixScope
from starspec.hub.causal import CausalDrafter
from starspec.hub.drafter import Drafter
from starspec.hub.eagle import EagleDrafter
from starspec.hub.hub import DraftHub
from starspec.hub.ngram import NgramDrafter
from starspec.ids import LinkId, TargetId
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelRunner, Segment
from starspec.models.synthetic.runner import SyntheticRunner
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.policy.draft_batch import SHORT_PAST
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubStats
from starspec.wire.messages import Proposal
from starspec.wire.transports.faulty_channel import VirtualClock

SYSTEM = [number % 29 for number in range(3 * PREFIX_BLOCK)]
LONG = 200


def stats_of(star: ToyStar) -> HubStats:
    return star.hub.status(star.clock()).stats


def forwarded_by(star: ToyStar) -> list[int]:
    """Committed tokens that each segment since the last call forwarded."""
    draft_steps, star.runner.draft_steps = star.runner.draft_steps, []
    return [segment.num_new for draft_step in draft_steps for segment in draft_step if segment.parents is None]


def serve(star: ToyStar, *tags: tuple[str, ToyTag]) -> None:
    """Drain the hub; each proposal is that of a fresh drafter."""
    by_number = {(name, tag.session.tag): tag for name, tag in tags}
    for name, message in star.drain():
        assert isinstance(message, Proposal)
        tag = by_number[name, message.tag]
        assert tag.receive(message)
        assert by_paths(message) == tag.expected_tree(max_len=LONG)
    assert all(tag.proposal is not None for _, tag in tags)


def test_what_is_left_behind_whole_blocks_is_no_prompt() -> None:
    assert PREFIX_BLOCK <= SHORT_PAST


def test_a_tag_prefills_only_what_no_row_holds() -> None:
    star, one, other = ToyStar("a", max_len=LONG), ToyTag(1, [*SYSTEM, 1, 2]), ToyTag(2, [*SYSTEM, 3, 4, 5])
    star.send("a", one.open(2))
    serve(star, ("a", one))
    assert sum(forwarded_by(star)) == len(SYSTEM) + 2
    star.send("a", other.open(2))
    serve(star, ("a", other))
    assert forwarded_by(star) == [3]
    assert (stats_of(star).num_shared_tokens, star.num_leased) == (len(SYSTEM), 2)


def test_answers_to_one_request_prefill_its_prompt_once_although_they_come_together() -> None:
    prompt = [*SYSTEM, 7]
    star, tags = (
        ToyStar("a", num_rows=8, max_len=LONG, prefill_chunk=64),
        [ToyTag(n, prompt, SAMPLED) for n in range(8)],
    )
    star.send("a", *(tag.open(2) for tag in tags))
    serve(star, *(("a", tag) for tag in tags))
    assert sorted(forwarded_by(star)) == [*[1] * 7, len(prompt)]
    stats = stats_of(star)
    assert (stats.num_prompt_tokens, stats.num_shared_tokens) == (len(prompt), 7 * len(SYSTEM))


def test_of_a_prompt_in_prefill_another_tag_has_what_is_prefilled_already() -> None:
    """And goes on by itself where the two part."""
    star = ToyStar("a", max_len=LONG, prefill_chunk=PREFIX_BLOCK)
    long, short = ToyTag(1, [*SYSTEM, *[1] * 60]), ToyTag(2, [*SYSTEM, *[2] * 20])
    star.send("a", long.open(2), short.open(2))
    serve(star, ("a", long), ("a", short))
    assert sum(forwarded_by(star)) == len(SYSTEM) + 60 + 20


def test_a_row_that_holds_some_of_a_prompt_takes_over_the_rest_of_what_another_holds() -> None:
    star, behind, ahead = ToyStar("a", max_len=LONG), ToyTag(1, SYSTEM[:20]), ToyTag(2, [*SYSTEM, 2])
    for tag in (behind, ahead):
        star.send("a", tag.open(1))
        serve(star, ("a", tag))
    forwarded_by(star)
    behind.token_ids += [*SYSTEM[20:], 1]
    star.send("a", behind.open(1))
    serve(star, ("a", behind))
    assert forwarded_by(star) == [1]


def test_a_conversation_that_goes_on_has_its_row_back_and_nothing_is_copied() -> None:
    star = ToyStar("a", num_rows=4, max_len=LONG)
    talk, other = ToyTag(1, [*SYSTEM, 1]), ToyTag(2, [*SYSTEM, *[9] * 40])
    for tag in (talk, other):
        star.send("a", tag.open(4))
        serve(star, ("a", tag))
    while len(talk.token_ids) < len(SYSTEM) + 2 * PREFIX_BLOCK + 1:
        star.send("a", talk.verdict([*talk.proposal.token_ids[:1], 3], 4))
        serve(star, ("a", talk))
    sequence = star.hub._sequences[next(key for key in star.hub._sequences if key.tag == 1)]
    row = sequence.row
    star.send("a", talk.close(), other.close())
    before, again = star.runner.cache.keys[0].clone(), ToyTag(3, [*talk.token_ids, 4, 5])
    star.send("a", again.open(1))
    forwarded_by(star)
    serve(star, ("a", again))
    assert sum(forwarded_by(star)) <= PREFIX_BLOCK
    assert [each.row for each in star.hub._sequences.values()] == [row]
    start = len(SYSTEM) + 2 * PREFIX_BLOCK
    assert torch.equal(before[row, 0, :start], star.runner.cache.keys[0][row, 0, :start])


def test_rows_that_are_free_for_longest_are_taken_first_so_that_what_others_left_stays() -> None:
    star = ToyStar("a", num_rows=3, max_len=LONG)
    first, second = ToyTag(1, [1] * 40), ToyTag(2, [2] * 40)
    for tag in (first, second):
        star.send("a", tag.open(1))
        serve(star, ("a", tag))
    star.send("a", first.close(), second.close())
    strangers = [ToyTag(3, [3] * 40), ToyTag(4, [4] * 40)]
    for tag in strangers:  # the row that was never used, then the one of the first tag
        star.send("a", tag.open(1))
        serve(star, ("a", tag))
    forwarded_by(star)
    back = ToyTag(5, [2] * 41)
    star.send("a", back.open(1))
    serve(star, ("a", back))
    assert forwarded_by(star) == [41 - 2 * PREFIX_BLOCK]


def test_a_short_prompt_takes_the_row_that_is_free_for_longest_too() -> None:
    star, tag = ToyStar("a", num_rows=2, max_len=LONG), ToyTag(1, [*SYSTEM, 1])
    star.send("a", tag.open(1))
    serve(star, ("a", tag))
    (row,) = star.runner.cache.rows.leased
    star.send("a", tag.close(), ToyTag(2, [4]).open(1))
    star.drain()
    assert star.runner.cache.rows.leased == {1 - row}


def test_an_evicted_tag_prefills_again_only_what_no_sibling_holds() -> None:
    star = ToyStar("a", num_rows=2, max_len=LONG)
    tags = [ToyTag(number, [*SYSTEM, number]) for number in (1, 2, 3)]
    for tag in tags:
        star.clock.advance(1.0)
        star.send("a", tag.open(1))
        serve(star, ("a", tag))
    assert stats_of(star).num_evictions == 1
    forwarded_by(star)
    star.send("a", tags[0].verdict([5], 1))
    serve(star, ("a", tags[0]))
    assert forwarded_by(star) == [2]


@pytest.mark.parametrize("num_others", [5, 40], ids=["no prompt", "a prompt"])
def test_a_tag_that_counted_on_a_row_that_another_takes_in_the_same_draft_step_prefills_for_itself(
    num_others: int,
) -> None:
    star = ToyStar("a", num_rows=2, max_len=LONG, prefill_chunk=100)
    first, second = ToyTag(1, [*SYSTEM, 1]), ToyTag(2, [2] * 40)
    star.send("a", first.open(1), second.open(1))
    serve(star, ("a", first), ("a", second))
    star.send("a", first.close(), second.close())
    stranger, heir = ToyTag(3, [3] * num_others), ToyTag(4, [*SYSTEM, 4])
    star.send("a", stranger.open(3), heir.open(3))
    forwarded_by(star)
    serve(star, ("a", stranger), ("a", heir))
    assert (sum(forwarded_by(star)), stats_of(star).num_shared_tokens) == (num_others + len(SYSTEM) + 1, 0)


def test_a_draft_step_that_fails_leaves_nothing_behind_that_was_not_prefilled() -> None:
    star, one, other = ToyStar("a", max_len=LONG), ToyTag(1, [*SYSTEM, 1]), ToyTag(2, [*SYSTEM, 2])
    star.send("a", one.open(1))
    star.runner.is_broken = True
    with pytest.raises(RuntimeError):
        star.step()
    star.hub.abandon_step(star.clock())
    star.runner.is_broken = False
    star.clock.advance(10.0)
    star.drain()
    star.send("a", other.open(1))
    serve(star, ("a", other))
    assert stats_of(star).num_shared_tokens == 0


@pytest.mark.parametrize(
    ("scope", "same_target", "other_target"),
    [("off", 0, 0), ("target", len(SYSTEM), 0), ("hub", len(SYSTEM), len(SYSTEM))],
)
def test_only_those_share_who_are_allowed_to(scope: PrefixScope, same_target: int, other_target: int) -> None:
    star = ToyStar("a", "b", max_len=LONG, share_prefixes=scope)
    tags = [("a", ToyTag(1, [*SYSTEM, 1])), ("a", ToyTag(2, [*SYSTEM, 2])), ("b", ToyTag(1, [*SYSTEM, 3]))]
    shared = [0]
    for name, tag in tags:
        star.send(name, tag.open(2))
        serve(star, (name, tag))
        shared.append(stats_of(star).num_shared_tokens)
    assert [after - before for before, after in pairwise(shared)] == [0, same_target, other_target]


def test_without_sharing_the_row_that_was_freed_last_is_taken_as_ever() -> None:
    star = ToyStar("a", num_rows=3, max_len=LONG, share_prefixes="off")
    rows = set()
    for number in range(1, 5):
        tag = ToyTag(number, [number] * 40)
        star.send("a", tag.open(1))
        serve(star, ("a", tag))
        rows |= star.runner.cache.rows.leased
        star.send("a", tag.close())
    assert len(rows) == 1


def test_a_target_that_comes_back_has_nothing_of_the_link_before() -> None:
    star = ToyStar("a", max_len=LONG)
    for name in ("a", "b"):  # the transport gives each handshake a sequence of its own
        tag = ToyTag(1, [*SYSTEM, 1])
        star.hub.join(LinkId("b"), TargetId("a"), 32) if name == "b" else None
        star.send(name, tag.open(1))
        serve(star, (name, tag))
        star.hub.leave(LinkId(name), star.clock())
    assert stats_of(star).num_shared_tokens == 0


@pytest.mark.parametrize("make_drafter", [lambda: EagleDrafter(make_head()), lambda: NgramDrafter(1, 3, 4)])
def test_a_drafter_whose_rows_are_more_than_their_tokens_shares_nothing(make_drafter: Callable[[], Drafter]) -> None:
    hub = DraftHub(make_drafter(), VirtualClock(), HubConfig(share_prefixes="hub"))
    hub.join(LinkId("a"), TargetId("a"), 32)
    hub.handle(LinkId("a"), ToyTag(1, SYSTEM[: 2 * PREFIX_BLOCK]).open(2), 0.0)
    (sequence,) = hub._sequences.values()
    assert list(sequence.committed.prefix_names) == []


class Twin:
    """A hub on the synthetic draft, whose cache holds the hash of the whole prefix in every slot."""

    def __init__(self, scope: PrefixScope, num_rows: int) -> None:
        self.clock = VirtualClock()
        spec = SyntheticSpec(vocab=64, role="draft")
        self.runner = SyntheticRunner(
            spec, num_rows=num_rows, max_model_len=LONG, clock=self.clock, sleep=self.clock.advance
        )
        self.hub = DraftHub(
            CausalDrafter(self.runner), self.clock, HubConfig(share_prefixes=scope, prefill_chunk=24, max_tags=64)
        )
        aside = VirtualClock()  # what only looks takes no time of the hub
        self.fresh = SyntheticRunner(spec, num_rows=1, max_model_len=LONG, clock=aside, sleep=aside.advance)
        self.tags: dict[tuple[str, int], ToyTag] = {}
        for name in "ab":
            self.hub.join(LinkId(name), TargetId(name), spec.vocab)

    def open(self, name: str, number: int, prompt: Sequence[int], budget: DraftBudget) -> None:
        tag = self.tags[name, number] = ToyTag(number, prompt, SAMPLED if number % 3 == 0 else GREEDY)
        self.hub.handle(LinkId(name), tag.open(budget), self.clock())

    def verdict(self, name: str, number: int, num_accepted: int, budget: DraftBudget) -> None:
        tag = self.tags[name, number]
        accepted = [] if tag.proposal is None else tag.proposal.token_ids[:1][:num_accepted]
        self.hub.handle(LinkId(name), tag.verdict([*accepted, 5 + number % 20], budget), self.clock())

    def close(self, name: str, number: int) -> None:
        self.hub.handle(LinkId(name), self.tags.pop((name, number)).close(), self.clock())

    def proposals(self) -> dict[tuple[str, int], object]:
        """Drain; what each tag is told, by paths."""
        told: dict[tuple[str, int], object] = {}
        while self.hub.has_work:
            for link_id, message in self.hub.step(self.clock()):
                assert isinstance(message, Proposal)
                tag = self.tags.get((link_id, message.tag))
                if tag is not None and tag.receive(message):  # else it was closed, or has said more meanwhile
                    told[link_id, message.tag] = by_paths(message)
            self.hub.check_integrity()
            self.check_slots()
        return told

    def check_slots(self) -> None:
        """Every row in use holds what one that had prefilled the tokens by itself would hold."""
        cache, row = self.runner.cache, self.fresh.cache.lease()
        for sequence in self.hub._sequences.values():
            if sequence.row is not None and (length := cache.lengths[sequence.row]):
                self.fresh.forward([Segment(row, sequence.token_ids[:length], 0)])
                for mine, fresh in ((cache.keys, self.fresh.cache.keys), (cache.values, self.fresh.cache.values)):
                    assert torch.equal(mine[0][sequence.row, :, :length], fresh[0][row, :, :length])
        self.fresh.cache.free(row)


def lead_twin_lives(seed: int, scope: PrefixScope) -> tuple[HubStats, HubStats]:
    """Random tags that begin like others, open or closed, on few rows. Returns: what both hubs counted."""
    chance, twins = random.Random(seed), (Twin(scope, num_rows=3), Twin("off", num_rows=3))
    texts, number = [SYSTEM], 0
    for _ in range(40):
        open_tags, budget = sorted(twins[0].tags), DraftBudget(chance.choice((1, 4)), chance.randint(1, 3), 2)
        act = chance.choice(("open", "open", "verdict", "verdict", "close", "drain", "drain"))
        if act == "drain":
            told, expected = (twin.proposals() for twin in twins)
            assert told == expected
        elif act == "open" or not open_tags:
            number, begins = number + 1, chance.choice((SYSTEM, chance.choice(texts), texts[-1]))
            kept = chance.choice((len(begins), chance.randint(1, len(begins))))
            prompt, name = [*begins[:kept], *chance.choices(range(4, 32), k=chance.randint(1, 9))], chance.choice("ab")
            texts.append(prompt)
            for twin in twins:
                twin.open(name, number, prompt, budget)
        elif act == "verdict":
            key, num_accepted = chance.choice(open_tags), chance.randint(0, 1)
            for twin in twins:
                twin.verdict(*key, num_accepted, budget)
            texts.append(list(twins[0].tags[key].token_ids))
        else:
            key = chance.choice(open_tags)
            for twin in twins:
                twin.close(*key)
    return stats_of(twins[0]), stats_of(twins[1])


@pytest.mark.parametrize("scope", ["target", "hub"])
def test_a_hub_that_shares_says_what_one_that_does_not_says(scope: PrefixScope) -> None:
    """And each slot of each row is the right one, after every draft step."""
    shares, alone = zip(*(lead_twin_lives(seed, scope) for seed in range(6)), strict=True)
    spared = sum(stats.num_shared_tokens for stats in shares)
    prefilled, prefilled_alone = (sum(stats.num_prompt_tokens for stats in each) for each in (shares, alone))
    assert prefilled < 0.7 * prefilled_alone
    assert spared > 0.5 * prefilled


@pytest.fixture(scope="module")
def real_draft(smollm2: Path) -> ModelRunner:
    config = ModelConfig(model=str(smollm2), dtype="float32", numerics="fast", num_rows=3, max_model_len=96)
    return load_runner(config)


@pytest.mark.model
def test_a_real_draft_proposes_the_same_from_keys_and_values_that_it_took_over(real_draft: ModelRunner) -> None:
    """Chains and trees of SmolLM2 in float32: one prompt, one that begins alike, and one that goes on after its end."""
    chance = random.Random(5)
    system = chance.choices(range(1000, 40_000), k=2 * PREFIX_BLOCK)
    prompts = [[*system, *chance.choices(range(1000, 40_000), k=3)] for _ in range(2)]
    told: dict[PrefixScope, list[object]] = {}
    spared: dict[PrefixScope, int] = {}
    for scope in ("target", "off"):
        clock = VirtualClock()
        hub = DraftHub(CausalDrafter(real_draft), clock, HubConfig(share_prefixes=scope))
        hub.join(LinkId("a"), TargetId("a"), real_draft.info.vocab_size)
        told[scope], tag = [], ToyTag(0, [])
        for number, prompt in enumerate([*prompts, None], start=1):
            tag = ToyTag(number, [*tag.token_ids, 77] if prompt is None else prompt)
            message = tag.open(DraftBudget(6, 3, 2) if number == 2 else 4)
            hub.handle(LinkId("a"), message, clock())
            while hub.has_work:
                for _, reply in hub.step(clock()):
                    assert tag.receive(reply)
                    told[scope].append(by_paths(tag.proposal))
            hub.check_integrity()
            hub.handle(LinkId("a"), tag.close(), clock())
        spared[scope] = hub.status(clock()).stats.num_shared_tokens
    assert told["target"] == told["off"]
    assert len(told["off"]) == 3
    assert spared == {"target": 2 * len(system), "off": 0}
