"""Who is in a step while others are in flight."""

from __future__ import annotations

from starspec.ids import LOCAL, RequestId, RequestKey
from starspec.policy.target_batch import (
    Candidate,
    Continuous,
    FixedBatches,
    PromptsFirst,
    ScheduleSnapshot,
    longest_draft,
    passed_over,
)


def key(name: str) -> RequestKey:
    return RequestKey(LOCAL, RequestId(name))


def candidates(names: str) -> tuple[Candidate, ...]:
    """Upper case: in flight."""
    return tuple(Candidate(key(name.lower()), is_in_flight=name.isupper()) for name in names)


def snapshot(running: str = "", *, prefilling: str = "", waiting: str = "", depth: int = 1) -> ScheduleSnapshot:
    return ScheduleSnapshot(candidates(waiting), candidates(prefilling), candidates(running), 9, depth)


def names(keys: tuple[RequestKey, ...]) -> str:
    return "".join(each.request_id for each in keys)


def test_a_round_has_its_share_of_all_that_run_and_none_that_is_in_flight() -> None:
    for depth, running, expected in [
        (1, "abcde", "abcde"),
        (2, "abcde", "abc"),
        (2, "ABCde", "de"),
        (2, "ABCDe", "e"),
        (3, "abcde", "ab"),
        (9, "Ab", "b"),
        (2, "AB", ""),
    ]:
        assert names(Continuous().choose(snapshot(running, depth=depth)).decode) == expected


def test_who_waits_longest_for_a_round_is_in_the_next_one() -> None:
    running = (Candidate(key("a")), Candidate(key("b"), num_passed_over=1), Candidate(key("c"), num_passed_over=4))
    plan = Continuous().choose(ScheduleSnapshot((), (), running, 0, depth=3))
    assert names(plan.decode) == "c"
    assert passed_over(ScheduleSnapshot((), (), running, 0, depth=3), plan)[1] == [key("a"), key("b")]


def test_who_is_in_flight_is_not_passed_over() -> None:
    now = snapshot("Abc", depth=3)
    assert passed_over(now, Continuous().choose(now))[1] == [key("c")]


def test_a_prompt_with_a_chunk_in_flight_is_not_prefilled_further() -> None:
    assert Continuous().choose(snapshot(prefilling="Pq")).prefill == key("q")
    assert Continuous().choose(snapshot(prefilling="P", waiting="w")).prefill == key("w")
    assert Continuous().choose(snapshot(prefilling="P")).prefill is None


def test_nobody_joins_a_fixed_batch_of_which_all_are_in_flight() -> None:
    assert FixedBatches().choose(snapshot("A", waiting="w", depth=2)).admit == ()
    assert FixedBatches().choose(snapshot("ab", waiting="w", depth=2)).decode == (key("a"),)


def test_rounds_wait_for_prompts_in_flight_where_they_wait_for_prompts() -> None:
    for scheduler in (FixedBatches(), PromptsFirst(Continuous())):
        assert scheduler.choose(snapshot("a", prefilling="P", depth=2)).decode == ()
        assert scheduler.choose(snapshot("a", depth=2)).decode == (key("a"),)


def test_the_longest_drafts_of_a_round_are_cut_until_all_its_windows_have_as_many_tokens_as_it_may_have() -> None:
    for wanted, max_tokens, expected in [
        ([3, 3, 3], 12, 3),
        ([3, 3, 3], 11, 2),
        ([64, 1, 0, 2], 20, 13),
        ([64, 1, 0, 64], 20, 7),
        ([64, 64], 2, 0),
        ([0, 0], 2, 0),
    ]:
        longest = longest_draft(wanted, max_tokens)
        assert longest == expected
        assert sum(1 + min(each, longest) for each in wanted) <= max_tokens
