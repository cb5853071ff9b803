"""When rounds probe, go without drafts and defer prompts."""

from __future__ import annotations

from itertools import pairwise

from starspec.policy.length.experiments import MAX_PROBE_EVERY, PROBE_EVERY, PROBE_ROUNDS, ProbeSchedule


def probes(steps: ProbeSchedule, start: int, end: int, *, are_drafted: bool = True) -> list[int]:
    """Of the steps from `start` to before `end` those for probes."""
    found = []
    for step in range(start, end):
        if steps.includes(step, is_drafting=False):
            found.append(step)
            if are_drafted:
                steps.note_tried()
    return found


def gaps(found: list[int]) -> list[int]:
    """Between windows of PROBE_ROUNDS steps."""
    starts = found[::PROBE_ROUNDS]
    assert found == [start + more for start in starts for more in range(PROBE_ROUNDS)]
    return [later - start - PROBE_ROUNDS for start, later in pairwise(starts)]


def test_two_steps_in_a_row_are_for_probes_ever_more_rarely_while_no_drafts_pay() -> None:
    found = probes(ProbeSchedule(), 0, 300)
    assert found[0] == PROBE_EVERY
    assert gaps(found) == [2 * PROBE_EVERY, MAX_PROBE_EVERY, MAX_PROBE_EVERY, MAX_PROBE_EVERY]


def test_probes_for_which_nothing_came_are_soon_made_again() -> None:
    assert set(gaps(probes(ProbeSchedule(), 0, 300, are_drafted=False))) == {PROBE_EVERY}


def test_beside_drafts_that_pay_each_step_is_for_probes_and_after_them_the_next_is_soon() -> None:
    steps = ProbeSchedule()
    probes(steps, 0, 300)
    assert all(steps.includes(step, is_drafting=True) for step in range(300, 310))
    assert probes(steps, 310, 330) == [309 + PROBE_EVERY, 310 + PROBE_EVERY]


def test_new_rows_are_soon_probed_however_often_rows_begin() -> None:
    steps = ProbeSchedule()
    probes(steps, 0, 235)
    new = {step for step in range(235, 300) if step % 5 == 0}
    found = [step for step in range(235, 300) if steps.includes(step, is_drafting=False, has_new=step in new)]
    assert found[0] <= 235 + PROBE_EVERY
    assert len(found) >= 3 * PROBE_ROUNDS
