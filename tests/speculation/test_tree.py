from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_strategies import trees

from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree, Drawing, DrawnCandidates, TopTokens


def test_depths_and_edges_of_the_drawn_tree():
    tree = DraftTree((10, 11, 12, 13), (ROOT, 0, 0, 1))
    assert tree.depths == (1, 2, 2, 3)
    assert tree.children == {(ROOT, 10): 0, (0, 11): 1, (0, 12): 2, (1, 13): 3}
    assert not tree.is_chain


def test_a_chain_is_a_tree_of_one_path():
    chain = DraftTree.chain([5, 5, 6])
    assert chain.parents == (ROOT, 0, 1)
    assert chain.depths == (1, 2, 3)
    assert chain.is_chain
    assert EMPTY_TREE.is_chain


@given(tree=trees(vocab_size=4))
def test_every_node_is_found_from_its_parent(tree):
    assert sorted(tree.children.values()) == list(range(tree.num_draft_tokens))
    for node, parent in enumerate(tree.parents):
        assert tree.depths[node] == (tree.depths[parent] if parent != ROOT else 0) + 1


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token_id))
    return set(paths)


@given(tree=trees(vocab_size=3), said=st.lists(st.integers(0, 2), max_size=3))
def test_what_is_left_of_a_tree_is_what_it_says_behind_these_tokens(tree, said):
    told = tuple(said)
    left = {path[len(told) :] for path in paths_of(tree) if path[: len(told)] == told} - {()}
    assert paths_of(tree.after(said)) == left


def test_advice_stays_with_what_is_left_and_makes_no_tree_another():
    tops = {ROOT: TopTokens((1, 2), (-0.1, -3.0)), 0: TopTokens((3,), (-0.5,)), 2: TopTokens((9,), (-0.2,))}
    tree = DraftTree((1, 2, 3), (ROOT, ROOT, 0), {}, (-0.1, -3.0, -0.5), tops)
    rest = tree.after([1])
    assert (rest.logprobs, rest.tops) == ((-0.5,), {ROOT: tops[0], 0: tops[2]})
    assert tree.after([1, 3]).tops == {ROOT: tops[2]}
    assert tree == DraftTree((1, 2, 3), (ROOT, ROOT, 0))


@pytest.mark.parametrize(
    ("logprobs", "tops"),
    [
        ((-0.1, -0.2), {}),
        ((0.5,), {}),
        ((float("nan"),), {}),
        ((), {1: TopTokens((1,), (-0.1,))}),
        ((), {ROOT: TopTokens((1, 2), (-0.1,))}),
        ((), {ROOT: TopTokens((1,), (float("nan"),))}),
    ],
)
def test_advice_that_cannot_be_is_refused(logprobs, tops):
    with pytest.raises(ValueError, match=r"log-probabilit|likeliest"):
        DraftTree((7,), (ROOT,), {}, logprobs, tops)


def test_what_was_drawn_stays_with_what_is_left():
    drafts = {
        ROOT: DrawnCandidates((1, 2), (1, 2), (0.5, 0.5), Drawing.WITHOUT_REPLACEMENT),
        0: DrawnCandidates((3,), (3, 4), (0.9, 0.1), Drawing.WITHOUT_REPLACEMENT),
        1: DrawnCandidates((5,), (5,), (1.0,), Drawing.WITHOUT_REPLACEMENT),
        2: DrawnCandidates((6,), (6,), (1.0,), Drawing.WITHOUT_REPLACEMENT),
    }
    tree = DraftTree((1, 2, 3, 5, 6), (ROOT, ROOT, 0, 1, 2), drafts)
    assert tree.after([1]) == DraftTree((3, 6), (ROOT, 0), {ROOT: drafts[0], 0: drafts[2]})
    assert tree.after([2]) == DraftTree((5,), (ROOT,), {ROOT: drafts[1]})
    assert tree.after([3]) == tree.after([1, 4]) == EMPTY_TREE
    assert tree.after([]) == tree


@pytest.mark.parametrize(
    ("token_ids", "parents", "complaint"),
    [
        ((1, 2), (ROOT,), "2 tokens but 1 parents"),
        ((1, 1), (ROOT, ROOT), "same token"),
        ((1,), (0,), "parents must come first"),
        ((1, 2), (1, ROOT), "parents must come first"),
        ((1,), (-2,), "parents must come first"),
    ],
)
def test_what_is_no_tree_is_refused(token_ids, parents, complaint):
    with pytest.raises(ValueError, match=complaint):
        DraftTree(token_ids, parents)


def test_chains_go_on_behind_leaves_and_the_nodes_that_were_there_keep_their_places():
    """```
    0:7 ─┬─ 1:8 ── 3:5 ── 4:6
         └─ 2:9 ── 5:7
    ```"""
    drawn = DrawnCandidates((5,), (5,), (1.0,), Drawing.WITHOUT_REPLACEMENT)
    tree = DraftTree((7, 8, 9), (ROOT, 0, 0), {1: drawn}, (-0.1, -0.2, -0.3), {0: TopTokens((8,), (-0.2,))})
    longer = tree.extended({1: [5, 6], 2: [7]})
    assert longer == DraftTree((7, 8, 9, 5, 6, 7), (ROOT, 0, 0, 1, 3, 2))
    assert longer.logprobs == (-0.1, -0.2, -0.3, 0.0, 0.0, 0.0)
    assert longer.tops == tree.tops
    assert EMPTY_TREE.extended({ROOT: [1, 2]}) == DraftTree.chain([1, 2])


def test_a_tree_behind_a_chain_is_what_is_left_after_it():
    drawn = {ROOT: DrawnCandidates((7,), (7,), (1.0,), Drawing.WITHOUT_REPLACEMENT)}
    tree = DraftTree((7, 8, 9), (ROOT, 0, 0), drawn, (-0.1, -0.2, -0.3), {0: TopTokens((8,), (-0.2,))})
    longer = tree.behind([5, 6])
    assert (longer.token_ids, longer.parents) == ((5, 6, 7, 8, 9), (ROOT, 0, 1, 2, 2))
    assert longer.logprobs == (0.0, 0.0, -0.1, -0.2, -0.3)
    left = longer.after([5, 6])
    assert (left, left.logprobs, left.tops) == (tree, tree.logprobs, tree.tops)
    assert EMPTY_TREE.behind([5, 6]) == DraftTree.chain([5, 6])
    assert tree.behind([]) is tree
