"""What a hub with an EAGLE head does for one tag, and what it does for others meanwhile."""

from __future__ import annotations

import pytest
from eagle_toys import DRAFT_TOKEN_IDS, MAX_LEN, EagleStar, EagleTag, HeadMethod, make_head, propose
from hub_toys import GREEDY, PENALIZED, SAMPLED, VOCAB_SIZE, paths_of

from starspec.config import SampleMethod
from starspec.ids import LinkId, Tag
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Fault, Features, Reopen

A = LinkId("a")
TREE = DraftBudget(8, 3, 3)
PROMPT = [3, 7, 11, 2, 9, 30]
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "penalized": PENALIZED, "T=1": SamplingSpec(temperature=1.0, seed=3)}


@pytest.mark.parametrize("head_method", ["eagle", "eagle3"])
@pytest.mark.parametrize("method", ["coupled", "rejection"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("budget", [DraftBudget.chain(4), TREE], ids=["chain", "tree"])
def test_each_round_drafts_what_a_hub_drafts_that_knows_of_this_tag_alone(
    head_method: HeadMethod, method: SampleMethod, sampling: SamplingSpec, budget: DraftBudget
) -> None:
    star = EagleStar("a", "b", head=make_head(head_method))
    tags = {
        name: EagleTag(1, PROMPT[:num], sampling, method, head_method=head_method, identity=num)
        for name, num in (("a", 4), ("b", 6))
    }
    for name, tag in tags.items():
        star.send(name, tag.open(budget), tag.past())
    for number in range(4):
        for name, message in star.drain():
            assert tags[name].receive(message)
        for name, tag in tags.items():
            assert tag.proposal is not None
            assert paths_of(tag.proposal) == tag.alone()
            assert bool(tag.proposal.drawn) == (method == "rejection" and not sampling.is_greedy)
            accepted = sorted(paths_of(tag.proposal), key=len)[-1][:number]
            star.send(name, *tag.told(tag.verdict([*accepted, 5 + number], budget)))


@pytest.mark.parametrize("head_method", ["eagle", "eagle3"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budget", [DraftBudget.chain(4), DraftBudget(14, 4, 3)], ids=["chain", "tree"])
def test_a_proposal_is_that_of_a_head_that_is_run_over_each_path_by_itself(
    head_method: HeadMethod, sampling: SamplingSpec, budget: DraftBudget
) -> None:
    star = EagleStar("a", head=make_head(head_method), max_draft_tokens=16)
    tag = EagleTag(1, PROMPT, sampling, head_method=head_method)
    star.send("a", tag.open(budget), tag.past())
    for _ in range(2):
        paths = paths_of(propose(star, "a", tag))
        assert paths == tag.plain_tree().nodes
        assert max(map(len, paths)) >= 3
        accepted = sorted(paths, key=len)[-1]
        star.send("a", *tag.told(tag.verdict([*accepted, 5], budget)))


def test_a_request_waits_for_its_features_and_nobody_else_does() -> None:
    star, waiting, ready = EagleStar("a", "b"), EagleTag(1, PROMPT), EagleTag(1, PROMPT[:3], identity=2)
    star.send("a", waiting.open(4), waiting.features(0, 3))
    assert not star.hub.has_work
    star.send("b", ready.open(4), ready.past())
    assert paths_of(propose(star, "b", ready)) == ready.alone()
    assert star.num_leased == 1  # who waits for features holds no row
    star.send("a", waiting.features(3, 5))
    assert paths_of(propose(star, "a", waiting)) == waiting.alone()


def test_a_verdict_waits_for_its_features_too() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4), tag.past())
    propose(star, "a", tag)
    features, verdict = tag.told(tag.verdict([5, 6], 4))
    star.send("a", verdict)
    assert not star.hub.has_work
    star.send("a", features)
    assert paths_of(propose(star, "a", tag)) == tag.alone()


def test_the_first_token_of_a_prompt_alone_gives_nothing_to_draft_from() -> None:
    star, tag = EagleStar("a"), EagleTag(1, [4])
    star.send("a", tag.open(4))
    assert not star.hub.has_work
    star.send("a", *tag.told(tag.verdict([9], 4)))
    assert paths_of(propose(star, "a", tag)) == tag.alone()


@pytest.mark.parametrize("num_lost", [1, 2])
def test_after_a_hole_the_row_begins_anew_behind_it(num_lost: int) -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4), tag.past())
    propose(star, "a", tag)
    for _ in range(num_lost):
        star.send("a", tag.verdict([5], 4))
    before = star.head.num_read
    star.send("a", *tag.told(tag.verdict([6, 7], 1)))
    assert paths_of(propose(star, "a", tag)) == tag.alone(first=len(tag.token_ids) - 3)
    assert star.head.num_read - before == 2


def test_a_row_that_began_too_far_ahead_follows_features_that_come_before() -> None:
    star, tag = EagleStar("a", feature_window=8), EagleTag(1, PROMPT[:2])
    star.send("a", tag.open(TREE), tag.past())
    propose(star, "a", tag)
    star.send("a", tag.features(1, 2), tag.features(1, 10))  # the last ones are of tokens that are not there yet
    star.send("a", *tag.told(tag.verdict([5], 3)))
    assert paths_of(propose(star, "a", tag)) == tag.alone(first=1)


def test_features_that_come_again_change_nothing() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4), tag.past(), tag.past(), tag.features(1, 3))
    assert paths_of(propose(star, "a", tag)) == tag.alone()
    before = star.head.num_read
    star.send("a", tag.past(), *tag.told(tag.verdict([5], 1)))
    assert paths_of(propose(star, "a", tag)) == tag.alone()
    assert star.head.num_read - before == 1


def test_a_verdict_costs_only_the_slots_that_are_new() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4), tag.past())
    accepted = propose(star, "a", tag).token_ids
    before = star.head.num_read
    star.send("a", *tag.told(tag.verdict([*accepted[:2], 5], 4)))
    propose(star, "a", tag)
    assert star.head.num_read - before == 3 + 3  # what was committed, then the four draft steps' drafts but the last


@pytest.mark.parametrize("window", [3, 8, MAX_LEN])
def test_an_evicted_tag_prefills_its_tail_again_and_no_more(window: int) -> None:
    star = EagleStar("a", head=make_head(num_rows=1), feature_window=window)
    tag, other = EagleTag(1, PROMPT), EagleTag(2, PROMPT[:2])
    star.send("a", tag.open(4), *(tag.features(each, each + 1) for each in range(5)))
    propose(star, "a", tag)
    star.send("a", other.open(2), other.past())
    propose(star, "a", other)
    before = star.head.num_read
    star.send("a", *tag.told(tag.verdict([5], 1)))
    assert paths_of(propose(star, "a", tag)) == tag.alone(first=max(0, 6 - window))
    assert star.head.num_read - before == min(6, window)


def test_a_proposal_that_is_asked_for_again_is_at_hand() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(TREE), tag.past())
    paths = paths_of(propose(star, "a", tag))
    num_steps = len(star.head.draft_steps)
    star.send("a", tag.open(TREE))
    assert paths_of(propose(star, "a", tag)) == paths
    assert len(star.head.draft_steps) == num_steps


@pytest.mark.parametrize("wanted", [DraftBudget.chain(3), DraftBudget(8, 2, 2)], ids=["chain", "narrower"])
def test_a_tree_of_another_width_is_grown_anew_and_reads_one_slot_again(wanted: DraftBudget) -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(TREE), tag.past())
    propose(star, "a", tag)
    num_steps = len(star.head.draft_steps)
    star.send("a", tag.open(wanted))
    assert paths_of(propose(star, "a", tag)) == tag.alone()
    assert star.head.draft_steps[num_steps][0].num_new == 1


def test_another_width_after_a_hole_costs_this_tag_and_nobody_else() -> None:
    """Its tail begins behind the slot that is to be forwarded again: the row waits for what a verdict brings."""
    star = EagleStar("a", "b", feature_window=3)
    tag, other = EagleTag(1, PROMPT), EagleTag(1, PROMPT[:4], identity=2)
    star.send("a", tag.open(TREE), *(tag.features(each, each + 1) for each in range(5)))
    propose(star, "a", tag)
    star.send("a", tag.features(0, 1), tag.features(5, 6), tag.open(3))
    star.send("b", other.open(3), other.past())
    assert paths_of(propose(star, "b", other)) == other.alone()
    assert tag.proposal is None
    star.send("a", *tag.told(tag.verdict([5, 6], 3)))
    assert paths_of(propose(star, "a", tag)) == tag.alone(first=5)


def test_a_budget_beyond_the_room_is_cut_and_at_the_end_nothing_is_proposed() -> None:
    star, tag = EagleStar("a"), EagleTag(1, [3] * (MAX_LEN - 3))
    star.send("a", tag.open(DraftBudget(8, 8, 2)), tag.past())
    proposal = propose(star, "a", tag)
    assert max(proposal.tree.depths) <= 3
    star.send("a", *tag.told(tag.verdict([1, 2, 3], 4)))
    assert propose(star, "a", tag).token_ids == []
    assert star.num_leased == 0  # a row that can be of no more use goes back


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("budget", [DraftBudget.chain(4), TREE], ids=["chain", "tree"])
def test_a_small_vocabulary_proposes_its_own_tokens_in_the_targets_words(
    sampling: SamplingSpec, budget: DraftBudget
) -> None:
    star, known = EagleStar("a"), set(DRAFT_TOKEN_IDS.tolist())
    for number in range(1, 9):
        # 1 and 5 are not in the draft's own vocabulary: it reads them all the same
        tag = EagleTag(number, [number, 1, 5], sampling)
        star.send("a", tag.open(budget), tag.past())
        proposal = propose(star, "a", tag)
        assert proposal.token_ids
        assert set(proposal.token_ids) <= known
        star.send("a", tag.close())


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLINGS["T=1"]], ids=["greedy", "sampled"])
def test_tokens_that_the_target_does_not_have_are_never_proposed(sampling: SamplingSpec) -> None:
    star = EagleStar("a", target_vocab_size=9)
    for number in range(1, 9):
        tag = EagleTag(number, [number % 9, 1, 5], sampling)
        star.send("a", tag.open(4), tag.past())
        proposal = propose(star, "a", tag)
        assert proposal.token_ids
        assert all(token_id < 9 for token_id in proposal.token_ids)
        star.send("a", tag.close())


def test_features_of_a_tag_that_is_not_held_are_dropped_and_of_no_use_later() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.past())
    assert star.drain() == []
    star.send("a", tag.open(4))
    assert not star.hub.has_work
    star.send("a", tag.past())
    assert paths_of(propose(star, "a", tag)) == tag.alone()


def test_a_target_cannot_tell_features_of_anothers_tag() -> None:
    star, tag, foe = EagleStar("a", "b"), EagleTag(1, PROMPT), EagleTag(1, PROMPT, identity=666)
    star.send("a", tag.open(4), tag.features(0, 4))
    star.send("b", foe.past())
    assert not star.hub.has_work
    star.send("a", tag.features(4, 5))
    assert paths_of(propose(star, "a", tag)) == tag.alone()


@pytest.mark.parametrize("start", [len(PROMPT), len(PROMPT) + 1, 2**31 - 1])
def test_features_beyond_the_tokens_are_a_fault(start: int) -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4))
    star.hub.handle(A, Features(Tag(1), start, 1, tag.features(0, 1).data), 0.0)
    ((_, fault),) = star.drain()
    assert isinstance(fault, Fault)


def test_a_forward_that_raises_costs_its_sequences_only_and_leaves_no_row() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(4), tag.past())
    star.head.is_broken = True
    with pytest.raises(RuntimeError):
        star.step()
    star.hub.abandon_step(star.clock())
    star.hub.check_integrity()
    ((_, reopen),) = star.drain()
    assert isinstance(reopen, Reopen)
    assert star.num_leased == 0
    star.head.is_broken = False
    star.clock.advance(2.0)
    assert tag.receive(reopen)
    star.send("a", tag.open(4), tag.past())
    assert paths_of(propose(star, "a", tag)) == tag.alone()


def test_a_prompt_is_prefilled_in_chunks_like_any_other() -> None:
    star, tag = EagleStar("a", prefill_chunk=6), EagleTag(1, [each % VOCAB_SIZE for each in range(20)])
    star.send("a", tag.open(2), tag.past())
    assert paths_of(propose(star, "a", tag)) == tag.alone()
    assert [draft_step[0].num_new for draft_step in star.head.draft_steps] == [
        6,
        13,
        1,
    ]  # no more than a verdict leaves is no prompt


def test_rows_whose_tags_wait_for_features_are_there_for_others() -> None:
    star = EagleStar("a", head=make_head(num_rows=2))
    tags = [EagleTag(number, PROMPT[:number]) for number in (2, 3, 4)]
    for tag in tags[:2]:
        star.send("a", tag.open(2), tag.past())
        propose(star, "a", tag)
        star.send("a", tag.verdict([5], 2))
    star.send("a", tags[2].open(2), tags[2].past())
    assert paths_of(propose(star, "a", tags[2])) == tags[2].alone()


def test_what_nodes_said_is_forgotten_with_their_tree() -> None:
    star, tag = EagleStar("a"), EagleTag(1, PROMPT)
    star.send("a", tag.open(TREE), tag.past())
    propose(star, "a", tag)
    assert [len(said) > 1 for said in star.drafter._hidden.values()] == [True]
    star.send("a", tag.open(4))  # the same tokens, and other features of them
    assert list(star.drafter._hidden.values()) == [{}]
    assert paths_of(propose(star, "a", tag)) == tag.alone()


def test_all_that_a_verdict_committed_is_forwarded_at_once_and_is_not_a_prefill() -> None:
    star, tag = EagleStar("a", prefill_chunk=6, max_draft_tokens=24), EagleTag(1, PROMPT)
    star.send("a", tag.open(24), tag.past())
    propose(star, "a", tag)
    star.head.draft_steps.clear()
    num_decoded = star.hub.stats.t_s.count
    star.send("a", *tag.told(tag.verdict([5] * 20, 2)))
    assert paths_of(propose(star, "a", tag)) == tag.alone()
    assert [draft_step[0].num_new for draft_step in star.head.draft_steps] == [20, 1]
    assert star.hub.stats.t_s.count - num_decoded == 2
