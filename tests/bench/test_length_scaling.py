"""DSDE's Figure 9 in virtual time: what the cap brings as batches of unlike sequences grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from starspec.bench.length.scaling import (
    BATCHES,
    CAPPED,
    CURVES,
    POLICIES,
    UNCAPPED,
    ScalingRow,
    draw,
    ratios_of,
    speed_of,
    table,
)


def rows_of(speed: float) -> list[ScalingRow]:
    return [
        ScalingRow(
            curve=curve,
            policy=policy,
            batch=batch,
            tokens_per_step=speed * batch * (0.5 if policy == UNCAPPED else 1.0),
            scaling=float(batch),
        )
        for curve in CURVES
        for policy in POLICIES
        for batch in BATCHES
    ]


@pytest.mark.parametrize("curve", CURVES)
def test_the_cap_makes_large_batches_of_unlike_sequences_faster(curve) -> None:
    assert speed_of((curve, CAPPED, 16), 600) > speed_of((curve, UNCAPPED, 16), 600)


def test_the_cap_changes_nothing_for_one_sequence() -> None:
    assert speed_of(("knee", CAPPED, 1), 20) == speed_of(("knee", UNCAPPED, 1), 20)


def test_plain_decoding_scales_with_its_batch_where_steps_cost_the_same() -> None:
    assert [speed_of(("flat", "plain", batch), 20) for batch in BATCHES] == pytest.approx(list(BATCHES))


def test_ratios_are_of_the_largest_batch() -> None:
    ratios = ratios_of(rows_of(2.0))
    assert ratios["dsde_scaling_flat"] == ratios["goodput_scaling_knee"] == 16.0
    assert ratios["dsde_vs_dsde_without_cap_knee"] == 2.0


def test_the_table_has_a_line_for_each_policy_and_the_picture_a_panel_for_each_curve(tmp_path: Path) -> None:
    shown = table(rows_of(2.0))
    assert len(shown.rows) == len(CURVES) * len(POLICIES)
    assert shown.columns[-1].cell(shown.rows[0]) == "32.00 (16.00x)"
    draw(rows_of(2.0), tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").exists()
