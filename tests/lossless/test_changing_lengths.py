"""Lengths that change every round, to 0 and back, change no token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from table_star import make_plain, make_star

from starspec.config import Policy
from starspec.harness.decode import Job, decode
from starspec.hub.growing_tree import GrowingTree
from starspec.policy.length.adaedl import AdaEdl
from starspec.policy.length.by_request import ByRequest
from starspec.policy.length.costs import Costs
from starspec.policy.length.dsde import Dsde
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.node_gains import NodeGains
from starspec.policy.length.snapshot import Choice, LengthPolicy, RoundSnapshot
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree, TopTokens

NUM_PROMPTS = 200
NUM_TOKENS = 16
CHAIN, TREE = DraftBudget.chain(5), DraftBudget(num_draft_tokens=9, num_steps=4, top_k=2)
STATED_TREE = replace(TREE, has_logprobs=True)
SAMPLINGS = (
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=1.0),
    SamplingSpec(temperature=0.8, top_k=3, top_p=0.95, repetition_penalty=1.3, end_token_ids=(3,)),
)


class Erratic:
    """Chooses any depth, for each sequence and round."""

    def __init__(self, budget: DraftBudget) -> None:
        self._budget = budget
        self._chance = Random(1)
        self.chosen: set[int] = set()

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        choices = [
            Choice.of(each.fitting(self._budget.with_steps(self._chance.randint(0, self._budget.num_steps))))
            for each in snapshot.sequences
        ]
        self.chosen.update(each.budget.num_steps for each in choices)
        return choices


def stating(budget: DraftBudget) -> LengthPolicy:
    return Dsde(replace(budget, num_stated=4))


def jobs(num: int) -> list[Job]:
    """Prompts of several lengths, each with a seed and one of the ways of sampling."""
    return [
        Job(
            "",
            (number % 4, number // 4 % 4, *([1] * (number % 5))),
            replace(SAMPLINGS[number % len(SAMPLINGS)], seed=number),
            NUM_TOKENS,
        )
        for number in range(num)
    ]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return [each.token_ids for each in decode(make_plain(1), jobs(NUM_PROMPTS), batch_size=1)]


@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize("budget", [CHAIN, TREE], ids=["chain", "tree"])
def test_erratic_lengths_change_no_token(plain: Sequence[list[int]], budget: DraftBudget, batch_size: int) -> None:
    policy = Erratic(budget)
    engine = make_star(budget, batch_size, "coupled", make_policy=lambda _: policy).engine
    answers = decode(engine, jobs(NUM_PROMPTS), batch_size=batch_size)
    assert [each.token_ids for each in answers] == plain
    assert policy.chosen == set(range(budget.num_steps + 1))
    assert engine.stats.acceptance.num_accepted_tokens > 0
    assert engine.stats.lengths.num_by_length[0] > 0


@pytest.mark.parametrize(
    ("make_policy", "budget"),
    [(Goodput, CHAIN), (Goodput, STATED_TREE), (AdaEdl, CHAIN), (stating, CHAIN), (stating, TREE)],
    ids=["goodput, chain", "goodput, tree", "adaedl", "dsde, chain", "dsde, tree"],
)
def test_policies_change_no_token(
    plain: Sequence[list[int]], make_policy: Callable[[DraftBudget], LengthPolicy], budget: DraftBudget
) -> None:
    num = NUM_PROMPTS // 2
    engine = make_star(budget, 4, "coupled", make_policy=make_policy).engine
    answers = decode(engine, jobs(num), batch_size=4)
    assert [each.token_ids for each in answers] == list(plain[:num])
    assert sum(engine.stats.lengths.num_by_length) > num


class Weighing:
    """Goodput where a forward over many nodes takes longer, and nobody waits for drafts."""

    def __init__(self, budget: DraftBudget) -> None:
        self._policy = Goodput(budget)
        self._costs = Costs()
        for size, seconds in ((1, 0.1), (12, 0.1), (64, 0.3)):
            self._costs.steps.add(size, seconds)

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        return self._policy.choose(replace(snapshot, costs=self._costs))


def falsely(tree: DraftTree) -> DraftTree:
    """The tree, whose nodes are said to be ever less likely, and token 3 to be certain after each."""
    logprobs = tuple(-0.1 * place for place in range(tree.num_draft_tokens))
    tops = dict.fromkeys(tree.tops, TopTokens((3,), (0.0,)))
    return replace(tree, logprobs=logprobs if tree.logprobs else (), tops=tops)


def silently(tree: DraftTree) -> DraftTree:
    """The tree, of which nothing is said."""
    return replace(tree, logprobs=(), tops={})


@pytest.mark.parametrize("told", [falsely, silently])
@pytest.mark.parametrize(
    ("make_policy", "budget"),
    [(Weighing, STATED_TREE), (stating, CHAIN), (stating, TREE)],
    ids=["goodput, tree", "dsde, chain", "dsde, tree"],
)
def test_what_a_hub_says_of_its_drafts_changes_no_token(
    plain: Sequence[list[int]],
    make_policy: Callable[[DraftBudget], LengthPolicy],
    budget: DraftBudget,
    told: Callable[[DraftTree], DraftTree],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, num_told = GrowingTree.best, 0

    def best(tree: GrowingTree, wanted: DraftBudget) -> DraftTree:
        nonlocal num_told
        found = honest(tree, wanted)
        num_told += bool(found.logprobs or found.tops)
        return told(found)

    monkeypatch.setattr(GrowingTree, "best", best)
    num = NUM_PROMPTS // 4
    engine = make_star(budget, 4, "coupled", make_policy=make_policy).engine
    answers = decode(engine, jobs(num), batch_size=4)
    assert [each.token_ids for each in answers] == list(plain[:num])
    assert engine.stats.acceptance.num_accepted_tokens > num
    assert num_told > num


def test_which_nodes_of_trees_are_accepted_is_learnt() -> None:
    known: list[NodeGains | None] = []

    class Watched(FixedLength):
        def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
            known.append(snapshot.nodes)
            return super().choose(snapshot)

    engine = make_star(STATED_TREE, 4, "coupled", make_policy=Watched).engine
    decode(engine, jobs(NUM_PROMPTS // 4), batch_size=4)
    acceptance, nodes = engine.stats.acceptance, known[-1]
    assert nodes is not None
    rates = nodes.rates(TREE.num_draft_tokens)
    per_draft = acceptance.num_accepted_tokens / acceptance.num_drafts
    assert sum(rates) == pytest.approx(per_draft, rel=0.35), "of the last drafts, and with the prior"
    assert rates[0] > 2 * rates[-1]


def test_a_policy_is_told_what_rounds_gave_and_when_prompts_were_prefilled_beside_them() -> None:
    told: list[tuple[int, bool]] = []

    class Watched(FixedLength):
        def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
            told.append((snapshot.num_emitted, snapshot.was_interrupted))
            return super().choose(snapshot)

    engine = make_star(CHAIN, 1, "coupled", make_policy=Watched).engine
    decode(engine, jobs(2), batch_size=1)
    nums = [num for num, _ in told]
    assert nums == sorted(nums)
    assert NUM_TOKENS < nums[-1] < 2 * NUM_TOKENS, "all but those of the last rounds"
    begun = {num for num, was in told if was}
    assert begun == {0, NUM_TOKENS}, "where a request begins, and nowhere else"


def test_requests_with_policies_of_their_own_in_one_batch_change_no_token(plain: Sequence[list[int]]) -> None:
    def make_policy(budget: DraftBudget) -> LengthPolicy:
        return ByRequest(Goodput(budget), {"fixed": FixedLength(budget), "dsde": stating(budget)})

    asked: list[Policy | None] = [None, "fixed", "dsde"]
    mixed = [replace(job, length_policy=asked[number % 3]) for number, job in enumerate(jobs(NUM_PROMPTS // 2))]
    engine = make_star(CHAIN, 4, "coupled", make_policy=make_policy).engine
    answers = decode(engine, mixed, batch_size=4)
    assert [each.token_ids for each in answers] == list(plain[: len(mixed)])
    assert engine.stats.lengths.num_by_length[CHAIN.num_steps] > len(mixed)
