"""The report that `starspec bench tree` saves and `starspec doctor` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starspec.harness.provenance import Provenance
from starspec.harness.report import Spread
from starspec.speculation.budget import DraftBudget

NOT_SAID = "not said"  # in reports of earlier versions


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One shape at one temperature."""

    stage: str  # "trial": every shape on a few prompts; "final": the best ones and plain decoding in turns
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
    bytes_per_accepted_token: float | None  # encoded size of verdicts, features and proposals
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
    best: dict[str, str]  # temperature -> shape, or plain decoding if no shape is faster
    losing: list[str]  # sentences: where drafts, or trees, are slower
    at_the_edge: list[str]  # sentences: best shapes at the edge of the grid
    draft_quantization: str
    draft_step_ms: float  # one draft step of one sequence with one node
    target_step_ms: float  # a forward over one token
    outputs_identical: bool
    numerics: str
    dtype: str = NOT_SAID
    device: str = NOT_SAID
    left_out: list[str] = field(default_factory=list)  # sentences: values of the grid that fit no shape
    feature_layers: tuple[int, ...] | None = (
        None  # hidden states given to an EAGLE head; None = those that its files name
    )

    def best_row(self, temperature: float) -> TreeRow:
        """The fastest row of the final stage at this temperature."""
        return best_row(self.rows, temperature)


def best_row(rows: Sequence[TreeRow], temperature: float) -> TreeRow:
    """The fastest row of the final stage, plain decoding included."""
    return max(final_rows(rows, temperature), key=rate_of)


def final_rows(rows: Sequence[TreeRow], temperature: float) -> list[TreeRow]:
    return [row for row in rows if row.stage == "final" and row.temperature == temperature]


def rate_of(row: TreeRow) -> float:
    return row.tokens_per_s.median
