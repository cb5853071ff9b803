"""What the hub tells of each of its targets: of a vLLM server, nobody else does."""

import pytest
from hub_toys import ToyStar, ToyTag, paths_of
from synthetic_star import SyntheticStar

from starspec.config import Admission, HubConfig
from starspec.ids import LinkId, TargetId
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import HubTargetStats


def told_of(star: ToyStar, name: str) -> HubTargetStats:
    return star.hub.status(star.clock()).targets[TargetId(name)]


def test_each_target_has_counts_of_its_own() -> None:
    star, one, other = ToyStar("a", "b"), ToyTag(1, [1, 2, 3]), ToyTag(1, [4, 5])
    star.send("a", one.open(4))
    star.send("b", other.open(2))
    for name, message in star.drain():
        assert {"a": one, "b": other}[name].receive(message)
    star.clock.advance(0.5)
    star.send("a", one.verdict([*one.proposal.token_ids[:3], 9], 4))
    for _, message in star.drain():
        one.receive(message)
    first, second = told_of(star, "a"), told_of(star, "b")
    assert (first.num_tags, first.num_proposals, first.num_draft_tokens) == (1, 2, 8)
    assert (first.num_verdicts, first.num_accepted_tokens, first.acceptance_length) == (1, 3, 4.0)
    assert first.return_time.value >= 0.5
    assert (second.num_proposals, second.num_draft_tokens, second.num_verdicts) == (1, 2, 0)
    assert second.acceptance_length == 1.0


def test_the_trace_shows_the_rounds_of_each_target() -> None:
    star, tag = ToyStar("a", "b"), ToyTag(1, [1, 2, 3])
    star.runner.step_s = 0.25
    star.send("a", tag.open(2))
    for _, message in star.drain():
        tag.receive(message)
    star.clock.advance(1.5)
    star.send("a", tag.verdict([9], 2))
    star.drain()
    rounds = [each for each in star.slices.all if each[0].startswith("target ")]
    assert rounds == [
        ("target a", "proposal", 0.0, 0.5),
        ("target a", "verdict", 0.5, 2.0),
        ("target a", "proposal", 2.0, 2.5),
    ]


def test_a_verdict_on_a_proposal_without_tokens_is_no_speculative_round() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1] * 100)  # longer than the draft's context
    star.send("a", tag.open(2))
    for _, message in star.drain():
        tag.receive(message)
    star.send("a", tag.verdict([5], 2))
    star.drain()
    assert told_of(star, "a").num_verdicts == 0
    assert told_of(star, "a").acceptance_length == 1.0


def test_a_verdict_that_tells_of_several_rounds_says_nothing_of_the_proposal() -> None:
    """As of a vLLM server that asked for nothing for a while."""
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(2))
    for _, message in star.drain():
        tag.receive(message)
    star.clock.advance(4.0)
    star.send("a", tag.verdict([9, 8, 7, 6], 2))
    star.drain()
    told = told_of(star, "a")
    assert (told.num_verdicts, told.num_accepted_tokens, told.return_time.count, told.round.count) == (0, 0, 0, 0)
    assert [each[1] for each in star.slices.all if each[0] == "target a"] == ["proposal", "proposal"]


def test_verdicts_on_trees_are_counted_like_those_on_chains() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(DraftBudget(6, 3, 2)))
    for _, message in star.drain():
        assert tag.receive(message)
    deepest = max(paths_of(tag.proposal), key=len)
    star.send("a", tag.verdict([*deepest, 9], DraftBudget(6, 3, 2)))
    star.drain()
    assert (told_of(star, "a").num_verdicts, told_of(star, "a").num_accepted_tokens) == (1, len(deepest))


def test_a_verdict_that_ends_with_the_next_draft_token_was_made_without_it() -> None:
    """As where the proposal came too late, or in a round without drafts on purpose."""
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(3))
    for _, message in star.drain():
        assert tag.receive(message)
    star.send("a", tag.verdict(tag.proposal.token_ids[:1], 3))
    star.drain()
    assert (told_of(star, "a").num_verdicts, told_of(star, "a").return_time.count) == (0, 0)


def test_a_verdict_that_was_there_before_the_proposal_is_no_judgement_of_it() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.runner.step_s = 0.01
    star.send("a", tag.open(3))
    for _, message in star.drain():
        assert tag.receive(message)
    star.hub.handle(LinkId("a"), tag.verdict(tag.told_otherwise(0), 3), star.clock() - 0.005)
    star.drain()
    assert (told_of(star, "a").num_verdicts, told_of(star, "a").return_time.count) == (0, 0)


def test_rounds_that_a_rate_limit_left_without_drafts_tell_nothing_of_those_with() -> None:
    star, tag = ToyStar("a", rate_limits={"a": 1.0}), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(3))
    for _ in range(4):
        for _, message in star.drain():
            assert tag.receive(message)
        star.clock.advance(0.01)
        star.send("a", tag.verdict(tag.told_otherwise(0), 3))
    assert star.hub.status(star.clock()).stats.num_rationed >= 3
    told = told_of(star, "a")
    assert (told.num_verdicts, told.return_time.count) == (1, 1)
    assert told.round.count <= 1


def test_a_round_in_which_another_prompt_was_prefilled_is_as_long_as_it_was() -> None:
    star, tag, other = ToyStar("a", "b"), ToyTag(1, [1, 2, 3]), ToyTag(1, [5] * 60)
    star.runner.step_s = 1.0
    star.send("a", tag.open(2))
    for _, message in star.drain():
        assert tag.receive(message)
    star.send("b", other.open(2))
    star.send("a", tag.verdict(tag.told_otherwise(1), 2))
    star.drain()
    assert told_of(star, "a").round.value >= 2.0


def test_a_target_that_left_is_told_of_no_more() -> None:
    star = ToyStar("a", "b")
    star.send("a", ToyTag(1, [1, 2]).open(2))
    star.drain()
    assert star.hub.status(star.clock()).targets.keys() == {"a", "b"}
    star.hub.leave(LinkId("a"), star.clock())
    assert star.hub.status(star.clock()).targets.keys() == {"b"}


@pytest.mark.parametrize("admission", ["off", "n_max"])
def test_n_max_is_told_whether_or_not_it_is_enforced(admission: Admission) -> None:
    draft = SyntheticSpec(role="draft", alpha=0.8, step_ms=5.0, per_sequence=0.5)
    target = SyntheticSpec(role="target", alpha=0.8, step_ms=25.0)
    star = SyntheticStar(2, HubConfig(admission=admission), draft=draft, target=target, depth=3)
    star.run(3.0)
    stats = star.hub.status(star.clock()).stats
    assert 2 <= stats.num_max < 64
    assert bool(stats.num_admitted) == (admission == "n_max")
