"""What one chain that runs ahead can gain, by simulation: the table of ADR 17.

One target, one hub, AMUSD's step times. The target verifies what there is whenever it is free; the hub grows one chain.
Times vary by a few per cent, so that they do not fall into step.
"""

from __future__ import annotations

import random
from itertools import count
from statistics import mean

DRAFT_MS, VERIFY_MS = 10.0, 25.0
ACCEPTANCES = (0.686, 0.832, 0.916)
MAX_LENGTH = 8
NUM_TOKENS = 30_000
OVERHEADS = {"no overhead": (0.0, 0.0), "0.3 ms a draft step, 1.1 ms a round": (0.3, 1.1)}
WAITS = 0.0  # for every draft step that adds to what is there
RULES = {"it ends": (None, False, WAITS), "it is not begun where it is likelier worthless": (None, True, WAITS)}
RULES |= {f"it is given up after {ms} ms": (ms, False, WAITS) for ms in (0.5, 0.0)}
RULES |= {
    f"the same, and one of use is waited for where at least {share:.0%} of it has run": (0.0, False, share)
    for share in (0.25, 0.5, 0.75, 1.0)
}


def synchronous(alpha: float, step_ms: float, return_ms: float) -> float:
    """Tokens a millisecond of the best length."""
    return max(
        sum(alpha**depth for depth in range(length + 1)) / (length * step_ms + return_ms) for length in range(1, 8)
    )


def chain(
    alpha: float,
    step_ms: float,
    return_ms: float,
    given_up_ms: float | None,
    is_held: bool,
    nearly: float,
    seed: int,
) -> float:
    """Tokens a millisecond.

    Args:
        given_up_ms: from a verdict until a draft step that it makes worthless ends; None: all end by themselves.
        is_held: no draft step is begun of which more is likely to be lost than gained when the verdict is due.
        nearly: a draft step that adds to a chain that is there is waited for if so much of it has run.
    """
    dice = random.Random(seed)
    begun_ms = 0.0  # the draft step in flight

    def draft_step(start_ms: float) -> float:
        nonlocal begun_ms
        begun_ms = start_ms
        return start_ms + step_ms * (0.975 + 0.05 * dice.random())

    def num_right() -> int:
        return next(number for number in count() if dice.random() >= alpha)

    now_ms, num_tokens, right, known = 0.0, 0, num_right(), 0
    end_ms: float | None = draft_step(0.0)  # of the draft step in flight
    is_useful = True  # what it is to tell belongs to the chain
    while num_tokens < NUM_TOKENS:
        while not known:
            assert end_ms is not None
            now_ms, known, is_useful = end_ms, int(is_useful), True
            end_ms = draft_step(now_ms)
        if end_ms is not None and is_useful and known < MAX_LENGTH and nearly * step_ms <= now_ms - begun_ms > 0:
            now_ms, known = end_ms, known + 1
            end_ms = draft_step(now_ms)
        sent, verdict_ms = known, now_ms + return_ms * (0.995 + 0.01 * dice.random())
        while end_ms is not None and end_ms <= verdict_ms:
            known, is_useful = known + int(is_useful), True
            lost_ms = end_ms + step_ms - verdict_ms  # of a draft step begun now, if the verdict makes it worthless
            likely = alpha ** (sent + 1) if known > sent else 0.0
            is_refused = is_held and lost_ms > 0 and (1 - likely) * lost_ms > likely * (step_ms - lost_ms)
            end_ms = None if known >= MAX_LENGTH or is_refused else draft_step(end_ms)
        now_ms = verdict_ms
        num_tokens += min(right, sent) + 1
        if right > sent:
            right, known, is_useful = right - sent - 1, max(0, known - sent - 1), known > sent
        else:
            right, known, is_useful = num_right(), 0, False
        if end_ms is None:
            end_ms, is_useful = draft_step(now_ms), True
        elif not is_useful and given_up_ms is not None:
            end_ms, is_useful = draft_step(min(end_ms, now_ms + given_up_ms)), True
    return num_tokens / now_ms


for title, (step_extra_ms, round_extra_ms) in OVERHEADS.items():
    step_ms, return_ms = DRAFT_MS + step_extra_ms, VERIFY_MS + round_extra_ms
    for rule, (given_up_ms, is_held, nearly) in RULES.items():
        gains = [
            mean(chain(alpha, step_ms, return_ms, given_up_ms, is_held, nearly, seed) for seed in (1, 2, 3))
            / synchronous(alpha, step_ms, return_ms)
            for alpha in ACCEPTANCES
        ]
        print(f"{title}; {rule}: {', '.join(f'{gain:.2f}' for gain in gains)}; mean {mean(gains):.3f}")
