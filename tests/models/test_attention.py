"""Every attention mode against float64, token by token and head by head."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from starspec.cache.ragged import KEY_BLOCK, RaggedCache
from starspec.models.attention.call import MIN_QUERY_ROWS, Form
from starspec.models.attention.plan import MAX_QUERY_ROWS, AttentionMode, joined, plan_calls
from starspec.models.attention.ragged import Placement, RaggedAttention
from starspec.models.attention.scores import ScoreRule, attended, causal_mask, windowed
from starspec.models.batch import RowRange, build_batch, plan_forwards
from starspec.models.runner import Segment

HEAD_DIM = 16
NUM_SLOTS = 3 * KEY_BLOCK


SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0, 1.5, -2.0])
RULES = {
    "plain": ScoreRule(0.3),
    "a narrow window": ScoreRule(0.3, window=2),
    "a window": ScoreRule(0.3, window=KEY_BLOCK + 7),
    "softcap": ScoreRule(0.3, softcap=0.7),
    "sinks": ScoreRule(0.3, sinks=SINKS),
    "everything": ScoreRule(0.3, window=5, softcap=0.7, sinks=SINKS),
}


def slow_attention(keys, values, query, visible, rule, head=0):
    """One head of one token: keys and values [S, D], query [D], visible a list of slots, ancestors first."""
    visible = visible[-rule.window :] if rule.window else visible
    scores = keys[visible] @ query * rule.scaling
    if rule.softcap:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    if rule.sinks is None:
        return scores.softmax(dim=0) @ values[visible]
    return torch.cat((scores, rule.sinks[head : head + 1])).softmax(dim=0)[:-1] @ values[visible]


def rule_for(name, num_heads):
    rule = RULES[name]
    return rule if rule.sinks is None else replace(rule, sinks=rule.sinks[:num_heads])


def make_cache(prefix_lens, num_kv_heads):
    cache = RaggedCache(1, len(prefix_lens), NUM_SLOTS, num_kv_heads, HEAD_DIM)
    generator = torch.Generator().manual_seed(0)
    for stored in (cache.keys[0], cache.values[0]):
        stored.copy_(torch.randn(stored.shape, generator=generator))
    for length in prefix_lens:
        cache.append(cache.lease(), length)
    return cache


def planned(row, first, prefix_len, tree, mode=AttentionMode.TOGETHER, *, group=1):
    """The calls of one whole segment outside of a prefill."""
    return plan_calls(
        row,
        first,
        prefix_len,
        parents=tree,
        new_tokens=range(len(tree)),
        is_prompt=False,
        mode=mode,
        group=group,
        like=torch.empty(0),
    )


@st.composite
def parents(draw, max_tokens=14):
    num_tokens = draw(st.integers(1, max_tokens))
    if draw(st.booleans()):
        return tuple(range(-1, num_tokens - 1))
    return (-1, *(draw(st.integers(0, token - 1)) for token in range(1, num_tokens)))


@pytest.fixture(params=[*AttentionMode, "as on an accelerator"])
def mode(request, monkeypatch):
    """The attention mode; also planned as for an accelerator, which the tests do not have."""
    if isinstance(request.param, AttentionMode):
        return request.param
    for module in ("attention.plan", "batch"):
        monkeypatch.setattr(f"starspec.models.{module}.is_accelerator", lambda device: True)
    return AttentionMode.FAST


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1), (1, 1)])
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trees=st.lists(st.tuples(st.integers(1, 2 * KEY_BLOCK), parents()), min_size=1, max_size=3),
    kind=st.sampled_from(list(RULES)),
)
def test_every_token_attends_its_prefix_and_its_ancestors_and_nothing_else(heads, mode, trees, kind):
    num_heads, num_kv_heads = heads
    rule = rule_for(kind, num_heads)
    cache = make_cache([length for length, _ in trees], num_kv_heads)
    segments = [Segment(row, [1] * len(tree), len(tree), tree) for row, (_, tree) in enumerate(trees)]
    num_tokens = sum(len(tree) for _, tree in trees)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(num_tokens, num_heads, HEAD_DIM, generator=generator)
    keys_values = torch.randn(num_tokens, 2, num_kv_heads, HEAD_DIM, generator=generator)
    [pieces] = plan_forwards(segments, RowRange(1, None))
    batch = build_batch(pieces, cache, RowRange(1, None), num_heads, mode)
    got = batch.attention(0, query, keys_values, rule).view(num_tokens, num_heads, HEAD_DIM)

    row_of = [(row, token) for row, (_, tree) in enumerate(trees) for token in range(len(tree))]
    for index, (row, token) in enumerate(row_of):
        prefix_len, tree = trees[row]
        path, node = [], token
        while node >= 0:
            path.append(prefix_len + node)
            node = tree[node]
        for head in range(num_heads):
            kv_head = head // (num_heads // num_kv_heads)
            keys, values = (stored[0][row, kv_head].double() for stored in (cache.keys, cache.values))
            visible = [*range(prefix_len), *reversed(path)]
            expected = slow_attention(keys, values, query[index, head].double(), visible, rule, head)
            # float32 sums of up to 142 slots
            torch.testing.assert_close(got[index, head].double(), expected, atol=1e-5, rtol=1e-4)
    # branches that were laid out are back where they were written
    first = 0
    for row, (prefix_len, tree) in enumerate(trees):
        [there] = cache.places(row, prefix_len, prefix_len + len(tree))
        assert torch.equal(there, keys_values[first : first + len(tree)])
        first += len(tree)


@pytest.mark.parametrize("rows", [(0, 1, 2, 3, 4), (1, 2), (3, 0, 4), (2,)])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("tree", [(-1,), (-1, 0, 1), (-1, 0, 0, 1, 2)])
def test_runs_of_several_rows_attend_in_one_call_what_each_attends_alone(rows, heads, tree):
    num_heads, num_kv_heads = heads
    prefix_lens = [3, KEY_BLOCK + 5, 1, KEY_BLOCK - 1, 40]
    cache = make_cache(prefix_lens, num_kv_heads)
    num_tokens = len(rows) * len(tree)
    calls = []
    for place, row in enumerate(rows):
        calls += plan_calls(
            row,
            place * len(tree),
            prefix_lens[row],
            parents=tree,
            new_tokens=range(len(tree)),
            is_prompt=False,
            mode=AttentionMode.FAST,
            group=num_heads // num_kv_heads,
            like=cache.keys[0],
        )
    together = joined(calls, are_calls_dear=True)
    assert [call.form for call in together] == [Form.BY_ROWS if len(rows) > 1 else Form.BY_RUN]
    query = torch.randn(num_tokens, num_heads, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    keys_values = torch.randn(num_tokens, 2, num_kv_heads, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    placements = [Placement(row, prefix_lens[row], len(tree)) for row in rows]
    expected, got = (
        RaggedAttention(cache, placements, each, num_rows=num_tokens, num_heads=num_heads)(
            0, query, keys_values, ScoreRule(0.3)
        )
        for each in (calls, together)
    )
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("prefix_len", "device", "num_slots"), [(5, "cpu", 7), (5, "meta", 64), (62, "meta", 64)])
def test_whole_blocks_are_read_on_accelerators_and_what_is_beyond_is_hidden(prefix_len, device, num_slots):
    [call] = plan_calls(
        0,
        0,
        prefix_len,
        parents=None,
        new_tokens=range(2),
        is_prompt=False,
        mode=AttentionMode.FAST,
        group=1,
        like=torch.empty(0, device=device),
    )
    assert call.num_slots == call.mask.shape[-1] == num_slots
    assert not call.mask[..., : prefix_len + 1].any()
    assert call.mask[..., prefix_len + 2 :].isneginf().all()


def test_runs_are_joined_with_neighbours_of_as_many_tokens_only():
    cache = make_cache([5, 9, 70, 3], 1)

    def plan(row, first, num_tokens, *, is_prompt=False):
        return plan_calls(
            row,
            first,
            cache.lengths[row],
            parents=None,
            new_tokens=range(num_tokens),
            is_prompt=is_prompt,
            mode=AttentionMode.FAST,
            group=1,
            like=cache.keys[0],
        )

    calls = [*plan(0, 0, 2), *plan(1, 2, 2), *plan(2, 4, 3), *plan(3, 7, 3, is_prompt=True)]
    assert [(call.form, call.rows, call.first, call.last) for call in joined(calls, are_calls_dear=True)] == [
        (Form.BY_ROWS, (0, 1), 0, 4),
        (Form.BY_RUN, (2,), 4, 7),
        (Form.BY_CHUNK, (3,), 7, 10),
    ]


@pytest.mark.parametrize(
    ("rows", "prefix_lens", "expected"),
    [
        ((0, 1, 2), (5, 9, 3), [((0, 1, 2), 0, 6)]),
        ((0, 2, 3), (5, 9, 3), [((0,), 0, 2), ((2, 3), 2, 6)]),  # keys of the others would have to be copied
        ((1, 0), (5, 9), [((1,), 0, 2), ((0,), 2, 4)]),
        ((0, 1, 2), (5, 9, 700), [((0, 1), 0, 4), ((2,), 4, 6)]),  # each would read 640 masked slots
        ((0, 1, 2), (700, 100, 100), [((0,), 0, 2), ((1, 2), 2, 6)]),
        ((0, 1), (700, 600), [((0, 1), 0, 4)]),
        (range(10), [5] * 10, [(tuple(range(8)), 0, 16), ((8, 9), 16, 20)]),  # more are not tried by the probe
    ],
)
def test_where_calls_are_cheap_only_neighbours_of_about_one_length_are_joined(rows, prefix_lens, expected):
    calls = []
    for place, (row, prefix_len) in enumerate(zip(rows, prefix_lens, strict=True)):
        calls += planned(row, 2 * place, prefix_len, (-1, 0))
    together = joined(calls, are_calls_dear=False)
    assert [(call.rows, call.first, call.last) for call in together] == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (
            AttentionMode.TOGETHER,
            [(Form.BY_RUN, (0,), 0, 1, 0), (Form.BY_RUN, (1,), 1, 3, 0), (Form.BY_BRANCHES, (1,), 3, 5, 2),
             (Form.BY_BRANCHES, (1,), 5, 7, 1), (Form.BY_BRANCHES, (2,), 8, 9, 1), (Form.BY_ROWS, (3, 4), 9, 11, 0)],
        ),
        (
            AttentionMode.BY_RUN,
            [(Form.BY_RUN, (0,), 0, 1, 0), (Form.BY_RUN, (1,), 1, 3, 0), (Form.BY_RUN, (1,), 3, 4, 1),
             (Form.BY_RUN, (1,), 4, 5, 1), (Form.BY_RUN, (1,), 5, 7, 1), (Form.BY_RUN, (2,), 8, 9, 1),
             (Form.BY_ROWS, (3, 4), 9, 11, 0)],
        ),
    ],
)  # fmt: skip
def test_branches_are_joined_with_others_of_their_row_alone(mode, expected):
    tree = (-1, 0, 0, 0, 0, 4)  # 0 1, then 2 and 3 in the slot of 1, then 4 5

    alone, pair = (-1,), (-1, -1)
    calls = planned(0, 0, 5, alone, mode) + planned(1, 1, 5, tree, mode) + planned(2, 7, 5, pair, mode)[1:]
    calls += planned(3, 9, 5, alone, mode) + planned(4, 10, 5, alone, mode)
    found = joined(calls, are_calls_dear=True)
    assert [(call.form, call.rows, call.first, call.last, len(call.branches)) for call in found] == expected


def test_no_more_of_the_prefix_is_copied_for_branches_than_lies_in_a_processors_caches():
    def joined_branches(prefix_len, num_branches):
        calls = planned(0, 0, prefix_len, (-1, *[0] * (1 + num_branches)))
        return [len(call.branches) for call in joined(calls, are_calls_dear=False)][1:]

    assert joined_branches(100, 6) == [6]
    assert joined_branches(100, 10) == [8, 2], "the probe tries no more"
    assert joined_branches(2500, 6) == [3, 3]
    assert joined_branches(9000, 2) == [1, 1]


@pytest.mark.parametrize("group", [1, 3, 4, 5, 6, 7, 12, 14])
@pytest.mark.parametrize("num_tokens", [1, 5, 7, 11, 13, 30])
def test_a_run_that_is_read_together_leaves_no_block_of_few_query_rows(group, num_tokens):
    calls = planned(0, 0, KEY_BLOCK - 3, tuple(range(-1, num_tokens - 1)), group=group)
    assert [token for call in calls for token in range(call.first, call.last)] == list(range(num_tokens))
    assert len(calls) <= 2
    for call in calls:
        assert call.mask.shape[2] % MAX_QUERY_ROWS not in range(1, MIN_QUERY_ROWS)


@pytest.mark.parametrize("group", [1, 4, 6, 7, 12, 40])
@pytest.mark.parametrize("num_tokens", [1, 5, 30])
def test_no_run_that_is_read_by_run_has_more_query_rows_than_one_block_of_the_kernel(group, num_tokens):
    cache = make_cache([KEY_BLOCK - 3], 1)
    calls = planned(0, 0, KEY_BLOCK - 3, tuple(range(-1, num_tokens - 1)), AttentionMode.BY_RUN, group=group)
    assert [token for call in calls for token in range(call.first, call.last)] == list(range(num_tokens))
    for call in calls:
        assert call.mask.shape[2] <= MAX_QUERY_ROWS or call.last == call.first + 1
    RaggedAttention(cache, [], calls, num_rows=num_tokens, num_heads=group)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("lengths", [(0, 90), (70, 20)])
def test_prompts_attend_within_the_rule(kind, lengths):
    prefix_len, num_tokens = lengths
    cache, rule = make_cache([prefix_len], 2), rule_for(kind, 6)
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(num_tokens, 6, HEAD_DIM, generator=generator)
    keys_values = torch.randn(num_tokens, 2, 2, HEAD_DIM, generator=generator)
    [pieces] = plan_forwards([Segment(0, [1] * num_tokens, 1)], RowRange(1, None))
    assert pieces[0].is_prompt
    batch = build_batch(pieces, cache, RowRange(1, None), 6, AttentionMode.TOGETHER)
    got = batch.attention(0, query, keys_values, rule).view(num_tokens, 6, HEAD_DIM)
    for token in range(num_tokens):
        for head in range(6):
            keys, values = (stored[0][0, head // 3].double() for stored in (cache.keys, cache.values))
            visible = [*range(prefix_len + token + 1)]
            expected = slow_attention(keys, values, query[token, head].double(), visible, rule, head)
            torch.testing.assert_close(got[token, head].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_blocks_of_hidden_slots_before_a_window_leave_no_trace(dtype):
    """Torch's kernel takes 512 slots at a time; the first two of these blocks are hidden completely."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(2, 3, num, 16, generator=generator).to(dtype) for num in (4, 1200, 1200))
    mask = torch.zeros(4, 1200, dtype=dtype)
    rule = ScoreRule(0.25, window=50)
    found = attended(query, keys, values, windowed(mask, 50), rule)
    expected = attended(query, keys[:, :, -50:], values[:, :, -50:], mask[:, -50:], rule)
    torch.testing.assert_close(found, expected)


def test_a_window_keeps_the_last_slots_that_a_token_sees():
    shown = torch.tensor([[1, 1, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]).bool()
    mask = torch.zeros(3, 8).masked_fill(~shown, float("-inf"))
    kept = (windowed(mask, 3) == 0).int().tolist()
    assert kept == [[0, 0, 0, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]
    assert (windowed(causal_mask(3, mask), 2) == 0).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
