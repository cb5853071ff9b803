"""What the doctor found, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from rich.markup import escape

from starspec.doctor.checks import Check
from starspec.doctor.drafts import LayerChoice
from starspec.doctor.examine import Examination, Prospect
from starspec.doctor.outlook import StepTimes
from starspec.doctor.rounding import Rounding
from starspec.doctor.trees import TreeAdvice
from starspec.harness.table import Block, Column, Table

SIGNS: Final = {"ok": "[green]ok[/]", "warning": "[yellow]note[/]", "fatal": "[red]no[/]"}
FORECAST: Final = (
    Column("K", "num_draft_tokens"),
    Column("tokens a round", "tokens_per_round", ".2f"),
    Column("by eq. 3", "tokens_per_round_eq3", ".2f"),
    Column("ms a round", "round_ms", ".1f"),
    Column("expected speed-up", lambda each: f"{each.speed_up:.2f}x"),
)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """One line for each finding. Names of models and files in it are no markup."""
    return [f"{SIGNS[check.severity]} {check.what}: {escape(check.sentence)}" for check in checks]


def blocks(found: Examination, setting: str) -> list[Block]:
    """What people read.

    Args:
        setting: the option that the best K is to be given to.
    """
    checks = check_lines(found.checks)
    if found.times is None:
        return [*checks, "These two cannot be used together."]
    return [
        *checks,
        *([] if found.layers is None else [_layers_sentence(found.layers)]),
        _times_sentence(found.times),
        *(block for prospect in found.prospects for block in _prospect_blocks(prospect, setting)),
        *(_tree_sentence(advice) for advice in found.trees),
        *([] if found.rounding is None else [_rounding_sentence(found.rounding)]),
    ]


def _prospect_blocks(prospect: Prospect, setting: str) -> list[Block]:
    forecasts = Table("", FORECAST, prospect.forecasts, is_bold=lambda each: each == prospect.best)
    return [_rates_sentence(prospect), forecasts, _advice(prospect, setting)]


def _layers_sentence(choice: LayerChoice) -> str:
    """Which hidden states an EAGLE head takes as input, when its list of layers can be meant in two ways."""
    said = "; ".join(
        f"layers {', '.join(map(str, each.feature_layers))} ({each.reason}): right at {each.first_choice_rate:.0%}"
        for each in (choice.used, choice.other)
    )
    alone = (
        f"alone at {choice.used.num_alone_right} and {choice.other.num_alone_right} of {choice.num_positions} positions"
    )
    if not choice.is_settled:
        why = "too few to tell which fits, give more prompts or longer answers (--prompts, --num-prompts, --max-tokens)"
        return f"{SIGNS['warning']} layers: {said}; {alone}: {why}; what follows is measured with the first"
    if choice.used.is_default:
        return f"{SIGNS['ok']} layers: {said}; {alone}: keep"
    key = json.dumps({"feature_layers": choice.used.feature_layers})
    put = f"put {key[1:-1]} into --speculative-config; what follows is measured so"
    return f"{SIGNS['warning']} layers: {said}; {alone}: {put}"


def _times_sentence(times: StepTimes) -> str:
    last = times.max_draft_tokens
    return (
        f"t_s {times.draft_s * 1e3:.1f} ms, t_v {times.verify_s[0] * 1e3:.1f} ms for 1 token, "
        f"{times.verify_s[last] * 1e3:.1f} ms for {last + 1}, t_c {times.link_s * 1e3:.1f} ms"
    )


def _rates_sentence(prospect: Prospect) -> str:
    beta = "" if prospect.beta is None else f" (beta, the sum of min(p, q), is {prospect.beta:.0%})"
    return (
        f"{prospect.sampling}: the draft's first choice is right at {prospect.first_choice_rate:.0%} of "
        f"{prospect.num_positions} positions{beta}, one of its first four at {prospect.first_four_rate:.0%}; "
        f"its vocabulary holds the token at {prospect.sayable_rate:.1%}"
    )


def _advice(prospect: Prospect, setting: str) -> str:
    best = prospect.best
    if best is None:
        return f"{prospect.sampling}: do not speculate, this draft does not pay here"
    return f"{prospect.sampling}: {setting} {best.num_draft_tokens}, about {best.speed_up:.2f}x plain"


def _tree_sentence(advice: TreeAdvice) -> str:
    what = f"bench tree at T={advice.temperature:g}"
    if not advice.speculative_config:
        return f"{what}: do not speculate, plain decoding was the fastest"
    keys = json.dumps(advice.speculative_config)
    return f"{what}: {advice.shape}, {advice.vs_plain:.2f}x plain: --speculative-config '{keys}'"


def _rounding_sentence(found: Rounding) -> str:
    return (
        f"--hidden-dtype int8 between {found.num_stages} stages is not exact: the greedy token is the same at "
        f"{found.num_same} of {found.num_positions} positions ({found.num_same / max(1, found.num_positions):.1%}), "
        f"the mean KL divergence is {found.mean_kl:.2g} nats"
    )
