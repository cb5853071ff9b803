"""The reference of verification, checked by hand, because the fast modules are compared with it."""

from __future__ import annotations

from starspec.sampling.spec import SamplingSpec
from starspec.speculation import reference
from starspec.speculation.tree import ROOT, DraftTree


def test_the_walk_follows_the_targets_tokens_and_stops_where_none_is_drafted():
    tree = DraftTree((0, 1, 2, 3), (ROOT, 0, 0, 2))
    logits = [[9.0, 0, 0, 0], [0, 0, 9.0, 0], [9.0, 0, 0, 0], [0, 9.0, 0, 0], [9.0, 0, 0, 0]]
    assert reference.verify_tree(tree, logits, SamplingSpec(temperature=0), [0], []) == [0, 2, 1]
