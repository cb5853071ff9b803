"""The choice of a draft step: first come first served, rows never overcommitted, nobody starved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from starspec.ids import LinkId, Tag
from starspec.policy.draft_batch import DraftStepSnapshot, SequenceView, TagKey, choose_step, free_row

CHUNK, BESIDE, WIDTH = 16, 12, 5


def view(
    tag: int,
    num_missing: int = 1,
    *,
    has_row: bool = True,
    last_used_s: float = 0.0,
    is_delayed: bool = False,
    target: str = "s",
    next_block: bytes | None = None,
) -> SequenceView:
    key = TagKey(LinkId(target), Tag(tag))
    is_prefill = num_missing > WIDTH
    return SequenceView(key, has_row, num_missing, is_prefill, last_used_s, is_delayed, next_block=next_block)


def choose(waiting: list[SequenceView], idle: list[SequenceView] | None = None, num_free: int = 0) -> tuple[dict, list]:
    """The draft step as {tag: tokens} and [evicted tags]."""
    draft_step = choose_step(
        DraftStepSnapshot(
            waiting=tuple(waiting),
            idle=tuple(idle or ()),
            num_free_rows=num_free,
            prefill_chunk=CHUNK,
            chunk_beside=BESIDE,
        )
    )
    return {each.key.tag: each.num_tokens for each in draft_step.sequences}, [key.tag for key in draft_step.evicted]


def test_nobody_waits_so_nobody_grows() -> None:
    assert choose([], [view(1, 50)]) == ({}, [])


def test_all_who_wait_and_hold_rows_grow_together() -> None:
    assert choose([view(1), view(2, 2), view(3)]) == ({1: 1, 2: 2, 3: 1}, [])


def test_prompts_share_the_chunk_in_order_and_decoding_is_not_charged() -> None:
    waiting = [view(1, 10), view(2, WIDTH), view(3, 40), view(4, 40), view(5, 1)]
    assert choose(waiting)[0] == {1: 10, 2: WIDTH, 3: BESIDE - 10, 5: 1}
    assert choose([view(1, 10), view(3, 40), view(4, 40)])[0] == {1: 10, 3: CHUNK - 10}


def test_each_target_has_the_same_part_of_the_chunk() -> None:
    waiting = [view(1, 40), view(2, 40), view(3, 6, target="t"), view(4, 40, target="t")]
    assert choose(waiting)[0] == {1: CHUNK // 2, 3: 6, 4: CHUNK // 2 - 6}


def test_a_chunk_smaller_than_the_targets_goes_to_the_first_of_them() -> None:
    waiting = [view(tag, 40, target=f"t{tag}") for tag in range(CHUNK + 3)]
    assert choose(waiting)[0] == dict.fromkeys(range(CHUNK), 1)


def test_a_block_that_several_miss_is_prefilled_by_the_first_and_the_others_take_no_row() -> None:
    waiting = [view(tag, 6, has_row=False, next_block=name) for tag, name in enumerate([b"x", b"x", b"y", b"x", None])]
    assert choose(waiting, num_free=5)[0] == {0: 6, 2: 6, 4: CHUNK - 12}
    assert choose(waiting[1:], num_free=5)[0] == {1: 6, 2: 6, 4: CHUNK - 12}, "whoever is first"


def test_nobody_waits_for_one_that_gets_nothing_itself() -> None:
    greedy = [view(1, 40, next_block=b"y"), view(2, 40, next_block=b"x")]
    behind = view(3, 6, target="t", next_block=b"x")
    assert choose([*greedy, behind])[0] == {1: CHUNK // 2, 3: 6}, "the second's target has had its part"


def test_who_was_delayed_by_a_prompt_is_not_delayed_again() -> None:
    assert choose([view(1, 40), view(2), view(3, is_delayed=True)])[0] == {2: 1, 3: 1}
    assert choose([view(1, 40), view(2)])[0] == {1: BESIDE, 2: 1}
    assert choose([view(1, 40, is_delayed=True), view(2)])[0] == {1: BESIDE, 2: 1}, "its own prompt"


def test_a_target_has_no_more_decoding_sequences_than_its_share_and_prompts_have_their_chunk() -> None:
    waiting = (view(1), view(2), view(3), view(4, 40), view(5, target="t"), view(6, target="t"))
    snapshot = DraftStepSnapshot(
        waiting=waiting, idle=(), num_free_rows=0, prefill_chunk=CHUNK, chunk_beside=BESIDE, most={LinkId("s"): 2}
    )
    chosen = {each.key.tag: each.num_tokens for each in choose_step(snapshot).sequences}
    assert chosen == {1: 1, 2: 1, 4: BESIDE, 5: 1, 6: 1}


def test_who_was_delayed_and_can_not_grow_keeps_nobody_waiting() -> None:
    assert choose([view(1, 40), view(2, has_row=False, is_delayed=True)])[0] == {1: BESIDE}


def test_a_prompt_that_gets_no_tokens_takes_no_row() -> None:
    waiting = [view(1, 40), view(2, 40, has_row=False), view(3, 2, has_row=False)]
    assert choose(waiting, num_free=1) == ({1: BESIDE, 3: 2}, [])


def test_free_rows_go_before_anybody_is_evicted() -> None:
    assert choose([view(1, has_row=False)], [view(2)], num_free=1) == ({1: 1}, [])


def test_idle_sequences_are_evicted_in_the_order_of_their_last_use() -> None:
    idle = [view(7, last_used_s=3.0), view(8, last_used_s=1.0), view(9, last_used_s=2.0)]
    assert choose([view(1, has_row=False), view(2, has_row=False)], idle) == ({1: 1, 2: 1}, [8, 9])


def test_the_first_in_line_takes_the_row_of_the_last_if_nobody_is_idle() -> None:
    assert choose([view(1, has_row=False), view(2), view(3)]) == ({1: 1, 2: 1}, [3])


def test_the_last_in_line_waits_rather_than_take_an_earlier_ones_row() -> None:
    assert choose([view(1), view(2), view(3, has_row=False)]) == ({1: 1, 2: 1}, [])


@st.composite
def snapshots(draw: st.DrawFn) -> DraftStepSnapshot:
    views = [
        SequenceView(
            TagKey(LinkId(draw(st.sampled_from("st"))), Tag(tag)),
            draw(st.booleans()),
            draw(st.integers(1, 40)),
            draw(st.booleans()),
            draw(st.floats(0, 9)),
            draw(st.booleans()),
        )
        for tag in range(draw(st.integers(1, 9)))
    ]
    num_waiting = draw(st.integers(1, len(views)))
    num_held = sum(each.has_row for each in views)
    return DraftStepSnapshot(
        waiting=tuple(views[:num_waiting]),
        idle=tuple(each for each in views[num_waiting:] if each.has_row),
        num_free_rows=draw(st.integers(0 if num_held else 1, 3)),
        prefill_chunk=CHUNK,
        chunk_beside=BESIDE,
    )


@given(snapshots())
def test_every_draft_step_keeps_the_promises(snapshot: DraftStepSnapshot) -> None:
    draft_step = choose_step(snapshot)
    by_key = {each.key: each for each in (*snapshot.waiting, *snapshot.idle)}
    grown = [scheduled.key for scheduled in draft_step.sequences]
    new_rows = sum(not by_key[key].has_row for key in grown)

    is_first_a_prompt = snapshot.waiting[0].is_prefill
    is_one_delayed = any(each.is_delayed and each.has_row and not each.is_prefill for each in snapshot.waiting)
    assert grown
    assert snapshot.waiting[0].key in grown or (is_first_a_prompt and is_one_delayed), "the first in line grows"
    assert len(set(grown)) == len(grown)
    assert not set(grown) & set(draft_step.evicted)
    assert all(by_key[key].has_row for key in draft_step.evicted)
    assert new_rows <= snapshot.num_free_rows + len(draft_step.evicted)
    assert all(1 <= each.num_tokens <= by_key[each.key].num_missing for each in draft_step.sequences)
    prefilled = Counter[LinkId]()  # prompt tokens of each target
    for scheduled in draft_step.sequences:
        prefilled[scheduled.key.link_id] += scheduled.num_tokens * scheduled.is_prefill
    num_prompts = len({each.key.link_id for each in snapshot.waiting if each.is_prefill})
    assert prefilled.total() <= snapshot.prefill_chunk
    assert all(num_tokens <= max(1, CHUNK // max(1, num_prompts)) for num_tokens in prefilled.values()), "equal parts"


@dataclass(slots=True)
class Request:
    """What a simulated sequence waits for: a prompt to be prefilled, or a chain of so many draft steps."""

    view: SequenceView
    num_left: int
    num_delays: int = 0  # draft steps for it that had a prompt in them

    def grow(self, num_tokens: int, is_delayed: bool) -> bool:
        """Whether it waits on."""
        self.num_left -= num_tokens
        self.num_delays += is_delayed
        num_missing = self.num_left if self.view.is_prefill else 1
        self.view = replace(self.view, num_missing=num_missing, is_delayed=self.num_delays > 0)
        return self.num_left > 0


@given(
    num_tokens=st.integers(WIDTH + 1, 40),
    num_before=st.integers(0, 4),
    chains=st.lists(st.integers(1, 3), max_size=4),
    pauses=st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
def test_a_prompt_is_prefilled_beside_other_targets_prompts_and_all_chains(
    num_tokens: int, num_before: int, chains: list[int], pauses: list[int]
) -> None:
    """Whoever decodes asks again and again; of four draft steps at least one is for prompts, half of it for this
    one.
    """
    prompt = Request(view(0, num_tokens, target="t"), num_tokens)
    order = [Request(view(tag, 40), 40) for tag in range(1, num_before + 1)] + [prompt]
    pausing = [(0, Request(view(10 + number), length)) for number, length in enumerate(chains)]
    pause = cycle(pauses)
    for now in range(30):
        order += [request for wakes, request in pausing if wakes <= now]
        pausing = [each for each in pausing if each[0] > now]
        if prompt not in order:
            return
        draft_step = choose_step(
            DraftStepSnapshot(
                waiting=tuple(request.view for request in order),
                idle=(),
                num_free_rows=0,
                prefill_chunk=CHUNK,
                chunk_beside=BESIDE,
            )
        )
        grown = {scheduled.key: scheduled.num_tokens for scheduled in draft_step.sequences}
        assert all(request.view.key in grown for request in order if not request.view.is_prefill)
        for request in list(order):
            if request.grow(grown.get(request.view.key, 0), draft_step.has_prefill):
                continue
            order.remove(request)
            if not request.view.is_prefill:
                assert request.num_delays <= 1
                length = chains[request.view.key.tag - 10]
                pausing.append((now + 1 + next(pause), Request(view(request.view.key.tag), length)))
    raise AssertionError("a prompt waits for ever")


def test_a_sequence_takes_the_free_row_that_ends_where_it_continues_else_the_one_free_for_longest() -> None:
    assert free_row({5: 7, 3: 4, 2: 4}, num_shared=4, longest_free=9) == 3
    assert free_row({5: 7}, num_shared=4, longest_free=9) == 9
    assert free_row({}, num_shared=0, longest_free=9) == 9
