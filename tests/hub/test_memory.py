"""A thousand tags on rows for a hundred: slower, and never wrong."""

from __future__ import annotations

import random
from dataclasses import replace

from hub_toys import ToyStar, ToyTag, by_paths
from synthetic_star import SyntheticStar

from starspec.config import HubConfig
from starspec.ids import LinkId
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.wire.messages import Proposal

NUM_TAGS, NUM_ROWS, NUM_ROUNDS = 1000, 100, 3


def test_a_thousand_tags_are_all_served_right_on_rows_for_a_hundred() -> None:
    star = ToyStar("a", "b", num_rows=NUM_ROWS, max_tags=NUM_TAGS, prefill_chunk=256)
    rng = random.Random(1)
    tags = {
        (name, number): ToyTag(number, rng.choices(range(30), k=rng.randint(1, 20)))
        for name in "ab"
        for number in range(1, NUM_TAGS // 2 + 1)
    }
    for (name, _), tag in tags.items():
        star.hub.handle(LinkId(name), tag.open(2), star.clock())
    for round_number in range(NUM_ROUNDS):
        star.hub.check_integrity()
        told = 0
        while star.hub.has_work:
            for name, message in star.hub.step(star.clock()):
                assert isinstance(message, Proposal)
                assert message.retry_after_s == 0.0
                tag = tags[str(name), message.tag]
                assert tag.receive(message)
                assert by_paths(message) == tag.expected_tree()
                told += 1
            assert star.num_leased <= NUM_ROWS
        assert told == NUM_TAGS, f"in round {round_number} everybody was served once"
        for (name, _), tag in tags.items():
            star.hub.handle(LinkId(name), tag.verdict([rng.randrange(30)], 2), star.clock())
    stats = star.hub.status(star.clock()).stats
    assert stats.num_tags == NUM_TAGS
    assert stats.num_evictions >= (NUM_TAGS - NUM_ROWS) * NUM_ROUNDS


def test_the_hub_tells_how_much_of_its_cache_is_of_use() -> None:
    star = ToyStar("a", num_rows=4, max_len=64)
    star.send("a", ToyTag(1, [1] * 20).open(2), ToyTag(2, [2] * 12).open(2))
    star.drain()
    stats = star.hub.status(star.clock()).stats
    assert (stats.num_rows_leased, stats.num_rows_free, stats.row_fill) == (2, 2, 32 / 128)


def test_an_evicted_prompt_that_is_longer_than_a_chunk_is_prefilled_again_to_its_end() -> None:
    """Prompts of several draft steps take rows from each other's idle sequences, never from one in prefill."""
    star = ToyStar(*"abc", num_rows=2, prefill_chunk=4, max_batch=2)
    tags = {name: [ToyTag(number, [number] * 30) for number in (1, 2, 3)] for name in "abc"}
    for name, each in tags.items():
        star.send(name, *(tag.open(2) for tag in each))
    for _ in range(3):
        proposals = star.drain()
        assert len(proposals) == 9
        for name, proposal in proposals:
            tag = tags[name][proposal.tag - 1]
            assert tag.receive(proposal)
            assert proposal.token_ids == tag.expected(2)
            star.send(name, tag.verdict([7], 2))


def test_a_thousand_targets_with_deadlines_go_on_and_get_what_a_hub_with_rows_for_a_hundred_can_draft() -> None:
    """Most verdicts overtake their proposals, and most rows are somebody else's by the next request."""
    spec = SyntheticSpec(vocab=512, alpha=0.8, step_ms=20.0)
    star = SyntheticStar(
        NUM_TAGS,
        HubConfig(run_ahead="outcomes", max_tags=NUM_TAGS),
        draft=replace(spec, role="draft", step_ms=1.0, per_sequence=0.02),
        target=spec,
        depth=4,
        deadline_s=0.05,
        num_rows=NUM_ROWS,
    )
    star.run(0.2)
    before, rates = star.hub.stats.num_draft_tokens, star.run(0.3)
    star.hub.check_integrity()
    assert star.num_late > NUM_TAGS
    assert min(rates.values()) >= 1 / (0.05 + 0.02) - 2 / 0.3, "a token a deadline and a forward, at the least"
    assert star.hub.stats.num_draft_tokens - before >= 8 * NUM_TAGS
    assert star.hub.stats.num_evictions > 0
