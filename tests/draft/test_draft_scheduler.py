"""The choice of a layer: first come first served, rows never overcommitted, nobody starved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starspec.draft.scheduler import LayerSnapshot, SessionView, TagKey, choose_layer
from starspec.ids import SessionId, Tag

CHUNK, BESIDE, WIDTH = 16, 12, 5


def view(
    tag: int,
    num_missing: int = 1,
    *,
    has_row: bool = True,
    last_used_s: float = 0.0,
    is_delayed: bool = False,
    target: str = "s",
) -> SessionView:
    return SessionView(TagKey(SessionId(target), Tag(tag)), has_row, num_missing, last_used_s, is_delayed)


def choose(waiting: list[SessionView], idle: list[SessionView] | None = None, num_free: int = 0) -> tuple[dict, list]:
    """The layer as {tag: tokens} and [evicted tags]."""
    layer = choose_layer(
        LayerSnapshot(
            waiting=tuple(waiting),
            idle=tuple(idle or ()),
            num_free_rows=num_free,
            prefill_chunk=CHUNK,
            chunk_beside=BESIDE,
            decode_width=WIDTH,
        )
    )
    return {each.key.tag: each.num_tokens for each in layer.portions}, [key.tag for key in layer.evicted]


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


def test_who_was_delayed_by_a_prompt_is_not_delayed_again() -> None:
    assert choose([view(1, 40), view(2), view(3, is_delayed=True)])[0] == {2: 1, 3: 1}
    assert choose([view(1, 40), view(2)])[0] == {1: BESIDE, 2: 1}
    assert choose([view(1, 40, is_delayed=True), view(2)])[0] == {1: BESIDE, 2: 1}, "its own prompt"


def test_who_was_delayed_and_can_not_grow_keeps_nobody_waiting() -> None:
    assert choose([view(1, 40), view(2, has_row=False, is_delayed=True)])[0] == {1: BESIDE}


def test_a_prompt_that_gets_no_tokens_takes_no_row() -> None:
    waiting = [view(1, 40), view(2, 40, has_row=False), view(3, 2, has_row=False)]
    assert choose(waiting, num_free=1) == ({1: BESIDE, 3: 2}, [])


def test_free_rows_go_before_anybody_is_evicted() -> None:
    assert choose([view(1, has_row=False)], [view(2)], num_free=1) == ({1: 1}, [])


def test_idle_sessions_are_evicted_in_the_order_of_their_last_use() -> None:
    idle = [view(7, last_used_s=3.0), view(8, last_used_s=1.0), view(9, last_used_s=2.0)]
    assert choose([view(1, has_row=False), view(2, has_row=False)], idle) == ({1: 1, 2: 1}, [8, 9])


def test_the_first_in_line_takes_the_row_of_the_last_if_nobody_is_idle() -> None:
    assert choose([view(1, has_row=False), view(2), view(3)]) == ({1: 1, 2: 1}, [3])


def test_the_last_in_line_waits_rather_than_take_an_earlier_ones_row() -> None:
    assert choose([view(1), view(2), view(3, has_row=False)]) == ({1: 1, 2: 1}, [])


@st.composite
def snapshots(draw: st.DrawFn) -> LayerSnapshot:
    views = [
        SessionView(
            TagKey(SessionId(draw(st.sampled_from("st"))), Tag(tag)),
            draw(st.booleans()),
            draw(st.integers(1, 40)),
            draw(st.floats(0, 9)),
            draw(st.booleans()),
        )
        for tag in range(draw(st.integers(1, 9)))
    ]
    num_waiting = draw(st.integers(1, len(views)))
    num_held = sum(each.has_row for each in views)
    return LayerSnapshot(
        waiting=tuple(views[:num_waiting]),
        idle=tuple(each for each in views[num_waiting:] if each.has_row),
        num_free_rows=draw(st.integers(0 if num_held else 1, 3)),
        prefill_chunk=CHUNK,
        chunk_beside=BESIDE,
        decode_width=WIDTH,
    )


@given(snapshots())
def test_every_layer_keeps_the_promises(snapshot: LayerSnapshot) -> None:
    layer = choose_layer(snapshot)
    by_key = {each.key: each for each in (*snapshot.waiting, *snapshot.idle)}
    grown = [portion.key for portion in layer.portions]
    new_rows = sum(not by_key[key].has_row for key in grown)

    num_held = sum(each.has_row for each in by_key.values())
    assert num_held or snapshot.num_free_rows
    is_first_a_prompt = snapshot.waiting[0].num_missing > WIDTH
    is_one_delayed = any(each.is_delayed and each.num_missing <= WIDTH for each in snapshot.waiting)
    assert grown
    assert snapshot.waiting[0].key in grown or (is_first_a_prompt and is_one_delayed), "the first in line grows"
    assert len(set(grown)) == len(grown)
    assert not set(grown) & set(layer.evicted)
    assert all(by_key[key].has_row for key in layer.evicted)
    assert new_rows <= snapshot.num_free_rows + len(layer.evicted)
    assert all(1 <= each.num_tokens <= by_key[each.key].num_missing for each in layer.portions)
    assert sum(each.num_tokens for each in layer.portions if each.is_prefill) <= snapshot.prefill_chunk
