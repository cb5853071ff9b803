"""Where to cut a model into stages: which nodes take part, in which order, and how many layers each gets.

A window of tokens visits all stages and comes back. With d windows in flight, the pipe finishes one in

    max(slowest stage, traversal / d)        traversal = sum of all stages and links, the way back included

So with one window in flight the layers belong on the fastest nodes, as few as hold the model. With many in flight they
are spread, so that all stages take about as long. For one order of nodes, each bound on the slowest stage allows each
node some layers. The traversal is then shortest if the fastest nodes get all they may have. A looser bound never makes
it longer, so bisection finds the best bound. Orders are all tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Final

from starspec.errors import ConfigError

MAX_NODES: Final = 7  # 13,699 orders; one node more has eight times as many


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the parts of a model take, in bytes."""

    num_layers: int
    layer: int  # weights of a layer, and its keys and values for all rows
    embedding: int  # of the first stage
    head: int  # of the last stage; if it is tied to the embedding, both stages have the table


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that may become a stage."""

    name: str
    memory_bytes: int  # for weights, keys and values
    layer_s: float  # measured seconds of one layer over a usual window


@dataclass(frozen=True, slots=True)
class StageCut:
    """A proposal, with what it was chosen for."""

    stages: tuple[tuple[str, int, int], ...]  # node, its first layer, and the one behind its last, in order
    slowest_s: float  # seconds of the slowest stage
    traversal_s: float  # seconds of one window, from the coordinator through all stages and back

    def window_s(self, depth: int) -> float:
        """Seconds in which the pipe finishes a window if so many are in flight."""
        return max(self.slowest_s, self.traversal_s / depth)


LinkSeconds = Callable[[str, str], float]
"""(from, to) -> seconds that a window's hidden states take; "" is the coordinator."""


def plan_stages(model: ModelSize, nodes: Sequence[Node], link_s: LinkSeconds, depth: int) -> StageCut:
    """The cut in which the pipe finishes windows fastest; of equal ones that with the shortest traversal.

    Args:
        depth: windows in flight, at least 1.
    Raises: as `check_nodes`; ConfigError if the nodes cannot hold the model.
    """
    check_nodes([(each.name, each.layer_s) for each in nodes])
    best: StageCut | None = None
    for num in range(1, min(len(nodes), model.num_layers) + 1):
        for order in permutations(nodes, num):
            cut = _best_cut(_Order(model, order, link_s), depth)
            if cut is not None and (best is None or _cost(cut, depth) < _cost(best, depth)):
                best = cut
    if best is None:
        raise ConfigError(_why_not(model, nodes))
    return best


def check_nodes(nodes: Sequence[tuple[str, float | None]]) -> None:
    """Check what is known of nodes before the model is.

    Args:
        nodes: of each its name, and the seconds of a layer; None = not measured yet.
    Raises: ConfigError if a layer takes no time on one of them, or there are too many nodes to try all orders.
    """
    for name, layer_s in nodes:
        if layer_s is not None and not layer_s > 0.0:
            raise ConfigError(f"machine {name} takes {1e3 * layer_s:g} ms for a layer: that must be above 0")
    if len(nodes) > MAX_NODES:
        raise ConfigError(f"{len(nodes)} nodes are too many to plan for: give at most {MAX_NODES}")


def _cost(cut: StageCut, depth: int) -> tuple[float, float]:
    return cut.window_s(depth), cut.traversal_s


class _Order:
    """Nodes in the order of their stages."""

    def __init__(self, model: ModelSize, nodes: Sequence[Node], link_s: LinkSeconds) -> None:
        self.nodes = nodes
        self._model = model
        names = ["", *(each.name for each in nodes), ""]
        self._links_s = sum(link_s(*pair) for pair in pairwise(names))
        last = len(nodes) - 1
        self._extra = [head_layers(model) if index == last else 0.0 for index in range(len(nodes))]
        self._room = [
            max_layers(model, each.memory_bytes, is_first=index == 0, is_last=index == last)
            for index, each in enumerate(nodes)
        ]
        self._by_speed = sorted(range(len(nodes)), key=lambda index: nodes[index].layer_s)

    def stage_s(self, index: int, num_layers: int) -> float:
        return (num_layers + self._extra[index]) * self.nodes[index].layer_s

    def bounds(self) -> list[float]:
        """The seconds that a slowest stage can take, shortest first."""
        counts = range(1, self._model.num_layers + 1)
        return sorted({self.stage_s(index, count) for index in range(len(self.nodes)) for count in counts})

    def within(self, bound_s: float) -> StageCut | None:
        """The shortest traversal without a stage that takes longer than this; None if there is none."""
        counts, left = [1] * len(self.nodes), self._model.num_layers - len(self.nodes)
        most = [self._most(index, bound_s) for index in range(len(self.nodes))]
        if min(most) < 1:
            return None
        for index in self._by_speed:
            more = min(left, most[index] - 1)
            counts[index] += more
            left -= more
        return None if left else self._cut(counts)

    def _most(self, index: int, bound_s: float) -> int:
        most = int(bound_s / self.nodes[index].layer_s - self._extra[index]) + 1  # one more: the quotient is rounded
        most = min(most, self._room[index], self._model.num_layers)
        while most >= 1 and self.stage_s(index, most) > bound_s:
            most -= 1
        return most

    def _cut(self, counts: Sequence[int]) -> StageCut:
        stages, start = list[tuple[str, int, int]](), 0
        for node, count in zip(self.nodes, counts, strict=True):
            stages.append((node.name, start, start + count))
            start += count
        seconds = [self.stage_s(index, count) for index, count in enumerate(counts)]
        return StageCut(tuple(stages), max(seconds), self._links_s + sum(seconds))


def _best_cut(order: _Order, depth: int) -> StageCut | None:
    """The best cut for one order of nodes: bisection for the first bound at which the slowest stage decides."""
    bounds, low = order.bounds(), 0
    high = len(bounds) - 1
    found = [cut for cut in (order.within(bounds[high]),) if cut is not None]
    while low < high:
        middle = (low + high) // 2
        cut = order.within(bounds[middle])
        if cut is not None:
            found.append(cut)
        if cut is None or cut.slowest_s < cut.traversal_s / depth:
            low = middle + 1
        else:
            high = middle
    last = order.within(bounds[low])
    return min([*found, *([last] if last is not None else [])], key=lambda cut: _cost(cut, depth), default=None)


def head_layers(model: ModelSize) -> float:
    """Layers that take as long as the head. Few tokens take as long as reading weights, so bytes tell it."""
    return model.head / model.layer


def max_layers(model: ModelSize, memory_bytes: int, *, is_first: bool, is_last: bool) -> int:
    """Layers that a stage has room for; negative if it lacks room for its table."""
    return (memory_bytes - is_first * model.embedding - is_last * model.head) // model.layer


def _why_not(model: ModelSize, nodes: Sequence[Node]) -> str:
    needed = model.num_layers * model.layer + model.embedding + model.head
    there = sum(each.memory_bytes for each in nodes)
    return (
        f"the nodes cannot hold the model: it takes {needed} bytes with its cache in whole layers of {model.layer} "
        f"bytes, and the {len(nodes)} nodes have {there}; add a node or lower max_model_len or max_num_seqs"
    )
