"""A growing tree against its definition: nodes are paths, and whatever a verdict leaves is what a fresh tree has."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, log
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starspec.hub import growing_tree
from starspec.hub.growing_tree import GrowingTree
from starspec.hub.tree_nodes import Children, DraftToken
from starspec.speculation.budget import DraftBudget, TopKSpec
from starspec.speculation.signals import places_of
from starspec.speculation.tree import ROOT, DraftTree, Drawing, DrawnCandidates, TopTokens

END = 9
PAIR = TopKSpec(2)
Path = tuple[int, ...]


def children(path: Path, top_k: int) -> Children:
    """A drafter's choices: a function of the path alone. Below some nodes it draws."""
    order = sorted(range(10), key=lambda token: hash((path, token, 5)) % 997)[:top_k]
    tokens = [
        DraftToken(token, -0.1 * (place + 1) - (hash((path, token)) % 7) / 10) for place, token in enumerate(order)
    ]
    if hash((path, 3)) % 3 == 0:
        return Children(tokens)
    probs = (1 / top_k,) * top_k
    return Children(tokens, DrawnCandidates(tuple(order), tuple(order), probs, Drawing.WITHOUT_REPLACEMENT))


def grow(tree: GrowingTree, prefix: Path, budget: DraftBudget) -> int:
    """Grow until nothing is missing. Returns: the number of levels."""
    num_steps = 0
    while nodes := tree.to_forward(budget):
        num_steps += 1
        for node in nodes:
            tree.expand(node, children((*prefix, *tree.path(node)), budget.top_k), budget.top_k_spec)
        tree.check_integrity()
    return num_steps


def paths(tree: DraftTree) -> list[Path]:
    found: list[Path] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token_id))
    return found


def drafts(tree: DraftTree) -> dict[Path, DrawnCandidates]:
    """What was drawn, by path."""
    return {(() if node == ROOT else paths(tree)[node]): draft for node, draft in tree.drafts.items()}


def to_prepare_slowly(
    tree: GrowingTree, prefix: Path, budget: DraftBudget, proposed: list[int], num_nodes: int
) -> list[int]:
    """`GrowingTree.to_prepare` by its definition: each time, below every outcome, from the first level on."""
    nodes = range(len(tree.token_ids))
    paths = {node: tuple(tree.path(node)) for node in nodes}
    below = {node: [child for child in nodes if tree.parent(child) == node] for node in tree.expanded}
    confidences = {
        node: {guess.token_id: guess.log_confidence for guess in children((*prefix, *path[:-1]), 10).tokens}[path[-1]]
        for node, path in paths.items()
    }
    scores = {ROOT: 0.0}
    for node in nodes:
        scores[node] = scores[tree.parent(node)] + confidences[node]

    def missing_below(root: int) -> list[int]:
        likeness: dict[int, float] = {}
        level = [root]
        for _ in range(budget.num_steps):
            if unknown := [node for node in level if node not in below]:
                return unknown
            reached = [child for node in level for child in below[node][: budget.top_k]]
            for child in reached:
                likeness[child] = likeness.get(tree.parent(child), 0.0) + confidences[child]
            open_ended = [node for node in reached if tree.token_ids[node] != END]
            best = sorted(open_ended, key=likeness.__getitem__, reverse=True)[: budget.top_k]
            hopeful = [node for node in best if exp(likeness[node]) >= budget.p_min * 3 / 8]
            likely = sorted(likeness, key=likeness.__getitem__, reverse=True)[: budget.num_draft_tokens]
            is_worth_it = sum(exp(likeness[node]) for node in hopeful) >= budget.p_min
            level = [node for node in hopeful if node in likely] if is_worth_it else []
        return []

    ends = [ROOT, *proposed]
    missing = {node: [node] for node in ends if node not in below}
    missing |= {root: missing_below(root) for node in ends for root in below.get(node, ()) if root not in proposed}
    outcomes = sorted((root for root in missing if tree.token_ids[root] != END), key=lambda root: (-scores[root], root))
    chosen = [node for root in outcomes for node in missing[root]][:num_nodes]
    return sorted(chosen, key=lambda node: len(paths[node]))


doubts = st.sampled_from((0.0, 0.0, 0.1, 0.5))  # p_min
trees = st.builds(DraftBudget, st.integers(1, 30), st.integers(1, 5), st.integers(2, 4), doubts)
budgets = trees | st.builds(DraftBudget.chain, st.integers(1, 5), doubts)


def test_a_tree_expands_the_likeliest_of_each_depth_and_proposes_the_likeliest_of_all() -> None:
    tree = GrowingTree()
    tree.expand(ROOT, Children([DraftToken(1, -0.1), DraftToken(2, -1.0)]), PAIR)
    assert tree.to_forward(DraftBudget(6, 3, 2)) == [0, 1]
    tree.expand(0, Children([DraftToken(3, -0.2), DraftToken(4, -2.0)]), PAIR)
    tree.expand(1, Children([DraftToken(5, -0.3), DraftToken(6, -3.0)]), PAIR)
    assert tree.to_forward(DraftBudget(6, 2, 2)) == []
    assert [tree.token_ids[node] for node in tree.to_forward(DraftBudget(6, 3, 2))] == [3, 5], (
        "-0.3 and -1.3, before -2.1"
    )
    assert tree.best(DraftBudget(4, 2, 2)) == DraftTree((1, 3, 2, 5), (-1, 0, -1, 2)), "the best path first"
    assert tree.segment([2]) == ([1, 2, 3], [-1, -1, 0])


def test_a_node_that_is_too_unlikely_to_have_a_proposed_child_is_not_expanded() -> None:
    tree = GrowingTree()
    tree.expand(ROOT, Children([DraftToken(1, -0.1), DraftToken(2, -1.0)]), PAIR)
    assert tree.to_forward(DraftBudget(1, 3, 2)) == [0]
    tree.expand(0, Children([DraftToken(3, -1.1), DraftToken(4, -2.0)]), PAIR)
    assert tree.to_forward(DraftBudget(1, 3, 2)) == []
    assert tree.to_forward(DraftBudget(2, 3, 2)) == [1], "-1.0 is ahead of what hangs from its sibling"
    tree.expand(1, Children([DraftToken(5, -0.3), DraftToken(6, -3.0)]), PAIR)
    assert tree.to_forward(DraftBudget(2, 3, 2)) == []
    assert tree.to_forward(DraftBudget(3, 3, 2)) == [2]
    assert tree.to_forward(DraftBudget(4, 3, 2)) == [2, 4]


def test_a_chain_ends_behind_a_node_that_is_hardly_reached() -> None:
    tree, half = GrowingTree(), DraftBudget.chain(3, p_min=0.5)
    tree.expand(ROOT, Children([DraftToken(1, log(0.8))]), half.top_k_spec)
    assert tree.to_forward(half) == [0]
    tree.expand(0, Children([DraftToken(3, log(0.6))]), half.top_k_spec)
    assert tree.to_forward(half) == [], "0.8 * 0.6 is less than a half"
    assert tree.to_forward(DraftBudget.chain(3, p_min=0.4)) == [1]
    assert paths(tree.best(half)) == [(1,), (1, 3)]


def test_a_tree_ends_where_all_nodes_to_expand_together_are_hardly_reached() -> None:
    tree, half = GrowingTree(), DraftBudget(5, 3, 2, p_min=0.5)
    tree.expand(ROOT, Children([DraftToken(1, log(0.75)), DraftToken(2, log(0.18))]), half.top_k_spec)
    assert tree.to_forward(half) == [0], "0.18 is less than 3/8 of a half"
    tree.expand(0, Children([DraftToken(3, log(0.4)), DraftToken(4, log(0.3))]), half.top_k_spec)
    assert tree.to_forward(half) == [2, 3], "0.3 and 0.225: one of them is reached with more than a half"
    assert tree.to_forward(replace(half, p_min=0.55)) == []
    assert set(paths(tree.best(half))) == {(1,), (2,), (1, 3), (1, 4)}
    assert set(paths(tree.best(replace(half, p_min=1.0)))) == {(1,), (2,)}, "0.75 is less than 1"


def test_drawn_nodes_that_are_likely_only_together_cause_no_further_depth() -> None:
    drawn, half = GrowingTree(is_drawn=True), DraftBudget(5, 3, 2, p_min=0.5)
    draft = DrawnCandidates((1, 2), (1, 2), (0.5, 0.5), Drawing.WITHOUT_REPLACEMENT)
    drawn.expand(ROOT, Children([DraftToken(1, log(0.45)), DraftToken(2, log(0.4))], draft), half.top_k_spec)
    assert drawn.to_forward(half) == []
    assert drawn.to_forward(replace(half, p_min=0.42)) == [0]


@pytest.mark.parametrize("reached", [0.2, 0.1])
def test_whether_a_drawn_node_is_proposed_does_not_depend_on_what_is_drawn_below_it(reached: float) -> None:
    """Else what is drawn there would be tested more often than the draft says it, or more seldom (ADR 9)."""
    draft = DrawnCandidates((1, 2), (1, 2), (0.5, 0.5), Drawing.WITHOUT_REPLACEMENT)
    tree, budget = GrowingTree(is_drawn=True), DraftBudget(3, 3, 2, p_min=0.5)
    likely_of = {
        (): (0.55, 0.25),
        (1,): (0.45 / 0.55, 0.01),
        (2,): (reached / 0.25, 0.01),  # together with 0.45 of (1, 1) more than p_min, or less
        (1, 1): (0.40 / 0.45, 0.01),  # would be likelier than (2,)
        (2, 1): (0.5, 0.01),
    }
    while nodes := tree.to_forward(budget):
        for node in nodes:
            likely = likely_of[tuple(tree.path(node))]
            tokens = [DraftToken(token, log(each)) for token, each in zip((1, 2), likely, strict=True)]
            tree.expand(node, Children(tokens, draft), budget.top_k_spec)
    assert set(paths(tree.best(budget))) == {(1,), (1, 1), (2,)}


@settings(max_examples=300)
@given(
    st.builds(DraftBudget, st.integers(2, 6), st.integers(3, 5), st.integers(2, 3), st.floats(0.2, 0.8)),
    st.integers(0, 10**6),
)
def test_whatever_is_drawn_below_a_node_it_is_proposed_and_told_of_or_not(budget: DraftBudget, seed: int) -> None:
    """The same in general: rejection sampling is exact for no rule of which this is not true."""
    tree = grow_drawn(budget, seed)
    one = tree.best(budget)
    for node in range(len(tree.token_ids)):
        path = tuple(tree.path(node))
        for salt in (1, 2, 3):
            other = grow_drawn(budget, seed, below=path, salt=salt).best(budget)
            assert (path in paths(one)) == (path in paths(other))
            assert (path in drafts(one)) == (path in drafts(other))


def grow_drawn(budget: DraftBudget, seed: int, below: Path | None = None, salt: int = 0) -> GrowingTree:
    """A tree whose nodes are drawn; other ones below one node, with a salt. The first is likely, others are less."""
    tree = GrowingTree(is_drawn=True)
    while nodes := tree.to_forward(budget):
        for node in nodes:
            path = tuple(tree.path(node))
            rng = random.Random(repr((seed, path, salt if path == below else 0)))
            order = tuple(rng.sample(range(10), budget.top_k))
            shares, rest = [rng.uniform(0.6, 0.98)], 1.0
            for _ in order[1:]:
                rest -= shares[-1]
                shares.append(rest * rng.uniform(0.8, 1.0))
            tokens = [DraftToken(token, log(share)) for token, share in zip(order, shares, strict=True)]
            draft = DrawnCandidates(order, order, (1 / budget.top_k,) * budget.top_k, Drawing.WITHOUT_REPLACEMENT)
            tree.expand(node, Children(tokens, draft), budget.top_k_spec)
    return tree


def test_a_proposal_states_what_was_asked_for_of_its_own_nodes() -> None:
    budget = replace(DraftBudget.chain(2), has_logprobs=True, num_stated=2)
    tree, tops = GrowingTree(), [TopTokens((each, 8), (-0.1, -2.0)) for each in (1, 2, 3)]
    for node, (token_id, logprob) in enumerate([(1, -0.1), (2, -0.7), (3, -0.3)], start=ROOT):
        tree.expand(node, Children([DraftToken(token_id, logprob)], top=tops[node + 1]), budget.top_k_spec)
    proposed = tree.best(budget)
    assert (proposed.token_ids, proposed.logprobs) == ((1, 2), (-0.1, -0.7))
    assert proposed.tops == {ROOT: tops[0], 0: tops[1], 1: tops[2]}  # the last one is there, since it was expanded
    tree.reroot([1])
    assert tree.best(budget).tops == {ROOT: tops[1], 0: tops[2]}
    assert tree.copy().best(budget).tops == tree.best(budget).tops
    plain = tree.best(DraftBudget.chain(2))
    assert (plain.logprobs, plain.tops) == ((), {})


def grow_unlike(budget: DraftBudget, seed: int) -> GrowingTree:
    """A tree of which no two nodes are as likely as each other."""
    tree = GrowingTree()
    while nodes := tree.to_forward(budget):
        for node in nodes:
            chance = random.Random(repr((seed, tree.path(node))))
            likely = sorted((chance.uniform(-3.0, -0.01) for _ in range(budget.top_k)), reverse=True)
            tokens = [DraftToken(token, each) for token, each in enumerate(likely)]
            tree.expand(node, Children(tokens), budget.top_k_spec)
    return tree


@given(
    st.builds(DraftBudget, st.integers(1, 30), st.integers(1, 5), st.integers(2, 4)),
    st.integers(1, 30),
    st.integers(0, 999),
)
def test_a_proposal_of_fewer_nodes_is_the_likeliest_part_of_a_larger_one(
    budget: DraftBudget, num_nodes: int, seed: int
) -> None:
    """So a target that verifies the larger one knows what the smaller one would have gained."""
    larger = replace(budget, has_logprobs=True)
    smaller = replace(larger, num_draft_tokens=min(num_nodes, budget.num_draft_tokens))
    proposed, part = grow_unlike(larger, seed).best(larger), grow_unlike(smaller, seed).best(smaller)
    places = places_of(range(proposed.num_draft_tokens), proposed)
    likeliest = {path for path, place in zip(paths(proposed), places, strict=True) if place < smaller.num_draft_tokens}
    assert set(paths(part)) == likeliest


def test_a_looked_up_chain_has_no_probabilities_to_state() -> None:
    tree = GrowingTree()
    tree.become_chain([5, 6])
    assert tree.best(replace(DraftBudget.chain(2), has_logprobs=True)).logprobs == ()


def test_a_chain_ends_before_a_token_of_which_the_drafter_is_unsure_but_has_one() -> None:
    budget = replace(DraftBudget.chain(4), max_entropy=1.0)
    assert budget.top_k_spec == TopKSpec(1, needs_logprobs=False, needs_entropy=True)
    tree = GrowingTree()
    for node, entropy in zip((ROOT, 0, 1), (3.0, 0.5, 1.5), strict=True):
        assert tree.to_forward(budget) == [node]
        tree.expand(node, Children([DraftToken(node + 2, 0.0)], entropy=entropy), budget.top_k_spec)
    assert tree.to_forward(budget) == []
    assert tree.best(budget).token_ids == (1, 2)
    assert tree.to_forward(DraftBudget.chain(4)) == [2]


def test_an_end_token_is_proposed_and_never_expanded() -> None:
    tree = GrowingTree([END])
    tree.expand(ROOT, Children([DraftToken(END, -0.1), DraftToken(2, -1.0)]), PAIR)
    assert [tree.token_ids[node] for node in tree.to_forward(DraftBudget(6, 2, 2))] == [2]
    assert tree.to_forward(DraftBudget.chain(2)) == []


def test_chains_that_are_known_at_once_have_no_slots() -> None:
    tree = GrowingTree()
    tree.become_chain([4, 4, 5])
    assert tree.best(DraftBudget.chain(2)) == DraftTree.chain([4, 4])
    assert tree.forwarded == []
    tree.become_chain([])
    assert tree.best(DraftBudget.chain(2)) == DraftTree()


def test_what_was_drawn_is_told_of_every_proposed_node_even_if_none_of_its_children_is_proposed() -> None:
    tree = GrowingTree()
    pairs = ((1, 2), (3, 4), (5, 6), (7, 8))
    drawn = [DrawnCandidates(ids, ids, (0.5, 0.5), Drawing.WITHOUT_REPLACEMENT) for ids in pairs]
    tree.expand(ROOT, Children([DraftToken(1, -0.1), DraftToken(2, -1.0)], drawn[0]), PAIR)
    tree.expand(0, Children([DraftToken(3, -0.2), DraftToken(4, -5.0)], drawn[1]), PAIR)
    tree.expand(1, Children([DraftToken(5, -3.0), DraftToken(6, -4.0)], drawn[2]), PAIR)
    # for a deeper tree than those below
    tree.expand(2, Children([DraftToken(7, -0.1), DraftToken(8, -9.0)], drawn[3]), PAIR)
    wide = tree.best(DraftBudget(3, 2, 2))
    assert set(paths(wide)) == {(1,), (1, 3), (2,)}
    assert drafts(wide) == {(): drawn[0], (1,): drawn[1], (2,): drawn[2]}
    assert drafts(tree.best(DraftBudget(1, 2, 2))) == {(): drawn[0], (1,): drawn[1]}
    tree.reroot([1])
    assert drafts(tree.best(DraftBudget(1, 1, 2))) == {(): drawn[1]}


@given(budgets)
def test_what_is_not_expanded_would_not_have_changed_the_proposal(budget: DraftBudget) -> None:
    tree, whole = GrowingTree([END]), GrowingTree([END])
    grow(tree, (), budget)
    grow(whole, (), budget if budget.is_chain else replace(budget, num_draft_tokens=1000))
    assert set(paths(tree.best(budget))) == set(paths(whole.best(budget)))
    assert drafts(tree.best(budget)) == drafts(whole.best(budget))


@given(budgets)
def test_a_proposal_is_connected_within_its_bounds_and_takes_a_draft_step_per_depth(budget: DraftBudget) -> None:
    tree = GrowingTree([END])
    assert grow(tree, (), budget) <= budget.num_steps
    proposed = tree.best(budget)  # raises if it is no tree
    assert bool(budget.p_min == 0.0) <= proposed.num_draft_tokens <= budget.num_draft_tokens
    assert max(proposed.depths, default=0) <= budget.num_steps
    assert len(tree.forwarded) <= budget.num_forwarded
    assert all(path.count(END) == 0 or path[-1] == END for path in paths(proposed))


@settings(max_examples=300)
@given(budgets, st.data())
def test_whatever_a_verdict_leaves_the_next_proposal_is_that_of_a_fresh_tree(
    budget: DraftBudget, data: st.DataObject
) -> None:
    tree, prefix = GrowingTree([END]), ()
    slots: list[Path] = []  # what lies in the slots behind the prefix, as absolute paths
    for _ in range(4):
        deeper = data.draw(st.integers(1, 5))
        budget = replace(
            budget, num_draft_tokens=deeper if budget.is_chain else budget.num_draft_tokens, num_steps=deeper
        )
        grow(tree, prefix, budget)
        slots += [(*prefix, *tree.path(node)) for node in tree.forwarded[len(slots) :]]
        assert slots == [(*prefix, *tree.path(node)) for node in tree.forwarded]
        fresh = GrowingTree([END])
        grow(fresh, prefix, budget)
        assert set(paths(tree.best(budget))) == set(paths(fresh.best(budget)))
        assert drafts(tree.best(budget)) == drafts(fresh.best(budget))

        known = data.draw(st.sampled_from([tree.path(node) for node in range(len(tree.token_ids))]))
        verdict = known[: data.draw(st.integers(1, len(known)))] + data.draw(st.lists(st.integers(0, 9), max_size=1))
        survivors = tree.reroot(verdict)
        tree.check_integrity()
        committed = [slots[slot] for slot in survivors.path]
        assert committed == [(*prefix, *verdict[: length + 1]) for length in range(len(committed))]
        prefix = (*prefix, *verdict)
        slots = [slots[slot] for slot in survivors.kept]
        assert all(path[: len(prefix)] == prefix for path in slots)
        assert tree.is_rooted or not tree.token_ids


@settings(max_examples=200)
@given(budget=budgets, num_accepted=st.integers(0, 5), rank=st.integers(0, 3), seed=st.integers(0, 99))
def test_nodes_are_kept_if_they_are_there_after_the_verdict(
    budget: DraftBudget, num_accepted: int, rank: int, seed: int
) -> None:
    tree, prefix = GrowingTree(), (seed,)
    grow(tree, prefix, budget)
    nodes = tree.to_prepare(budget, tree.proposed(budget), 3)
    path = next(iter(sorted(paths(tree.best(budget)))), ())[:num_accepted]
    said = [*path, [guess.token_id for guess in children((*prefix, *path), 4).tokens][rank]]
    are_kept = tree.are_kept(nodes, said)
    for node in nodes:
        tree.expand(node, children((*prefix, *tree.path(node)), budget.top_k), budget.top_k_spec)
    prepared = [tuple(tree.path(node)) for node in nodes]
    tree.reroot(said)
    below = {tuple(tree.path(node)) for node in tree.expanded} if tree.is_rooted else set()
    survivors = [each for each in prepared if each[: len(said)] == tuple(said) and each[len(said) :] in below]
    assert are_kept == bool(survivors)


def test_what_follows_a_part_of_a_chain_is_prepared_from_where_that_part_ends() -> None:
    """Though the tree has grown since: a verdict leaves it one token behind that part at the latest."""
    budget, prefix = DraftBudget.chain(4), (1,)

    def tokens(path: Path) -> list[int]:
        return [guess.token_id for guess in children((*prefix, *path), 3).tokens]

    tree = GrowingTree()
    for _ in range(2):
        (node,) = tree.to_forward(budget)
        tree.expand(node, children((*prefix, *tree.path(node)), 3), budget.top_k_spec)
    handed_over = tree.proposed(budget)
    proposed = tuple(tree.path(handed_over[-1]))
    assert len(proposed) == 2
    while nodes := tree.to_prepare(budget, handed_over, 2):
        for node in nodes:
            tree.expand(node, children((*prefix, *tree.path(node)), 3), budget.top_k_spec)
    prepared = [tuple(tree.path(node)) for node in tree.expanded]
    assert {(*proposed, token_id) for token_id in tokens(proposed)} <= set(prepared)
    for path in prepared:
        num_right = sum(path[: length + 1] == proposed[: length + 1] for length in range(len(path)))
        root, *below = path[num_right:] or [0]
        for depth, token_id in enumerate(below):
            assert token_id == tokens((*proposed[:num_right], root, *below[:depth]))[0], "one chain for each outcome"


@settings(max_examples=300)
@given(budgets, budgets, st.integers(2, 5), st.data())
def test_what_is_prepared_is_what_looking_below_every_outcome_anew_chooses(
    budget: DraftBudget, other: DraftBudget, width: int, data: st.DataObject
) -> None:
    tree, prefix = GrowingTree([END]), ()

    def expand(nodes: list[int]) -> None:
        for node in nodes:
            tree.expand(node, children((*prefix, *tree.path(node)), max(width, budget.top_k)), budget.top_k_spec)

    for _ in range(3):
        while nodes := tree.to_forward(budget):
            expand(nodes)
        proposed = tree.proposed(budget)
        proposed = proposed[: data.draw(st.integers(0, len(proposed)), label="a beginning")]
        for _ in range(data.draw(st.integers(1, 6), label="levels")):
            num_nodes = data.draw(st.integers(0, 9), label="nodes")
            nodes = tree.to_prepare(budget, proposed, num_nodes)
            assert nodes == to_prepare_slowly(tree, prefix, budget, proposed, num_nodes)
            expand([node for node in nodes if data.draw(st.booleans(), label="expanded")])
            if data.draw(st.booleans(), label="and asked for otherwise"):
                nodes = tree.to_prepare(other, proposed[:1], num_nodes)
                assert nodes == to_prepare_slowly(tree, prefix, other, proposed[:1], num_nodes)
                expand(tree.to_forward(other))
        known = data.draw(st.sampled_from([tuple(tree.path(node)) for node in range(len(tree.token_ids))]))
        verdict = known[: data.draw(st.integers(1, len(known)))]
        tree.reroot(verdict)
        prefix, budget = (*prefix, *verdict), data.draw(st.sampled_from([budget, other]))


def test_to_find_what_to_prepare_no_depth_is_expanded_twice() -> None:
    budget = DraftBudget(20, 5, 3)
    tree, num_prepared = GrowingTree(), 0
    grow(tree, (), budget)
    proposed = tree.proposed(budget)
    num_known = len(tree.expanded) - len(tree.expanded & {ROOT, *proposed})
    with mock.patch.object(growing_tree, "_likeliest", wraps=growing_tree._likeliest) as walked:
        while num_prepared < 200 and (nodes := tree.to_prepare(budget, proposed, 4)):
            num_prepared += len(nodes)
            for node in nodes:
                tree.expand(node, children(tuple(tree.path(node)), budget.top_k), budget.top_k_spec)
    assert num_prepared >= 200
    assert walked.call_count <= num_known + num_prepared
