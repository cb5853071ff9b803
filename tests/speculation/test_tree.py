from __future__ import annotations

import pytest
from hypothesis import given
from law_strategies import trees

from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree


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
