"""ExSpec's scheduling: one length first, nobody for ever, and what fixed batches are."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from starspec.config import BATCHINGS, BatchingConfig, TargetConfig
from starspec.ids import LOCAL, RequestId, RequestKey
from starspec.policy.same_length import SameLengthPool
from starspec.policy.target_batch import (
    Candidate,
    Continuous,
    FixedBatches,
    PromptsFirst,
    ScheduleSnapshot,
    passed_over,
)
from starspec.windows.batching import PARTS, make_scheduler


def key_of(name):
    return RequestKey(LOCAL, RequestId(name))


def keys(*names):
    return tuple(key_of(name) for name in names)


def candidates(*lengths, passed_over=()):
    waits = [*passed_over, *[0] * (len(lengths) - len(passed_over))]
    return tuple(
        Candidate(key_of(str(index)), length, wait)
        for index, (length, wait) in enumerate(zip(lengths, waits, strict=True))
    )


def snapshot(waiting=(), prefilling=(), running=(), num_free_rows=0):
    return ScheduleSnapshot(waiting, prefilling, running, num_free_rows)


def decoded(pool, *lengths, passed_over=()):
    return [
        int(each.request_id)
        for each in pool.choose(snapshot(running=candidates(*lengths, passed_over=passed_over))).decode
    ]


BOUNDED, UNBOUNDED = SameLengthPool(2, 3), SameLengthPool(2, None)


def test_an_empty_window_has_no_round():
    plan = BOUNDED.choose(snapshot())
    assert (plan.admit, plan.prefill, plan.decode) == ((), None, ())


def test_one_sequence_is_a_group():
    assert decoded(BOUNDED, 7) == [0]


def test_sequences_of_one_length_go_before_older_ones():
    assert decoded(BOUNDED, 7, 9, 8, 9) == [1, 3]


def test_of_several_groups_that_of_the_oldest_sequence_goes_first():
    assert decoded(BOUNDED, 9, 7, 7, 9) == [0, 3]


def test_two_of_one_length_run_without_others_even_if_they_do_not_fill_the_batch():
    assert decoded(SameLengthPool(3, 3), 9, 7, 7, 8) == [1, 2]
    assert decoded(SameLengthPool(4, 3), 9, 7, 7, 8, 8, 8) == [3, 4, 5], "the largest group"


def test_a_group_that_is_too_small_is_realigned_with_others():
    assert decoded(SameLengthPool(3, 3), 9, 7, 6, 8) == [0, 1, 2]
    assert decoded(SameLengthPool(4, 3, min_group=3), 9, 7, 7, 8, 6) == [0, 1, 2, 3]
    assert decoded(SameLengthPool(4, 3, min_group=3), 9, 7, 7, 8, 7) == [1, 2, 4]
    assert decoded(SameLengthPool(2, 3, min_group=8), 9, 7, 7, 8) == [1, 2], "a whole batch is always a group"


def test_one_that_was_passed_over_too_often_goes_first():
    assert decoded(BOUNDED, 7, 9, 8, 9, passed_over=(0, 0, 3)) == [2, 0]
    assert decoded(UNBOUNDED, 7, 9, 8, 9, passed_over=(0, 0, 300)) == [1, 3]


def test_one_that_was_passed_over_too_often_goes_with_its_own_length_if_it_can():
    assert decoded(BOUNDED, 7, 7, 8, 9, 8, passed_over=(0, 0, 3)) == [2, 4]


def test_the_window_is_refilled_by_length_and_nobody_waits_outside_for_ever():
    waiting = candidates(9, 5, 7, 5)
    assert BOUNDED.choose(snapshot(waiting=waiting, num_free_rows=3)).admit == keys("1", "3", "2")
    overdue = candidates(9, 5, 7, 5, passed_over=(3,))
    assert BOUNDED.choose(snapshot(waiting=overdue, num_free_rows=3)).admit == keys("0", "1", "3")
    assert UNBOUNDED.choose(snapshot(waiting=overdue, num_free_rows=1)).admit == keys("1")


def test_fixed_batches_begin_together_and_nobody_joins():
    fixed = FixedBatches()
    first = fixed.choose(snapshot(waiting=candidates(5, 6, 7), num_free_rows=2))
    assert (first.admit, first.prefill, first.decode) == (keys("0", "1"), key_of("0"), ())
    prefill = fixed.choose(snapshot(candidates(7), candidates(6), candidates(5), 0))
    assert (prefill.admit, prefill.decode) == ((), ())
    late = fixed.choose(snapshot(waiting=candidates(7), running=candidates(5), num_free_rows=1))
    assert (late.admit, late.decode) == ((), keys("0"))


def test_continuous_batches_take_whoever_comes():
    plan = Continuous().choose(snapshot(candidates(7), (), candidates(5), 1))
    assert (plan.admit, plan.prefill, plan.decode) == (keys("0"), key_of("0"), keys("0"))


def test_rounds_wait_while_a_prompt_is_prefilled_where_prompts_come_first():
    for scheduler in (Continuous(), SameLengthPool(2, 3)):
        first = PromptsFirst(scheduler)
        prefill = first.choose(snapshot(candidates(7), (), candidates(5), 1))
        assert (prefill.admit, prefill.prefill, prefill.decode) == (keys("0"), key_of("0"), ())
        assert first.choose(snapshot((), candidates(6), candidates(5), 0)).decode == ()
        assert first.choose(snapshot(candidates(7), (), candidates(5), 0)).decode == keys("0")


def test_every_method_has_its_parts():
    assert [*PARTS] == [*BATCHINGS]


def test_prompts_come_first_by_any_method_of_batching():
    for method in BATCHINGS:
        config = TargetConfig(batching=BatchingConfig(method=method, prompts="first"))
        assert make_scheduler(config).choose(snapshot((), candidates(6), candidates(5), 0)).decode == ()


class PoolMachine(RuleBasedStateMachine):
    """Sequences of any lengths grow unevenly, end and are followed by others: none waits longer than it may."""

    @initialize(
        batch_size=st.integers(1, 4),
        window=st.integers(1, 9),
        max_passed_over=st.integers(1, 5),
        min_group=st.integers(2, 4),
    )
    def begin(self, batch_size, window, max_passed_over, min_group):
        self.pool = SameLengthPool(batch_size, max_passed_over, min_group)
        self.batch_size, self.window_size, self.min_group = batch_size, window, min_group
        self.waiting, self.window, self.next_id = [], [], 0  # [id, length, passed over]
        self.max_passed_over = max_passed_over
        self.limit = max_passed_over - (-window // batch_size)
        self.longest = 0

    @rule(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4))
    def arrive(self, lengths):
        for length in lengths:
            self.waiting.append([key_of(str(self.next_id)), length, 0])
            self.next_id += 1

    @rule(gains=st.lists(st.integers(1, 5), min_size=4, max_size=4), ends=st.sets(st.integers(0, 3), max_size=1))
    def step(self, gains, ends):
        snapshot = ScheduleSnapshot(
            tuple(Candidate(name, length, wait) for name, length, wait in self.waiting),
            (),
            tuple(Candidate(name, length, wait) for name, length, wait in self.window),
            self.window_size - len(self.window),
        )
        plan = self.pool.choose(snapshot)
        size = min(self.batch_size, len(self.window))
        assert min(self.min_group, size) <= len(set(plan.decode)) == len(plan.decode) <= size
        lengths = {each.num_tokens for each in snapshot.running if each.key in plan.decode}
        assert len(plan.decode) == size or len(lengths) == 1, "only a group of one length is smaller than the batch"
        assert len(plan.admit) == min(len(self.waiting), self.window_size - len(self.window))
        overtaken, left_out = passed_over(snapshot, plan)
        by_name = {each[0]: each for each in (*self.waiting, *self.window)}
        for name in (*overtaken, *left_out):
            by_name[name][2] += 1
        for name in plan.decode:
            by_name[name][2] = 0
        for place, name in enumerate(plan.decode):
            by_name[name][1] += gains[place]
            if place in ends:
                self.window.remove(by_name[name])
        self.window += [[*each[:2], 0] for each in self.waiting if each[0] in plan.admit]
        self.waiting = [each for each in self.waiting if each[0] not in plan.admit]

    @invariant()
    def nobody_waits_longer_than_it_may(self):
        assert all(wait <= self.limit for _, _, wait in self.window)
        assert all(wait <= self.max_passed_over for _, _, wait in self.waiting)
        assert len(self.window) <= self.window_size


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_no_sequence_is_passed_over_longer_than_bound_and_turn = PoolMachine.TestCase


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5), st.integers(2, 4))
def test_the_largest_group_of_one_length_is_found_whenever_there_is_one(lengths, batch_size, min_group):
    chosen = [lengths[index] for index in decoded(SameLengthPool(batch_size, None, min_group), *lengths)]
    size = min(batch_size, len(lengths))
    largest = min(size, max(map(lengths.count, lengths)))
    is_group = largest >= min(size, min_group)
    assert (len(set(chosen)) == 1) == is_group
    assert len(chosen) == (largest if is_group else size)


def completion_steps(max_passed_over):
    """Steps from arrival to end of each of 40 requests, two a step: the first has a length that no other ever has."""
    pool, window, ended = SameLengthPool(2, max_passed_over), [], {}  # name -> [length, passed over, tokens]
    waiting = [[str(number), 1000 if number == 0 else 100, 0, 0, number // 2] for number in range(40)]
    for now in range(200):
        arrived = [each for each in waiting if each[4] <= now]
        snap = ScheduleSnapshot(
            tuple(Candidate(key_of(each[0]), each[1], each[2]) for each in arrived),
            (),
            tuple(Candidate(key_of(each[0]), each[1], each[2]) for each in window),
            8 - len(window),
        )
        plan = pool.choose(snap)
        late = {each for some in passed_over(snap, plan) for each in some}
        for each in window:
            is_in = key_of(each[0]) in plan.decode
            each[1], each[3] = each[1] + 4 * is_in, each[3] + 4 * is_in
            each[2] = 0 if is_in else each[2] + (key_of(each[0]) in late)
            if each[3] >= 8:
                ended[int(each[0])] = now - each[4]
        window = [each for each in window if each[3] < 8] + [each for each in arrived if key_of(each[0]) in plan.admit]
        waiting = [each for each in waiting if key_of(each[0]) not in plan.admit]
    return [ended[number] for number in range(40)]


def test_without_a_bound_the_slowest_request_waits_for_all_others_as_in_the_papers_table_3():
    bounded, unbounded = completion_steps(4), completion_steps(None)
    assert unbounded[0] == max(unbounded) >= 35, "until nobody else comes"
    assert bounded[0] <= 2 * (4 + 8 // 2) + 2, "two rounds, each within the bound"
