"""Which tree to use, according to `bench tree` for this pair.

The doctor does not forecast trees. A tree chooses its nodes by the probability of their paths, and answers that do not
contain the draft's second choice do not show what the draft predicts after it. Decoding with trees measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from starspec.config import ModelConfig
from starspec.doctor.checks import Check
from starspec.errors import ConfigError
from starspec.harness.provenance import Provenance
from starspec.harness.tree_report import TreeReport, TreeRow, final_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeAdvice:
    """The fastest shape of `bench tree` at one temperature."""

    temperature: float
    shape: str
    vs_plain: float
    speculative_config: Mapping[str, float | tuple[int, ...]]  # its keys; empty = do not speculate


def read_tree_report(path: Path) -> TreeReport:
    """Read what `bench tree --json` saved. Raises: ConfigError if it cannot be read, or if nothing was compared."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=TreeReport)
    except OSError as error:
        raise ConfigError(f"the report '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"'{path}' is not a report of `starspec bench tree`: {error}") from error
    for row in report.rows:
        if not final_rows(report.rows, row.temperature):
            found = f"it has no final rows at T={row.temperature:g}"
            raise ConfigError(f"'{path}' is not a whole report of `starspec bench tree`: {found}")
    return report


def check_same_models(report: TreeReport, path: Path, models: Mapping[str, str]) -> None:
    """Raises: ConfigError if the report is of other models. Args: models: name -> hash, as in a provenance."""
    for name, found in models.items():
        if report.provenance.models.get(name) != found:
            raise ConfigError(f"the report '{path}' is of another {name}: measure this pair with `starspec bench tree`")


def check_tree_report(
    report: TreeReport,
    provenance: Provenance,
    target: ModelConfig,
    quantization: str,
    feature_layers: tuple[int, ...] | None,
) -> Check:
    """Whether the report was measured under the conditions of this machine and pair.

    Args:
        quantization: of the draft.
        feature_layers: that a head needs as a setting; None = none needed, or the draft is not a head.
    """
    then, now = report.provenance, provenance
    pairs = {
        "processor": (then.cpu, now.cpu),
        "device": (report.device, target.device),
        "threads": (then.num_threads, now.num_threads),
        "dtype": (report.dtype, target.dtype),
        "draft quantization": (report.draft_quantization, quantization),
        "feature layers": (_said(report.feature_layers), _said(feature_layers)),
    }
    different = [f"{what} {was}, here {here}" for what, (was, here) in pairs.items() if was != here]
    if different:
        return Check("tree report", "warning", f"measured with {'; '.join(different)}: another shape may be the best")
    return Check("tree report", "ok", f"of this pair, {then.date}")


def _said(feature_layers: tuple[int, ...] | None) -> str:
    return "as the draft says" if feature_layers is None else ",".join(map(str, feature_layers))


def advise_trees(report: TreeReport) -> list[TreeAdvice]:
    """The best shape of each temperature."""
    temperatures = sorted({row.temperature for row in report.rows})
    return [_advice(report.best_row(each), report.feature_layers) for each in temperatures]


def _advice(best: TreeRow, feature_layers: tuple[int, ...] | None) -> TreeAdvice:
    keys: dict[str, float | tuple[int, ...]] = {**keys_of(best)}
    if keys and feature_layers is not None:
        keys["feature_layers"] = feature_layers
    return TreeAdvice(temperature=best.temperature, shape=best.shape, vs_plain=best.vs_plain, speculative_config=keys)


def keys_of(row: TreeRow) -> dict[str, float]:
    """The shape as keys of a speculative config; none for plain decoding."""
    if row.num_nodes == 0:
        return {}
    doubt = {"draft_p_min": row.p_min} if row.p_min else {}
    if row.eagle_topk == 1:
        return {"num_speculative_tokens": row.num_steps} | doubt
    return {"num_steps": row.num_steps, "eagle_topk": row.eagle_topk, "num_draft_tokens": row.num_nodes + 1} | doubt
