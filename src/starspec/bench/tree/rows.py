"""From timed runs to the rows, ratios and sentences that are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starspec.bench.pair.methods import Timed
from starspec.bench.tree.shapes import Kind, kind_of
from starspec.harness.provenance import Provenance
from starspec.harness.report import Spread
from starspec.harness.step_times import StepSeconds
from starspec.speculation.budget import DraftBudget

NOT_SAID = "not said"  # in reports of earlier versions


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the numbers that a shape is made of."""

    of: Callable[[DraftBudget], float]
    less: str
    more: str
    least: float  # that there can be


DEPTH = _Side(lambda shape: shape.num_steps, "shallower", "deeper", 1)
DOUBT = _Side(lambda shape: shape.p_min, "of a lower p_min", "of a higher p_min", 0.0)
SIDES = (
    DEPTH,
    DOUBT,
    _Side(lambda shape: shape.top_k, "narrower", "wider", 2),  # 1 is a chain
    _Side(lambda shape: shape.num_draft_tokens, "smaller", "larger", 2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One shape at one temperature."""

    stage: str  # "trial": every shape on a few prompts; "final": the best ones in turns with plain decoding
    temperature: float
    shape: str
    num_steps: int
    eagle_topk: int
    num_nodes: int  # without the root; SGLang's num_draft_tokens is one more
    p_min: float = 0.0
    tokens_per_s: Spread
    vs_plain: float  # of the same stage
    acceptance_length: float | None
    block_efficiency: float | None
    bytes_per_accepted_token: float | None  # verdicts, features and proposals, as they are encoded for the wire
    num_same_as_plain: int
    num_answers: int

    @property
    def budget(self) -> DraftBudget:
        return DraftBudget(self.num_nodes, self.num_steps, self.eagle_topk, self.p_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """What `starspec bench tree` saves."""

    provenance: Provenance
    rows: list[TreeRow]
    ratios: dict[str, float]
    best: dict[str, str]  # temperature -> shape, plain decoding where nothing pays
    losing: list[str]  # sentences: where drafts, or trees, do not pay
    at_the_edge: list[str]  # sentences: best shapes beyond which, up or down, nothing was tried
    draft_quantization: str
    draft_step_ms: float  # one layer of the drafter, one session with one node
    target_step_ms: float  # one token
    outputs_identical: bool
    numerics: str
    dtype: str = NOT_SAID
    device: str = NOT_SAID
    left_out: list[str] = field(default_factory=list)  # sentences: what of the grid fits no shape
    feature_layers: tuple[int, ...] | None = None  # that an EAGLE head was told to read; None = as it says itself

    def best_row(self, temperature: float) -> TreeRow:
        """As the function of that name, of all rows."""
        return best_row(self.rows, temperature)


def ratios_of(rows: Sequence[TreeRow], steps: StepSeconds) -> dict[str, float]:
    """Medians against medians, of the final stage. Of chains, "fixed" are those that no doubt ends (p_min 0)."""
    ratios = {
        "head_step_vs_target_step": round(steps.draft_vs_target, 3),
        "step_with_features_vs_without": round(steps.giving_vs_target, 3),
    }
    for temperature in _temperatures(rows):
        best = _best_of_each_kind(rows, temperature)
        chains = [best[kind] for kind in (Kind.CHAIN, Kind.DOUBTING_CHAIN) if kind in best]
        ratios[f"best_tree_vs_best_chain_t{temperature:g}"] = _ratio(best[Kind.TREE], max(chains, key=_rate))
        if Kind.CHAIN in best:
            ratios[f"best_tree_vs_best_fixed_chain_t{temperature:g}"] = _ratio(best[Kind.TREE], best[Kind.CHAIN])
        name = "speculative_vs_plain" + (f"_t{temperature:g}" if temperature else "")
        ratios[name] = max(each.vs_plain for each in best.values())
    return ratios


def best_row(rows: Sequence[TreeRow], temperature: float) -> TreeRow:
    """The fastest of the final stage, plain decoding among them."""
    return max(_final(rows, temperature), key=_rate)


def losing_regimes(rows: Sequence[TreeRow]) -> list[str]:
    """A sentence for each temperature at which plain decoding beats every shape, or a chain the best tree."""
    found = []
    for temperature in _temperatures(rows):
        kinds = _best_of_each_kind(rows, temperature)
        best, tree = max(kinds.values(), key=_rate), kinds[Kind.TREE]
        if best.vs_plain < 1.0:
            found.append(f"T={temperature:g}: nothing beats plain decoding, {best.shape} comes to {best.vs_plain:.2f}x")
        if best is not tree:
            share = _ratio(tree, best)
            found.append(f"T={temperature:g}: {best.shape} beats every tree, {tree.shape} comes to {share:.2f}x of it")
    return found


def at_the_edge(rows: Sequence[TreeRow], shapes: Sequence[DraftBudget]) -> list[str]:
    """A sentence for each best shape of the final stage at an end of what was tried of its kind, if there is more."""
    found = []
    for row in rows:
        if row.stage == "final" and row.num_nodes:
            kind = [shape for shape in shapes if kind_of(shape) is kind_of(row.budget)]
            all_alike = [shape for shape in shapes if shape.is_chain == row.budget.is_chain]  # p_min makes the kind
            beyond = [
                word for side in SIDES for word in _untried(row.budget, all_alike if side is DOUBT else kind, side)
            ]
            if beyond:
                found.append(f"{row.shape} at T={row.temperature:g}: nothing {' or '.join(beyond)} was tried")
    return found


def _untried(best: DraftBudget, tried: Sequence[DraftBudget], side: _Side) -> list[str]:
    if best.is_chain and side not in (DEPTH, DOUBT):  # a chain's other sides say the same, or nothing
        return []
    value, values = side.of(best), {side.of(shape) for shape in tried}
    below = [side.less] if value == min(values) > side.least else []
    return below + ([side.more] if value == max(values) else []) if len(values) > 1 else []


def _temperatures(rows: Sequence[TreeRow]) -> list[float]:
    return sorted({row.temperature for row in rows})


def _final(rows: Sequence[TreeRow], temperature: float) -> list[TreeRow]:
    return [row for row in rows if row.stage == "final" and row.temperature == temperature]


def _best_of_each_kind(rows: Sequence[TreeRow], temperature: float) -> dict[Kind, TreeRow]:
    best = dict[Kind, TreeRow]()
    for row in sorted(_final(rows, temperature), key=_rate):
        if row.num_nodes:
            best[kind_of(row.budget)] = row
    return best


def _ratio(one: TreeRow, other: TreeRow) -> float:
    return round(_rate(one) / _rate(other), 3)


def _rate(row: TreeRow) -> float:
    return row.tokens_per_s.median


def tree_row(
    stage: str,
    temperature: float,
    name: str,
    shape: DraftBudget,
    timed: Timed,
    plain: Timed,
    num_bytes: float | None,
) -> TreeRow:
    """One timed run as a row.

    Args:
        plain: plain decoding of the same prompts, in the same stage.
        num_bytes: that crossed the link; None = the row is plain decoding's own, which has no drafts.
    """
    acceptance = timed.acceptance if num_bytes is not None else None
    rate = Spread.of([round(each, 3) for each in timed.tokens_per_s])
    plain_rate = Spread.of(plain.tokens_per_s).median
    return TreeRow(
        stage=stage,
        temperature=temperature,
        shape=name,
        num_steps=shape.num_steps,
        eagle_topk=shape.top_k,
        num_nodes=shape.num_draft_tokens,
        p_min=shape.p_min,
        tokens_per_s=rate,
        vs_plain=round(rate.median / plain_rate, 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        bytes_per_accepted_token=_per_token(num_bytes, acceptance.num_accepted_tokens) if acceptance else None,
        num_same_as_plain=sum(
            answer.token_ids == plain.answers[name].token_ids for name, answer in timed.answers.items()
        ),
        num_answers=len(timed.answers),
    )


def _per_token(num_bytes: float | None, num_accepted: int) -> float | None:
    return round(num_bytes / num_accepted, 1) if num_bytes is not None and num_accepted else None
