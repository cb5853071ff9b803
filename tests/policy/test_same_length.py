"""ExSpec's scheduling: one length first, nobody for ever, and what fixed batches are."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from starspec.config import BATCHINGS, BatchingConfig, TargetConfig
from starspec.engine.batching import PARTS, make_scheduler
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


def test_a_group_that_does_not_fill_the_batch_is_realigned_with_others():
    assert decoded(SameLengthPool(3, 3), 9, 7, 7, 8) == [0, 1, 2]


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
        batch_size=st.integers(1, 4), window=st.integers(1, 9), max_passed_over=st.integers(1, 5), seed=st.randoms()
    )
    def begin(self, batch_size, window, max_passed_over, seed):
        self.pool = SameLengthPool(batch_size, max_passed_over)
        self.batch_size, self.window_size, self.seed = batch_size, window, seed
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
        assert len(set(plan.decode)) == len(plan.decode) == min(self.batch_size, len(self.window))
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


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5))
def test_a_full_group_of_one_length_is_found_whenever_there_is_one(lengths, batch_size):
    chosen = [lengths[index] for index in decoded(SameLengthPool(batch_size, None), *lengths)]
    size = min(batch_size, len(lengths))
    assert (len(set(chosen)) == 1) == any(lengths.count(length) >= size for length in lengths)
