"""`starspec plan-stages`: how to cut a model into stages for given machines and links."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Final

from starspec.cli import given
from starspec.cli.binder import bound, take
from starspec.cli.measuring import measuring, out, show
from starspec.config import ModelConfig
from starspec.config.option import LIMITS, MODELS, NETWORK, Option
from starspec.errors import ConfigError
from starspec.harness.table import Column, Table
from starspec.models.loading.checks import check_holds, check_models
from starspec.policy.stage_cut import ModelSize, Node, StageCut, check_nodes, head_layers, plan_stages

TARGET: Final = "target"  # in --link: the machine of the target itself
COLUMNS: Final = (
    Column("machine", "name"),
    Column("layers", "layers", is_text=True),
    Column("memory, MiB", lambda row: row.num_bytes / 2**20, ".0f"),
    Column("ms of a window", lambda row: row.seconds * 1e3, ".1f"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The machines, the links between them, and what will run on them."""

    node: Annotated[
        tuple[str, ...],
        Option(
            "A machine, NAME=MEMORY or NAME=MEMORY,MS: memory for weights, keys and values, and milliseconds of one "
            "layer over a window of 5 tokens. Without MS, a layer is measured here. May be repeated.",
            MODELS,
        ),
    ]
    link_ms: Annotated[float, Option("Milliseconds from one machine to another, one way.", NETWORK, least=0.0)] = 0.0
    link: Annotated[
        tuple[str, ...],
        Option(
            f"A link that differs, FROM-TO=MS; '{TARGET}' is the target's machine. May be repeated.",
            NETWORK,
            shown="all as --link-ms",
        ),
    ] = ()
    in_flight: Annotated[int, Option("Rounds that will travel at once.", LIMITS, least=1)] = 1


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage of a plan."""

    name: str
    layers: str
    num_bytes: int
    seconds: float


@bound
def plan(
    *,
    model: Annotated[ModelConfig, take("model", "dtype", "max_model_len", "num_rows", "num_threads", numerics="fast")],
    options: PlanOptions,
) -> None:
    """Propose a cut of a model into stages, from the memory and the speed of machines and the links between them."""
    nodes = _nodes(options.node)
    check_nodes([(name, own_s) for name, _, own_s in nodes])
    links = _links(options, [name for name, *_ in nodes])
    check_models(model)
    check_holds(model, sum(memory for _, memory, _ in nodes))
    with measuring("plan-stages"):
        from starspec.stages.measure import measure_layer  # noqa: PLC0415 (imports torch)

        size, layer_s = measure_layer(model)
    machines = [Node(name, memory, layer_s if own_s is None else own_s) for name, memory, own_s in nodes]
    cut = plan_stages(
        size, machines, lambda *pair: links.get(_link_of(*pair), options.link_ms / 1e3), options.in_flight
    )
    show([Table("Stages", COLUMNS, _rows(cut, size, machines))])
    out().print(_summary(cut, layer_s, options.in_flight))


def _nodes(texts: Sequence[str]) -> list[tuple[str, int, float | None]]:
    """Name, bytes, and seconds of a layer, of each machine. Raises: ConfigError if two have one name."""
    nodes = [_node(each) for each in texts]
    names = [name for name, *_ in nodes]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise ConfigError(f"--node describes the machine '{twice}' twice: give each a name of its own")
    return nodes


def _node(text: str) -> tuple[str, int, float | None]:
    match = re.fullmatch(r"([^=,]+)=([^,]+)(?:,(.*))?", text)
    if match is None or match[1] == TARGET:
        raise ConfigError(f"--node must be NAME=MEMORY or NAME=MEMORY,MS, as in a=8GiB,2.5, not '{text}'")
    memory = given.num_bytes(match[2], "--node")
    assert memory is not None
    return match[1], memory, None if match[3] is None else _seconds(match[3], f"--node {text}")


def _links(options: PlanOptions, names: Sequence[str]) -> dict[frozenset[str], float]:
    """Seconds of the links that differ. Raises: ConfigError for an unknown machine, or a link that is given twice."""
    found: dict[frozenset[str], float] = {}
    for text in options.link:
        match = re.fullmatch(r"([^=]+-[^=]+)=(.*)", text)
        if match is None:
            raise ConfigError(f"--link must be FROM-TO=MS, as in a-b=20, not '{text}'")
        ends = frozenset(_ends(match[1], {TARGET, *names}))
        if len(ends) == 1:
            raise ConfigError(f"--link {text} leads from a machine to itself: leave it out")
        if ends in found:
            one, other = sorted(ends)
            raise ConfigError(f"--link gives the link between '{one}' and '{other}' twice, and a link has one number")
        found[ends] = _seconds(match[2], f"--link {text}")
    return found


def _ends(pair: str, names: Set[str]) -> tuple[str, str]:
    """The machines of FROM-TO, whose names may have hyphens themselves. Raises: ConfigError."""
    splits = [(pair[: each.start()], pair[each.end() :]) for each in re.finditer("-", pair)]
    known = [each for each in splits if names >= set(each)]
    if len(known) > 1:
        ways = " or ".join(f"from '{one}' to '{other}'" for one, other in known)
        raise ConfigError(f"--link {pair} may be {ways}: give the machines other names")
    if known:
        return known[0]
    if len(splits) > 1:
        raise ConfigError(f"--link {pair} is between machines that no --node describes")
    unknown = next(name for name in splits[0] if name not in names)
    raise ConfigError(f"--link names the machine '{unknown}', which no --node describes")


def _seconds(text: str, what: str) -> float:
    """Milliseconds as a user wrote them, in seconds. Raises: ConfigError that begins with `what`."""
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", text) is None or not isfinite(float(text)):
        raise ConfigError(f"{what}: '{text}' is not a number of milliseconds, such as 2.5")
    return float(text) / 1e3


def _link_of(one: str, other: str) -> frozenset[str]:
    return frozenset((one or TARGET, other or TARGET))


def _rows(cut: StageCut, size: ModelSize, machines: Sequence[Node]) -> list[StageRow]:
    layer_s = {each.name: each.layer_s for each in machines}
    rows = []
    for name, start, end in cut.stages:
        tables = (size.embedding if start == 0 else 0) + (size.head if end == size.num_layers else 0)
        num_layers = end - start + (head_layers(size) if end == size.num_layers else 0.0)
        rows.append(StageRow(name, f"{start}:{end}", (end - start) * size.layer + tables, num_layers * layer_s[name]))
    return rows


def _summary(cut: StageCut, layer_s: float, in_flight: int) -> str:
    every_ms = 1e3 * cut.window_s(in_flight)
    return (
        f"A layer takes {1e3 * layer_s:.2f} ms here. A round takes {1e3 * cut.traversal_s:.1f} ms; with {in_flight} in "
        f"flight, one ends every {every_ms:.1f} ms."
    )
