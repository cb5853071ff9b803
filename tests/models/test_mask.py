import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.models.attention.mask import depths_of, is_chain, visible_slots

forests = st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.integers(-1, node - 1) for node in range(n)]))


def ancestors(parents, node):
    return set() if node == -1 else {node} | ancestors(parents, parents[node])


@given(forests, st.integers(0, 5))
def test_a_token_sees_the_prefix_its_ancestors_and_itself(parents, prefix_len):
    mask = visible_slots(prefix_len, len(parents), parents)
    assert mask[:, :prefix_len].all()
    for node in range(len(parents)):
        assert set(mask[node, prefix_len:].nonzero().flatten().tolist()) == ancestors(parents, node)


@given(forests)
def test_a_token_is_as_deep_as_it_has_ancestors(parents):
    assert depths_of(len(parents), parents) == [len(ancestors(parents, node)) - 1 for node in range(len(parents))]


@pytest.mark.parametrize("prefix_len", [0, 3])
def test_no_parents_means_a_chain(prefix_len):
    chain = tuple(range(-1, 4))
    assert is_chain(chain)
    assert is_chain(None)
    assert torch.equal(visible_slots(prefix_len, 5, None), visible_slots(prefix_len, 5, chain))
    assert depths_of(5, None) == depths_of(5, chain)


@pytest.mark.parametrize("parents", [(-1, 1), (-1, -2), (0,), (-1, 0, 0, 7)])
def test_parents_that_do_not_come_first_are_refused(parents):
    with pytest.raises(ValueError, match="parents must come first"):
        depths_of(len(parents), parents)


def test_a_parent_for_every_token_is_required():
    with pytest.raises(ValueError, match="3 tokens but 2 parents"):
        depths_of(3, (-1, 0))
