"""The proposed cut is the best of all cuts in all orders, and fits into the nodes."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.errors import ConfigError
from starspec.policy.stage_cut import MAX_NODES, ModelSize, Node, plan_stages

MODEL = ModelSize(num_layers=12, layer=100, embedding=150, head=200)
FAR = 1e9


def all_cuts(model, nodes, link_s):
    """(seconds of the slowest stage, of the traversal) of every cut that fits."""
    for num in range(1, min(len(nodes), model.num_layers) + 1):
        for order in permutations(nodes, num):
            links = sum(link_s(*pair) for pair in pairwise(["", *(each.name for each in order), ""]))
            for borders in combinations(range(1, model.num_layers), num - 1):
                counts = [stop - start for start, stop in pairwise((0, *borders, model.num_layers))]
                sizes = [count * model.layer for count in counts]
                sizes[0] += model.embedding
                sizes[-1] += model.head
                if any(size > each.memory_bytes for size, each in zip(sizes, order, strict=True)):
                    continue
                work = [*counts[:-1], counts[-1] + model.head / model.layer]
                seconds = [num_layers * each.layer_s for num_layers, each in zip(work, order, strict=True)]
                yield max(seconds), links + sum(seconds)


nodes_of_any_kind = st.lists(
    st.builds(Node, st.just(""), st.integers(0, 1500), st.sampled_from((1.0, 1.5, 2.0, 3.0, 7.0))),
    min_size=1,
    max_size=4,
).map(lambda nodes: [Node(f"n{index}", each.memory_bytes, each.layer_s) for index, each in enumerate(nodes)])


@given(
    st.integers(1, 7),
    st.integers(50, 150),
    st.integers(0, 300),
    st.integers(0, 300),
    nodes_of_any_kind,
    st.lists(st.sampled_from((0.0, 1.0, 5.0, 40.0)), min_size=25, max_size=25),
    st.integers(1, 6),
)
def test_no_cut_is_better(num_layers, layer, embedding, head, nodes, times, depth):
    model = ModelSize(num_layers, layer, embedding, head)
    places = {name: index for index, name in enumerate(["", *(each.name for each in nodes)])}

    def link_s(start, stop):
        return times[places[start] * 5 + places[stop]]

    cuts = [(max(slowest, traversal / depth), traversal) for slowest, traversal in all_cuts(model, nodes, link_s)]
    if not cuts:
        with pytest.raises(ConfigError, match="the nodes cannot hold the model"):
            plan_stages(model, nodes, link_s, depth)
        return
    found = plan_stages(model, nodes, link_s, depth)
    assert found.window_s(depth) == pytest.approx(min(cuts)[0])
    check_fits(model, nodes, found)


def check_fits(model, nodes, found):
    room = {each.name: each.memory_bytes for each in nodes}
    assert [start for _, start, _ in found.stages] == [0, *(stop for _, _, stop in found.stages[:-1])]
    assert found.stages[-1][2] == model.num_layers
    for index, (name, start, stop) in enumerate(found.stages):
        assert start < stop
        tables = (index == 0) * model.embedding + (index == len(found.stages) - 1) * model.head
        assert (stop - start) * model.layer + tables <= room[name]


def test_one_window_in_flight_stays_on_the_fastest_node_that_holds_the_model():
    nodes = [Node("slow", 10_000, 2.0), Node("fast", 10_000, 1.0), Node("small", 600, 0.5)]
    found = plan_stages(MODEL, nodes, lambda *_: 100.0, depth=1)
    assert found.stages == (("fast", 0, 12),)


def test_many_windows_in_flight_are_spread_so_that_stages_take_equally_long():
    nodes = [Node("slow", 10_000, 2.0), Node("fast", 10_000, 1.0)]
    found = plan_stages(MODEL, nodes, lambda *_: 10.0, depth=100)
    assert found.stages == (("slow", 0, 4), ("fast", 4, 12))  # 4 x 2 s, and 8 s with 2 s for the head
    assert (found.slowest_s, found.traversal_s, found.window_s(100)) == (10.0, 48.0, 10.0)


def test_memory_decides_where_links_are_short():
    nodes = [Node("a", 700, 1.0), Node("b", 850, 1.0)]
    found = plan_stages(MODEL, nodes, lambda *_: 0.0, depth=1)
    assert len(found.stages) == 2
    check_fits(MODEL, nodes, found)


def test_a_node_behind_a_link_that_is_too_slow_is_left_out():
    nodes = [Node("a", 10_000, 1.0), Node("far", 10_000, 0.1)]
    found = plan_stages(MODEL, nodes, lambda start, stop: FAR if "far" in (start, stop) else 1.0, depth=4)
    assert [name for name, _, _ in found.stages] == ["a"]


def test_nodes_without_room_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"takes 1550 bytes .* the 2 nodes have 1000"):
        plan_stages(MODEL, [Node("a", 500, 1.0), Node("b", 500, 1.0)], lambda *_: 0.0, depth=1)


def test_more_nodes_than_can_be_tried_in_all_orders_are_refused():
    nodes = [Node(f"n{index}", 10_000, 1.0) for index in range(MAX_NODES + 1)]
    with pytest.raises(ConfigError, match="8 nodes are too many to plan for: give at most 7"):
        plan_stages(MODEL, nodes, lambda *_: 0.0, depth=1)


def test_a_machine_whose_layers_take_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="machine b takes 0 ms for a layer"):
        plan_stages(MODEL, [Node("a", 2000, 1.0), Node("b", 2000, 0.0)], lambda *_: 0.0, 1)
