"""While its proposal is in verification a tree grows on, and the verdict finds the next proposal ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hub_toys import GREEDY, SAMPLED, VOCAB_SIZE, ToyStar, ToyTag, logits_after, paths_of

from starspec.config import RunAhead
from starspec.ids import LinkId
from starspec.policy.admission import PAUSE_S
from starspec.policy.draft_batch import TagKey
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Close, HubToTarget, Proposal, Reopen, Verdict
from starspec.wire.session import TagState

NUM_NODES = 3
SOON_READY = replace(SAMPLED, seed=0)  # draws that have a proposal prepared before all draft steps have run
BUDGETS = [DraftBudget.chain(NUM_NODES), DraftBudget(num_draft_tokens=4, num_steps=3, top_k=2)]


def proposed(star: ToyStar, tag: ToyTag) -> list[int]:
    """Step until the tag's proposal is there."""
    while True:
        for _, message in star.step():
            if tag.receive(message):
                assert isinstance(message, Proposal)
                return message.token_ids


def after_a_verdict(
    star: ToyStar, tag: ToyTag, num_accepted: int, rank: int, budget: DraftBudget
) -> tuple[list[int], int]:
    """The target accepts the first nodes of a chain, and then says the draft's choice of that rank.

    Returns: the next proposal, and the draft steps that were drafted for it after the verdict.
    """
    assert tag.proposal is not None
    accepted = tag.proposal.token_ids[:num_accepted]
    said = int(logits_after([*tag.token_ids, *accepted]).topk(rank + 1).indices[-1])
    star.drain()
    num_steps = len(star.runner.draft_steps)
    star.send("a", tag.verdict([*accepted, said], budget))
    token_ids = proposed(star, tag)
    return token_ids, len(star.runner.draft_steps) - num_steps


def test_off_drafts_nothing_while_a_proposal_is_in_verification() -> None:
    star, tag = ToyStar("a"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    assert not star.hub.has_work
    chain, num_steps = after_a_verdict(star, tag, NUM_NODES, 0, DraftBudget.chain(NUM_NODES))
    assert (len(chain), num_steps) == (NUM_NODES, NUM_NODES)
    assert (star.hub.stats.num_outcomes, star.hub.stats.num_hits) == (1, 0)


@pytest.mark.parametrize("run_ahead", ["chain", "outcomes"])
def test_a_chain_that_was_right_goes_on_without_a_draft_step(run_ahead: RunAhead) -> None:
    star, tag = ToyStar("a", run_ahead=run_ahead, max_draft_tokens=NUM_NODES), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    for _ in range(3):  # then the toy ends its answer
        chain, num_steps = after_a_verdict(star, tag, NUM_NODES, 0, DraftBudget.chain(NUM_NODES))
        assert chain == tag.expected(NUM_NODES)
        assert num_steps == 0
    assert star.hub.stats.num_hits == star.hub.stats.num_outcomes == 3


@pytest.mark.parametrize("num_accepted", range(NUM_NODES + 1))
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_outcomes_hit_where_the_chain_was_wrong(num_accepted: int, rank: int) -> None:
    missed = {}
    for run_ahead in ("off", "outcomes"):
        star, tag = ToyStar("a", run_ahead=run_ahead), ToyTag(1, [1, 2, 3])
        star.send("a", tag.open(NUM_NODES))
        proposed(star, tag)
        chain, missed[run_ahead] = after_a_verdict(star, tag, num_accepted, rank, DraftBudget.chain(NUM_NODES))
        assert chain == tag.expected(NUM_NODES)
    assert missed == {"off": NUM_NODES, "outcomes": 0}


def test_a_chain_that_runs_ahead_is_told_of_as_it_is() -> None:
    star, tag = ToyStar("a", run_ahead="chain"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    assert proposed(star, tag) == tag.expected(NUM_NODES)[:1], "nobody waits for the rest"
    for _ in range(3):  # the second token to the fourth, while the first is in verification
        star.step()
    star.send("a", tag.verdict(tag.expected(NUM_NODES)[:2], NUM_NODES))
    num_steps = len(star.runner.draft_steps)
    assert proposed(star, tag) == tag.expected(NUM_NODES)[:2], "what has grown beyond them"
    assert len(star.runner.draft_steps) == num_steps


@pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, SamplingSpec(temperature=1.0, seed=3)], ids=["greedy", "top-p", "hot"]
)
@pytest.mark.parametrize("budget", BUDGETS, ids=["chain", "tree"])
def test_what_is_proposed_does_not_depend_on_what_was_prepared(sampling: SamplingSpec, budget: DraftBudget) -> None:
    told = []
    for run_ahead in ("off", "outcomes"):
        star, tag = ToyStar("a", run_ahead=run_ahead, max_len=200), ToyTag(1, [1, 2, 3], sampling)
        star.send("a", tag.open(budget))
        told.append([proposed(star, tag)])
        for number in range(12):
            told[-1].append(after_a_verdict(star, tag, number % 3, number % 4, budget)[0])
    assert told[0] == told[1]


def test_a_request_waits_for_one_draft_step_that_ran_ahead() -> None:
    star, tags = ToyStar("a", run_ahead="outcomes"), [ToyTag(1, [1, 2, 3]), ToyTag(2, [4, 5])]
    star.send("a", tags[0].open(NUM_NODES))
    proposed(star, tags[0])
    star.step()  # runs ahead
    star.send("a", tags[1].open(1))
    num_steps = len(star.runner.draft_steps)
    proposed(star, tags[1])
    assert len(star.runner.draft_steps) == num_steps + 1


def a_step_ahead(star: ToyStar, tag: ToyTag, verdict: list[int]) -> int:
    """Run one while a verdict arrives, and handle it then. Returns: nodes that were prepared."""
    num_before, message = star.hub.stats.num_ahead_nodes, tag.verdict(verdict, NUM_NODES)
    assert star.step(is_obsolete=lambda: star.hub.is_obsolete([(LinkId("a"), message)])) == []
    star.send("a", message)
    return star.hub.stats.num_ahead_nodes - num_before


def test_a_draft_step_that_a_verdict_makes_worthless_is_given_up() -> None:
    star, tag = ToyStar("a", run_ahead="chain"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    right = proposed(star, tag)[0]
    assert a_step_ahead(star, tag, [(right + 1) % (VOCAB_SIZE - 1)]) == 0
    assert proposed(star, tag) == tag.expected(NUM_NODES)[:1], "of the tokens that were said"


def test_a_draft_step_that_a_verdict_leads_to_goes_on() -> None:
    star, tag = ToyStar("a", run_ahead="chain"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    star.step()
    assert a_step_ahead(star, tag, tag.expected(2)) == 1
    assert proposed(star, tag) == tag.expected(NUM_NODES)[:1]
    assert star.hub.stats.num_hits == 1


def answered_ahead(star: ToyStar, tag: ToyTag, verdict: Verdict) -> list[int] | None:
    """The proposal that a verdict is answered by while a draft step runs ahead; None if it has to wait for the draft
    step's end.

    Afterwards the verdict is taken in.
    """
    answers: list[tuple[LinkId, HubToTarget]] = []

    def arrives() -> bool:
        answers.extend(star.hub.answer_early(LinkId("a"), verdict, star.clock(), star.clock()))
        return star.hub.is_obsolete([(LinkId("a"), verdict)])

    assert star.step(arrives) == []
    star.send("a", verdict)
    assert all(tag.receive(answer) for _, answer in answers)
    return answers[0][1].token_ids if answers else None


@pytest.mark.parametrize(("begun", "is_there"), [(0.4, True), (0.6, False)])
def test_a_chain_is_sent_while_a_draft_step_runs_but_waits_for_a_token_that_is_nearly_there(
    begun: float, is_there: bool
) -> None:
    star, tag = ToyStar("a", run_ahead="chain"), ToyTag(1, [1, 2, 3])
    star.runner.step_s = 1.0
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    for _ in range(2):  # the second token and the third
        star.step()
    right, (last,) = tag.expected(3)[:2], tag.expected(3)[2:]
    star.runner.step_s = begun
    assert answered_ahead(star, tag, tag.verdict(right, NUM_NODES)) == ([last] if is_there else None)
    if is_there:
        assert star.step() == [], "it is not told again"
    else:
        assert proposed(star, tag) == tag.expected(2)
    assert star.hub.stats.num_hits == 1
    assert star.hub.stats.num_wasted_nodes == 0
    star.send("a", tag.verdict(tag.told_otherwise(0), NUM_NODES))
    assert proposed(star, tag) == tag.expected(1)
    num_ahead = 2 if is_there else 0  # by the draft step that ran when it was told, and by the one after
    assert star.hub.stats.num_wasted_nodes == num_ahead


@pytest.mark.parametrize("sampling", [GREEDY, SOON_READY], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("budget", "num_steps"), [(BUDGETS[0], 12), (BUDGETS[1], 16)], ids=["chain", "tree"])
def test_a_complete_proposal_is_sent_while_a_draft_step_runs(
    sampling: SamplingSpec, budget: DraftBudget, num_steps: int
) -> None:
    star, tag = ToyStar("a", run_ahead="outcomes", max_len=200), ToyTag(1, [1, 2, 3], sampling)
    star.runner.step_s = 1.0
    star.send("a", tag.open(budget))
    proposed(star, tag)
    assert tag.proposal is not None
    accepted = max(paths_of(tag.proposal), key=len)
    ((said,),) = tag.expected_after(accepted, DraftBudget(1, 1, 2), 200).nodes
    for _ in range(num_steps):
        star.step()
    assert answered_ahead(star, tag, tag.verdict([*accepted, said], budget)) is not None
    assert set(paths_of(tag.proposal)) == tag.expected_tree(8, 200).nodes
    assert star.hub.stats.num_hits == 1


def test_a_rate_limited_target_gets_no_early_proposal() -> None:
    """A rate limit is asked when the verdict is handled, and once for each proposal."""
    star, tag = ToyStar("a", run_ahead="chain", rate_limits={"a": 100.0}), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    star.step()
    assert answered_ahead(star, tag, tag.verdict(tag.expected(1), NUM_NODES)) is None
    assert proposed(star, tag) == tag.expected(2)


def test_an_early_proposal_counts_though_admission_is_lost() -> None:
    """Between the answer and the verdict another target comes, and the first had been silent for long."""
    star = ToyStar("a", "b", run_ahead="chain", admission=1)
    tag, other = ToyTag(1, [1, 2, 3]), ToyTag(1, [4, 5])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    star.step()
    star.clock.advance(2 * PAUSE_S)
    verdict, num_before = tag.verdict(tag.expected(1), NUM_NODES), star.hub.stats.num_proposals

    def arrives() -> bool:
        ((_, answer),) = star.hub.answer_early(LinkId("a"), verdict, star.clock(), star.clock())
        assert tag.receive(answer)
        return False

    star.step(arrives)
    star.send("b", other.open(1))
    star.send("a", verdict)
    assert (
        star.hub._sequences[TagKey(LinkId("a"), tag.session.tag)].session.state
        is tag.session.state
        is TagState.PROPOSED
    )
    assert star.hub.stats.num_proposals == num_before + 1
    star.send("a", tag.verdict(tag.told_otherwise(0), NUM_NODES))
    declined = [message for to, message in star.drain() if to == "a" and tag.receive(message)]
    assert [message.retry_after_s > 0 for message in declined] == [True]


def test_a_verdict_that_does_not_follow_is_answered_by_nothing_while_a_draft_step_runs() -> None:
    star, tag = ToyStar("a", run_ahead="outcomes"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    old = tag.verdict(tag.told_otherwise(0), NUM_NODES)
    star.send("a", old)
    proposed(star, tag)
    tag.verdict(tag.expected(1), NUM_NODES)  # lost on its way
    for stale in (old, tag.verdict([7], NUM_NODES)):
        assert star.hub.answer_early(LinkId("a"), stale, star.clock(), star.clock()) == []


def test_an_old_verdict_that_is_repeated_ends_no_draft_step() -> None:
    star, tag = ToyStar("a", run_ahead="outcomes"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    old = tag.verdict(tag.told_otherwise(0), NUM_NODES)
    star.send("a", old)
    proposed(star, tag)
    num_before = star.hub.stats.num_ahead_nodes
    star.step(is_obsolete=lambda: star.hub.is_obsolete([(LinkId("a"), old)]))
    assert star.hub.stats.num_ahead_nodes > num_before


def test_a_draft_step_goes_on_while_it_is_of_use_to_anybody() -> None:
    star, tags = ToyStar("a", run_ahead="outcomes"), [ToyTag(1, [1, 2, 3]), ToyTag(2, [4, 5])]
    for tag in tags:
        star.send("a", tag.open(NUM_NODES))
        proposed(star, tag)
    closing: list[tuple[LinkId, Close]] = []
    for is_of_use in (True, False):
        num_before = star.hub.stats.num_ahead_nodes
        closing.append((LinkId("a"), tags[len(closing)].close()))
        star.step(is_obsolete=lambda: star.hub.is_obsolete(closing))
        assert (star.hub.stats.num_ahead_nodes > num_before) == is_of_use


def test_preparing_ends() -> None:
    star, tag = ToyStar("a", run_ahead="outcomes", max_len=200), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(DraftBudget(num_draft_tokens=8, num_steps=4, top_k=3)))
    star.drain()
    assert star.hub.stats.num_ahead_nodes > 0
    assert not star.hub.has_work


def test_a_row_in_use_ahead_is_taken_for_one_that_waits() -> None:
    star, tags = ToyStar("a", num_rows=1, run_ahead="outcomes"), [ToyTag(1, [1, 2, 3]), ToyTag(2, [4, 5])]
    for tag in (tags[0], tags[1], tags[0]):
        if tag.proposal is None:
            star.send("a", tag.open(NUM_NODES))
        else:
            star.send("a", tag.verdict([VOCAB_SIZE - 2], NUM_NODES))
        assert proposed(star, tag) == tag.expected(NUM_NODES)
        star.step()


def test_a_draft_step_ahead_that_fails_costs_its_tags_and_no_more() -> None:
    star, tag = ToyStar("a", run_ahead="outcomes"), ToyTag(1, [1, 2, 3])
    star.send("a", tag.open(NUM_NODES))
    proposed(star, tag)
    star.runner.is_broken = True
    with pytest.raises(RuntimeError):
        star.step()
    star.hub.abandon_step(star.clock())
    star.runner.is_broken = False
    star.clock.advance(10.0)
    ((_, message),) = star.drain()
    assert isinstance(message, Reopen)
    tag.receive(message)
    star.send("a", tag.open(NUM_NODES))
    assert proposed(star, tag) == tag.expected(NUM_NODES)
