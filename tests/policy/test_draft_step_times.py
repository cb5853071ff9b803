"""How much of a prompt is prefilled beside decoding sequences follows what draft steps cost."""

from __future__ import annotations

import pytest

from starspec.ids import LinkId, Tag
from starspec.policy.draft_batch import DraftStep, ScheduledSequence, TagKey
from starspec.policy.draft_step_times import MIN_TOKENS, DraftStepTimes

A = TagKey(LinkId("a"), Tag(1))
DECODE, PROMPT = DraftStep((ScheduledSequence(A, 2, False),)), DraftStep((ScheduledSequence(A, 100, True),))


def times(decode_s: float, prompt_s: float) -> DraftStepTimes:
    seen = DraftStepTimes()
    seen.add(DECODE, decode_s)
    seen.add(PROMPT, prompt_s)
    return seen


@pytest.mark.parametrize(
    ("decode_s", "prompt_s", "tokens"),
    [
        (0.010, 0.110, 40),  # a token costs 1 ms more, four draft steps 40 ms
        (0.002, 0.003, 256),  # an accelerator prefills a chunk in no time
        (0.001, 1.001, MIN_TOKENS),
        (0.001, 0.0005, 256),
    ],
)
def test_a_prompt_beside_others_takes_about_as_long_as_a_short_chain(decode_s, prompt_s, tokens) -> None:
    assert times(decode_s, prompt_s).chunk_beside(256) == tokens


def test_the_first_prompt_beside_others_is_begun_with_a_small_chunk() -> None:
    seen = DraftStepTimes()
    seen.add(DECODE, 0.010)
    assert seen.chunk_beside(256) == MIN_TOKENS


def test_nothing_is_held_back_before_anything_is_known() -> None:
    assert DraftStepTimes().chunk_beside(256) == 256
