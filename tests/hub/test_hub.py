"""The hub batches, keeps K/V between rounds, forgets nothing and leaks nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hub_toys import (
    END,
    GREEDY,
    PENALIZED,
    SAMPLED,
    VOCAB_SIZE,
    ToyStar,
    ToyTag,
    by_paths,
    logits_after,
    paths_of,
    reference_chain,
)
from scipy import stats
from torch import Tensor

from starspec.config import HubConfig
from starspec.errors import OurBug
from starspec.hub import children
from starspec.hub.build import LoadedDrafter, build_hub
from starspec.hub.causal import CausalDrafter
from starspec.hub.drafter import DraftFailed
from starspec.hub.handshake import FeatureTerms
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.policy.draft_batch import TagKey
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Fault, Ping, Proposal, Reopen, Verdict

A = LinkId("a")


def num_tokens_forwarded(star: ToyStar) -> int:
    return sum(segment.num_new for draft_step in star.runner.draft_steps for segment in draft_step)


def propose(star: ToyStar, target: str, tag: ToyTag) -> Proposal:
    """Drain the hub; the one reply is the tag's fresh proposal."""
    ((receiver, message),) = star.drain()
    assert receiver == target
    assert tag.receive(message)
    assert tag.proposal is not None
    return tag.proposal


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_proposal_is_the_drafts_own_continuation_under_the_sampling_spec(sampling: SamplingSpec) -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3], sampling)
    star.send("a", tag.open(4))
    assert propose(star, "a", tag).token_ids == tag.expected(4)


def test_children_of_siblings_are_drawn_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square of pairs with a false alarm of 1e-4. With shared seeds, siblings would have equal children."""
    probs = torch.tensor([0.6, 0.3, 0.1])
    monkeypatch.setattr("hub_toys.logits_after", lambda _: probs.log())  # the same distribution at every node
    star, num, found = ToyStar("a", target_vocab_size=3), 600, Counter[tuple[int, int]]()
    for seed in range(num):
        tag = ToyTag(seed + 1, [1, 2], SamplingSpec(temperature=1.0, seed=seed), "rejection")
        star.send("a", tag.open(DraftBudget(num_draft_tokens=6, num_steps=2, top_k=2)))
        drafts = by_paths(propose(star, "a", tag)).drafts
        one, two = (drafts[token_id,].candidates[0] for token_id in sorted(drafts[()].candidates))
        found[one, two] += 1
        star.send("a", tag.close())
    sampling = probs.double().tolist()
    cells = [(found[one, two], num * sampling[one] * sampling[two]) for one in range(3) for two in range(3)]
    assert float(stats.chisquare(*zip(*cells, strict=True), sum_check=False).pvalue) > 1e-4


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSpec(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
def test_padding_of_the_drafts_vocabulary_is_never_proposed(sampling: SamplingSpec) -> None:
    star = ToyStar("a", target_vocab_size=9)
    for number, start in enumerate(range(9), start=1):
        tag = ToyTag(number, [start], sampling)
        star.send("a", tag.open(8))
        chain = propose(star, "a", tag).token_ids
        best = [int(logits_after([start, *chain[:index]])[:9].argmax()) for index in range(len(chain))]
        assert len(chain) == 8
        assert max(chain) < 9
        assert chain == best or sampling is not GREEDY


def test_penalties_count_committed_output_and_the_chain_itself() -> None:
    plain, prompt = SamplingSpec(temperature=0.0), None
    for start in range(30):  # a prompt whose unpenalized continuation repeats itself, early and after a verdict
        chain = reference_chain([start], 1, plain, 8, 64)
        if len(set(chain)) < len(chain):
            prompt = [start]
    assert prompt is not None
    star, tag = ToyStar("a", max_len=200), ToyTag(1, prompt, PENALIZED)
    star.send("a", tag.open(8))
    chain = propose(star, "a", tag).token_ids
    assert chain == tag.expected(8, 200)
    for _ in range(8):
        star.send("a", tag.verdict([*chain, 3], 8))
        chain = propose(star, "a", tag).token_ids
        assert chain == tag.expected(8, 200)


def test_sequences_of_different_targets_grow_in_the_same_forwards() -> None:
    star = ToyStar("a", "b", "c")
    tags = {
        name: ToyTag(1, [index] * 5, sampling)
        for index, (name, sampling) in enumerate(zip("abc", [GREEDY, SAMPLED, GREEDY], strict=True))
    }
    for name, tag in tags.items():
        star.send(name, tag.open(4))
    for name, message in star.drain():
        assert tags[name].receive(message)
    assert [tag.proposal.token_ids for tag in tags.values()] == [tag.expected(4) for tag in tags.values()]
    assert [len(draft_step) for draft_step in star.runner.draft_steps] == [3, 3, 3, 3]


def test_a_sequence_that_joins_midway_is_in_the_next_draft_step() -> None:
    star, early, late = ToyStar("a", "b"), ToyTag(1, [1, 2]), ToyTag(1, [3, 4])
    star.send("a", early.open(4))
    star.step()
    star.send("b", late.open(4))
    star.step()
    assert [len(draft_step) for draft_step in star.runner.draft_steps] == [1, 2]


def test_a_complete_chain_is_proposed_at_once_while_others_go_on_growing() -> None:
    star, short, long = ToyStar("a"), ToyTag(1, [1, 2]), ToyTag(2, [3, 4])
    star.send("a", short.open(1), long.open(4))
    ((_, proposal),) = star.step()
    assert proposal.tag == 1
    assert star.hub.has_work


def test_a_verdict_costs_only_the_tokens_that_are_new() -> None:
    star, tag = ToyStar("a"), ToyTag(1, list(range(20)))
    star.send("a", tag.open(4))
    accepted = propose(star, "a", tag).token_ids
    before = num_tokens_forwarded(star)
    star.send("a", tag.verdict([*accepted[:2], (accepted[2] + 1) % END], 4))
    assert propose(star, "a", tag).token_ids == tag.expected(4)
    # the target's own token, then the four draft steps' drafts but the last
    assert num_tokens_forwarded(star) - before == 1 + 3


def test_after_full_acceptance_the_last_draft_token_is_forwarded_with_the_bonus_token() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(4))
    accepted = propose(star, "a", tag).token_ids
    star.send("a", tag.verdict([*accepted, 9], 2))
    first = len(star.runner.draft_steps)
    assert propose(star, "a", tag).token_ids == tag.expected(2)
    assert list(star.runner.draft_steps[first][0].token_ids) == [accepted[-1], 9]


def test_what_a_verdict_did_not_contradict_survives_it() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(4))
    guess = propose(star, "a", tag).token_ids
    num_steps = len(star.runner.draft_steps)
    star.send("a", tag.verdict(guess[:1], 3))  # the target went on alone, to where the draft already is
    assert propose(star, "a", tag).token_ids == guess[1:]
    assert len(star.runner.draft_steps) == num_steps


def test_a_late_target_that_goes_on_alone_keeps_its_place_in_the_queue() -> None:
    star = ToyStar("a", prefill_chunk=4, max_draft_tokens=1)
    first, second = ToyTag(1, [1] * 24), ToyTag(2, [2] * 24)
    star.send("a", first.open(1), second.open(1))
    star.step()
    star.send("a", first.verdict([5], 1))
    assert [message.tag for _, message in star.drain()] == [1, 2]


def test_a_newcomers_prompt_delays_others_by_at_most_one_chunk_a_draft_step() -> None:
    star = ToyStar("a", "b", max_len=512, prefill_chunk=16, max_draft_tokens=4)
    old, new = ToyTag(1, [1, 2]), ToyTag(1, [index % 30 for index in range(100)])
    star.send("b", new.open(2))
    for _ in range(3):
        star.send("a", old.open(2))
        for name, message in star.drain():
            (old if name == "a" else new).receive(message)
    draft_steps = [sum(segment.num_new for segment in draft_step) for draft_step in star.runner.draft_steps]
    assert max(draft_steps) <= 16 + 2
    assert new.proposal.token_ids == new.expected(2, 512)


def assert_in_order_of_rows(star: ToyStar) -> None:
    """What lies side by side in the cache and in a forward may be read together."""
    for draft_step in star.runner.draft_steps:
        rows = [segment.row for segment in draft_step]
        assert rows == sorted(rows)


def test_several_newcomers_share_one_chunk() -> None:
    star = ToyStar("a", prefill_chunk=32, max_draft_tokens=4)
    star.send("a", *(ToyTag(index, [index] * 24).open(1) for index in range(1, 4)))
    star.step()
    assert sorted(len(segment.token_ids) for segment in star.runner.draft_steps[0]) == [8, 24]
    assert_in_order_of_rows(star)


def test_nothing_is_proposed_beyond_an_end_token() -> None:
    prompt = next(
        [start, end]
        for start in range(30)
        for end in range(30)
        if END in reference_chain([start, end], 2, GREEDY, 4, 64)[1:3]
    )
    star, tag = ToyStar("a"), ToyTag(1, prompt)
    star.send("a", tag.open(8))
    assert propose(star, "a", tag).token_ids[-1] == END
    assert tag.proposal.token_ids == tag.expected(8)


def test_a_sequence_near_the_drafts_length_gets_fewer_tokens_and_then_an_empty_answer_at_once() -> None:
    star, tag = ToyStar("a", max_len=16), ToyTag(1, [1] * 13)
    star.send("a", tag.open(8))
    guess = propose(star, "a", tag).token_ids
    assert guess == tag.expected(8, 16)
    num_steps = len(star.runner.draft_steps)
    star.send("a", tag.verdict([*guess, 5], 8))
    assert propose(star, "a", tag).token_ids == []
    assert len(star.runner.draft_steps) == num_steps
    assert star.num_leased == 0  # a row that can be of no more use goes back


def test_a_prompt_that_is_too_long_for_the_draft_is_answered_with_an_empty_proposal() -> None:
    star, tag = ToyStar("a", max_len=16), ToyTag(1, [1] * 40)
    star.send("a", tag.open(8))
    assert propose(star, "a", tag).token_ids == []


def test_a_context_that_is_too_long_is_not_held_and_its_verdicts_are_answered_at_once() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2] * 32)
    star.send("a", tag.open(3))
    for _ in range(3):
        ((_, answer),) = star.drain()
        assert isinstance(answer, Proposal)
        assert tag.receive(answer)
        assert answer.is_hopeless
        assert star.hub.status(star.clock()).stats.num_tags == 0
        star.send("a", tag.verdict([5], 3))
    star.drain()
    star.send("a", tag.verdict([5], 0))
    assert star.drain() == []
    star.send("a", tag.close())
    assert star.drain() == []


def test_a_token_that_the_draft_cannot_read_ends_drafting_for_its_tag_only() -> None:
    star, foreign, plain = ToyStar("a"), ToyTag(1, [1, 999]), ToyTag(2, [1, 2])
    star.send("a", foreign.open(2), plain.open(2))
    replies = {message.tag: message.token_ids for _, message in star.drain()}
    assert replies == {1: [], 2: plain.expected(2)}


def test_a_committed_token_that_the_draft_cannot_read_ends_drafting_for_good() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(2))
    star.drain()
    for token_id in (999, 5):
        star.send("a", tag.verdict([token_id], 2))
        assert propose(star, "a", tag).token_ids == []


def test_a_target_that_wants_nothing_gets_nothing() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(0))
    assert not star.hub.has_work
    star.send("a", tag.verdict([3], 2))
    assert propose(star, "a", tag).token_ids == tag.expected(2)


def test_no_proposal_is_longer_than_the_hubs_limit() -> None:
    star, tag = ToyStar("a", max_draft_tokens=3), ToyTag(1, [1, 2])
    star.send("a", tag.open(50))
    assert propose(star, "a", tag).token_ids == tag.expected(3)


def test_more_sequences_than_rows_are_all_served() -> None:
    star = ToyStar("a", num_rows=2)
    tags = {index: ToyTag(index, [index, index + 1]) for index in range(1, 7)}
    for _ in range(3):
        for tag in tags.values():
            star.send("a", tag.verdict([tag.proposal.token_ids[0], 1], 3) if tag.proposal else tag.open(3))
        for _, message in star.drain():
            assert tags[message.tag].receive(message)
        assert all(tag.proposal.token_ids == tag.expected(3) for tag in tags.values())
    assert star.num_leased == 2


def test_the_idle_sequence_used_least_recently_loses_its_row() -> None:
    star = ToyStar("a", num_rows=2)
    tags = {index: ToyTag(index, [index] * 3) for index in (1, 2, 3)}
    for tag in tags.values():
        star.clock.advance(1.0)
        star.send("a", tag.open(1))
        star.drain()
    num_steps = len(star.runner.draft_steps)
    star.send("a", tags[2].verdict([5], 1))
    star.drain()
    assert len(star.runner.draft_steps[num_steps][0].token_ids) == 1  # 2 kept its row: only the new token is forwarded
    star.send("a", tags[1].verdict([5], 1))
    star.drain()
    assert len(star.runner.draft_steps[num_steps + 1][0].token_ids) == 4  # 1 had lost it: all is prefilled again


def test_close_frees_everything() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(4))
    star.step()
    star.send("a", tag.close())
    assert (star.num_leased, star.hub.status(star.clock()).stats.num_tags, star.hub.has_work) == (0, 0, False)


def test_a_target_that_leaves_takes_its_tags_along_and_nobody_elses() -> None:
    star, gone, stays = ToyStar("a", "b"), ToyTag(1, [1, 2]), ToyTag(1, [3, 4])
    star.send("a", gone.open(4))
    star.send("b", stays.open(4))
    star.step()
    star.hub.leave(A, star.clock())
    star.hub.leave(A, star.clock())
    star.hub.check_integrity()
    assert star.num_leased == 1
    assert propose(star, "b", stays).token_ids == stays.expected(4)


def test_nothing_is_sent_to_a_target_that_has_left() -> None:
    star = ToyStar("a")
    star.hub.handle(A, Ping(1), star.clock())
    star.hub.leave(A, star.clock())
    star.hub.handle(A, Ping(2), star.clock())
    assert star.drain() == []


def test_a_target_cannot_join_twice() -> None:
    star = ToyStar("a")
    with pytest.raises(OurBug, match="joins twice"):
        star.hub.join(A, TargetId("a"), VOCAB_SIZE)


def test_a_verdict_on_an_unknown_tag_asks_for_open_once() -> None:
    star = ToyStar("a")
    verdict = Verdict(Tag(7), Epoch(5), 10, [1], 4)
    star.send("a", verdict, verdict)
    assert star.drain() == [("a", Reopen(Tag(7), Epoch(5)))]


def test_a_verdict_that_does_not_follow_frees_the_tag_and_asks_for_open() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(2))
    star.drain()
    tag.verdict([3], 2)  # lost on the way
    star.send("a", tag.verdict([4], 2))
    ((_, reopen),) = star.drain()
    assert star.num_leased == 0
    assert tag.receive(reopen)
    star.send("a", tag.open(2))
    assert propose(star, "a", tag).token_ids == tag.expected(2)


def test_a_verdict_on_another_length_asks_for_open() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(2))
    star.drain()
    star.send("a", Verdict(tag.session.tag, tag.session.next_epoch, 9, [3], 2))
    assert star.drain() == [("a", Reopen(Tag(1), Epoch(2)))]


def test_late_messages_of_a_closed_tag_do_not_open_it_again() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    opened = tag.open(2)
    star.send("a", opened, tag.close(), opened)
    assert (star.hub.status(star.clock()).stats.num_tags, star.drain()) == (0, [])


def test_a_message_that_breaks_the_protocol_is_answered_with_fault_and_changes_nothing() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(2), tag.close())
    star.send("a", Verdict(tag.session.tag, Epoch(9), 2, [3], 2))
    ((_, fault),) = star.drain()
    assert isinstance(fault, Fault)
    assert star.hub.status(star.clock()).stats.num_tags == 0


def test_ping_is_no_work() -> None:
    star = ToyStar("a")
    star.hub.handle(A, Ping(3, plain_tokens_per_s=50.0), star.clock())
    assert not star.hub.has_work
    assert star.step() == []
    assert star.runner.draft_steps == []


def test_a_tag_too_many_is_answered_with_an_empty_proposal_and_taken_in_when_there_is_room() -> None:
    star, first, second = ToyStar("a", max_tags=1), ToyTag(1, [1, 2]), ToyTag(2, [3, 4])
    star.send("a", first.open(2))
    star.drain()
    star.send("a", second.open(2))
    assert propose(star, "a", second).token_ids == []
    star.send("a", first.close(), second.verdict([5], 2))
    ((_, reopen),) = star.drain()
    assert second.receive(reopen)
    star.send("a", second.open(2))
    assert propose(star, "a", second).token_ids == second.expected(2)


def test_a_tag_too_many_that_wants_nothing_yet_is_not_answered() -> None:
    star = ToyStar("a", max_tags=1)
    star.send("a", ToyTag(1, [1]).open(0), ToyTag(2, [1]).open(0))
    assert (star.drain(), star.hub.status(star.clock()).stats.num_tags) == ([], 1)


def test_a_forward_that_raises_costs_its_sequences_only_and_the_hub_goes_on() -> None:
    star, hit, spared = ToyStar("a"), ToyTag(1, [1, 2]), ToyTag(2, [3, 4])
    star.send("a", spared.open(2))
    guess = dict(star.drain())["a"].token_ids
    star.send("a", hit.open(2))
    star.runner.is_broken = True
    with pytest.raises(RuntimeError):
        star.step()
    star.hub.abandon_step(star.clock())
    star.runner.is_broken = False
    ((_, reopen),) = star.drain()
    assert hit.receive(reopen)
    star.clock.advance(2.0)
    star.send("a", hit.open(2), spared.verdict(guess[:1], 2))
    replies = {message.tag: message.token_ids for _, message in star.drain()}
    assert replies == {1: hit.expected(2), 2: spared.expected(2)}


def test_losing_a_tag_that_is_not_held_says_nothing() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.send("a", tag.open(0), tag.close())
    star.hub.fail_tag(A, Tag(1), star.clock())
    star.hub.fail_tag(A, Tag(2), star.clock())
    star.hub.fail_tag(LinkId("gone"), Tag(1), star.clock())
    assert star.drain() == []


def test_an_evicted_chain_is_drafted_again_the_same() -> None:
    star, tag = ToyStar("a", num_rows=1), ToyTag(1, [1, 2])
    star.send("a", tag.open(4))
    guess = propose(star, "a", tag).token_ids
    star.send("a", ToyTag(2, [7]).open(1))
    star.drain()
    before = len(star.runner.draft_steps)
    star.send("a", tag.verdict(guess[:1], 3))
    assert propose(star, "a", tag).token_ids == guess[1:]
    assert len(star.runner.draft_steps) - before == 3  # nothing of the tree was left


def test_a_drafter_that_always_fails_is_not_asked_in_circles() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2])
    star.runner.is_broken = True
    star.send("a", tag.open(2))
    with pytest.raises(RuntimeError):
        star.step()
    star.hub.abandon_step(star.clock())
    ((_, reopen),) = star.drain()
    tag.receive(reopen)
    star.send("a", tag.open(2))
    assert propose(star, "a", tag).token_ids == []


@pytest.mark.parametrize("budget", [DraftBudget.chain(3), DraftBudget(6, 3, 2)], ids=str)
def test_a_law_that_fails_costs_its_own_tag_only(budget: DraftBudget, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(propose: Callable[..., Any]) -> Callable[..., Any]:
        def proposed(logits: Tensor, sampling: SamplingSpec, *more: Any, **options: Any) -> Any:
            if sampling.seed == 13:
                raise ValueError("no such law")
            return propose(logits, sampling, *more, **options)

        return proposed

    for name in ("propose_token", "propose_tokens"):
        monkeypatch.setattr(children, name, failing(getattr(children, name)))
    star = ToyStar("a", "b")
    hit, greedy = ToyTag(1, [1, 2], replace(SAMPLED, seed=13)), ToyTag(2, [3, 4])
    sampled = ToyTag(1, [5, 6, 7], SAMPLED)
    star.send("a", hit.open(budget), greedy.open(budget))
    star.send("b", sampled.open(budget))
    for _ in range(3):
        replies, failed = dict[tuple[str, int], Any](), list[TagKey]()
        while star.hub.has_work:
            try:
                replies |= {(link, message.tag): message for link, message in star.step()}
            except DraftFailed as failure:
                failed += [each.key for each in failure.sequences]
                star.hub.abandon_step(star.clock(), failure.sequences)
                star.hub.check_integrity()
        assert failed == [TagKey(A, Tag(1))]
        assert isinstance(replies[("a", 1)], Reopen)
        for link, tag in (("a", greedy), ("b", sampled)):
            proposal = replies[(link, tag.session.tag)]
            assert by_paths(proposal) == tag.expected_tree()
            assert tag.receive(proposal)
            star.send(link, tag.verdict([9], budget))
        assert hit.receive(replies[("a", 1)])
        star.send("a", hit.open(budget))


def test_a_tag_opened_anew_with_more_tokens_keeps_what_its_row_knows() -> None:
    star, tag = ToyStar("a"), ToyTag(1, list(range(20)))
    star.send("a", tag.open(4))
    accepted = propose(star, "a", tag).token_ids
    tag.session.lose()  # the target heard nothing for a while, and went on alone
    tag.token_ids += [accepted[0], (accepted[1] + 1) % END]
    before = num_tokens_forwarded(star)
    star.send("a", tag.open(4))
    assert propose(star, "a", tag).token_ids == tag.expected(4)
    assert num_tokens_forwarded(star) - before == 1 + 3


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALIZED], ids=["greedy", "sampled", "penalized"])
def test_trees_of_many_sequences_grow_in_the_same_forwards_and_are_those_of_fresh_drafters(
    sampling: SamplingSpec,
) -> None:
    star = ToyStar("a", "b")
    tags = {"a": ToyTag(1, [3] * 5, sampling), "b": ToyTag(1, [4] * 6, sampling)}
    for name, tag in tags.items():
        star.send(name, tag.open(DraftBudget(8, 3, 3)))
    for name, message in star.drain():
        assert tags[name].receive(message)
        assert paths_of(message) == tags[name].expected_tree().nodes
    assert [len(draft_step) for draft_step in star.runner.draft_steps] == [2, 2, 2]
    prompts, *draft_steps = [[each.num_new for each in draft_step] for draft_step in star.runner.draft_steps]
    assert sorted(prompts) == [5, 6]
    assert_in_order_of_rows(star)
    assert all(1 <= num_new <= 3 for draft_step in draft_steps for num_new in draft_step)


@pytest.mark.parametrize(
    "hostile", [DraftBudget(2**31 - 1, 64, 16), DraftBudget(64, 64, 2), DraftBudget(1, 9, 16)], ids=str
)
def test_a_budget_that_fits_no_row_is_cut_to_one_that_does(hostile: DraftBudget) -> None:
    star, tag = ToyStar("a", max_len=200, max_draft_tokens=64), ToyTag(1, [3] * 5)
    star.send("a", tag.open(hostile))
    proposal = propose(star, "a", tag)
    assert 1 <= len(proposal.token_ids) <= min(64, hostile.num_draft_tokens)
    assert paths_of(proposal) == tag.expected_tree(64, 200).nodes


@pytest.mark.parametrize(("terms", "window"), [(None, 0), (FeatureTerms(layers=(2,), hidden_size=16, window=24), 24)])
def test_a_hub_keeps_as_many_features_as_its_drafter_asks_for(terms: FeatureTerms | None, window: int) -> None:
    star = ToyStar()
    hub = build_hub(LoadedDrafter(CausalDrafter(star.runner), None, 4, 0, terms), HubConfig(), star.clock)
    hub.join(A, TargetId("target"), VOCAB_SIZE)
    assert hub._links[A].limits.feature_window == window
