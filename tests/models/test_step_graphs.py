"""Forwards of fixed shapes against freshly packed ones, and which of them are recorded."""

import gc
import random
import weakref

import pytest
import torch
from test_fused import TOLERANCE, make_runner
from tiny import MAX_LEN, VOCAB_SIZE, prefill, prompt_ids
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from starspec.errors import ForwardAborted
from starspec.models.attention.plan import AttentionMode
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import RowRange, plan_forwards
from starspec.models.graphs.cuda import StepGraphs
from starspec.models.graphs.step_batch import MAX_PACKED_ROWS, StepShape, num_slot_bytes, step_shape
from starspec.models.numerics import probe as numerics
from starspec.models.numerics.step_attention import steps_are_invariant
from starspec.models.runner import Segment

ANY = RowRange(lowest=1, highest=None)


class Tape(TorchDispatchMode):
    """Records what is computed."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.done.append((function, args, kwargs or {}, out))
        return out


class Recorder:
    """In place of CUDA: repeats a step with the same tensors, and overwrites its earlier output."""

    def __init__(self, *errors):
        self.num_recorded = self.num_run = 0
        self._errors = list(errors)

    def __call__(self, step):
        if self._errors:
            raise self._errors.pop(0)
        self.num_recorded += 1
        step()
        with Tape() as tape:
            output = step()

        def replay():
            self.num_run += 1
            for function, args, kwargs, out in tape.done:
                for before, now in zip(tree_leaves(out), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(before, torch.Tensor) and before.data_ptr() != now.data_ptr():
                        before.copy_(now)
            return output

        return replay


def make_graphed(recorder=None, **changes):
    runner = make_runner(**changes)
    runner.graphs = StepGraphs(runner.run, runner.cache, runner.num_heads, recorder or Recorder())
    return runner


def random_tree(rng, num_tokens):
    return [rng.randint(-1, token - 1) if token else -1 for token in range(num_tokens)]


def random_segments(runner, rng, rows):
    """What a round or a draft step may contain, and what must have been forwarded before."""
    segments, before = [], []
    for row in rng.sample(rows, rng.randint(1, len(rows))):
        num_tokens = rng.randint(1, 14)
        token_ids = [rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)]
        parents = random_tree(rng, num_tokens) if rng.random() < 0.6 else None
        num_forwarded = rng.randint(0, num_tokens - 1) if rng.random() < 0.5 else 0
        if num_forwarded:
            part = None if parents is None else parents[:num_forwarded]
            before.append(Segment(row, token_ids[:num_forwarded], num_forwarded, part))
        num_new = num_tokens - num_forwarded
        segments.append(Segment(row, token_ids, rng.randint(0, num_new), parents, num_forwarded))
    return before, segments


@pytest.mark.parametrize(
    ("family", "changes"), [("llama", {}), ("qwen3", {}), ("mistral", {"sliding_window": 7})], ids=str
)
def test_forwards_of_fixed_shapes_agree_with_those_packed_anew(family, changes):
    plain, graphed = make_runner(family, **changes), make_graphed(family=family, **changes)
    rng = random.Random(5)
    rows = [prefill(graphed, prompt_ids(length, seed=length)) for length in (1, 30, 62, 64, 120)]
    assert rows == [prefill(plain, prompt_ids(length, seed=length)) for length in (1, 30, 62, 64, 120)]
    for _ in range(40):
        before, segments = random_segments(plain, rng, rows)
        layers = rng.choice([(), (), (0, 2), (1,)])
        for runner in (plain, graphed):
            if before:
                runner.forward(before)
        expected, found = plain.forward(segments, layers), graphed.forward(segments, layers)
        torch.testing.assert_close(found.logits, expected.logits, **TOLERANCE)
        assert (found.features is None) == (expected.features is None)
        if expected.features is not None:
            torch.testing.assert_close(found.features, expected.features, **TOLERANCE)
        row = segments[0].row  # what was written counts, too
        path = [0] if segments[0].parents else list(range(len(segments[0].token_ids)))
        for runner in (plain, graphed):
            if runner.cache.lengths[row] + len(path) < MAX_LEN - 20:
                runner.cache.commit(row, path)
    for mine, theirs in zip(graphed.cache.keys, plain.cache.keys, strict=True):
        for row in rows:
            length = plain.cache.lengths[row]
            torch.testing.assert_close(mine[row, :, :length], theirs[row, :, :length], **TOLERANCE)
    assert graphed.graphs.num_graphs > 3


def test_nothing_is_written_but_into_the_slots_of_new_tokens():
    runner = make_graphed()
    rows = [prefill(runner, prompt_ids(length, seed=length)) for length in (30, 62, 5)]
    before = [keys.clone() for keys in runner.cache.keys]
    runner.forward([Segment(rows[0], prompt_ids(5, seed=1), 5), Segment(rows[1], prompt_ids(2, seed=2), 1)])
    for now, then in zip(runner.cache.keys, before, strict=True):
        changed = {(row, slot) for row, _, slot, _ in (now != then).nonzero().tolist()}
        assert changed == {*((rows[0], 30 + slot) for slot in range(5)), *((rows[1], 62 + slot) for slot in range(2))}


def test_a_shape_is_recorded_once():
    recorder = Recorder()
    runner = make_graphed(recorder)
    row = prefill(runner, prompt_ids(20))
    assert recorder.num_recorded == 1  # the prompt
    for num_tokens in (5, 6, 5):  # both are filled up to 6
        runner.forward([Segment(row, prompt_ids(num_tokens), num_tokens)])
        runner.cache.append(row, 1)
    assert (recorder.num_recorded, recorder.num_run) == (2, 4)
    runner.forward([Segment(row, prompt_ids(5), 5)], (1,))
    assert recorder.num_recorded == 3


def test_what_a_forward_gave_is_not_overwritten_by_the_next():
    runner = make_graphed()
    row = prefill(runner, prompt_ids(20))
    first = runner.forward([Segment(row, [1, 2], 2)], (0,))
    logits, features = first.logits.clone(), first.features.clone()
    runner.forward([Segment(row, [3, 4], 2)], (0,))
    assert torch.equal(first.logits, logits)
    assert torch.equal(first.features, features)


def test_wide_forwards_are_left_alone():
    runner = make_graphed()
    rows = [prefill(runner, prompt_ids(40, seed=seed)) for seed in range(6)]
    [pieces] = plan_forwards([Segment(row, prompt_ids(60), 60) for row in rows], ANY)
    assert len(rows) * 60 > MAX_PACKED_ROWS
    assert step_shape(pieces[:2], runner.cache, ANY) == StepShape(2, 64, 256, 128)
    assert step_shape(pieces, runner.cache, ANY) is None


def test_prompts_are_steps_where_no_bits_are_promised():
    recorder = Recorder()
    plain, runner = make_runner(), make_graphed(recorder)
    rows = [prefill(each, prompt_ids(200), chunk=150) for each in (plain, runner)]
    assert recorder.num_recorded == 2  # 150 tokens, and 50
    for mine, theirs in zip(runner.cache.keys, plain.cache.keys, strict=True):
        torch.testing.assert_close(mine[rows[1], :, :200], theirs[rows[0], :, :200], **TOLERANCE)
    runner.attention_mode, runner.rows = AttentionMode.IN_STEPS, RowRange(2, 64)
    prefill(runner, prompt_ids(100))
    assert recorder.num_recorded == 2


def test_shapes_come_in_steps_and_end_with_the_cache():
    runner = make_runner()
    rows = [prefill(runner, prompt_ids(10, seed=seed)) for seed in range(5)]
    [pieces] = plan_forwards([Segment(row, prompt_ids(3 + row), 1) for row in rows], ANY)
    assert step_shape(pieces, runner.cache, ANY) == StepShape(6, 8, 256, 6)
    [pieces] = plan_forwards([Segment(prefill(runner, prompt_ids(190)), [1], 1)], ANY)
    num_slots = runner.cache.keys[0].shape[2]
    assert num_slots > 256
    assert step_shape(pieces, runner.cache, ANY) == StepShape(1, 1, 256, 1)
    runner.cache.append(5, 66)
    [pieces] = plan_forwards([Segment(5, [1], 1)], ANY)
    assert step_shape(pieces, runner.cache, ANY) == StepShape(1, 1, num_slots, 1)


@pytest.mark.parametrize("bounds", [(2, 64), (7, 8), (2, 9), (5, 12)])
def test_steps_keep_within_the_row_counts_that_keep_bits(bounds):
    lowest, highest = bounds
    runner, rng = make_graphed(), random.Random(1)
    rows = [prefill(runner, prompt_ids(5, seed=seed)) for seed in range(8)]
    bounds = RowRange(lowest, highest)
    for _ in range(50):
        segments = [Segment(row, prompt_ids(rng.randint(1, 14)), 1) for row in rng.sample(rows, rng.randint(1, 8))]
        told = []
        for pieces in plan_forwards(segments, bounds):
            for share in runner.graphs.shares(pieces, bounds):
                shape = step_shape(share, runner.cache, bounds)
                assert lowest <= shape.num_packed_rows <= highest
                assert shape.num_rows >= len(share)
                assert shape.num_tokens >= max(piece.num_tokens for piece in share)
                told += [(piece.segment.row, token) for piece in share for token in range(piece.first, piece.last)]
        assert told == [(each.row, token) for each in segments for token in range(len(each.token_ids))]


def test_what_reads_too_much_for_one_step_is_cut(monkeypatch):
    runner = make_graphed()
    row = prefill(runner, prompt_ids(20))
    segment = Segment(row, prompt_ids(14), 14)
    plain = make_runner()
    prefill(plain, prompt_ids(20))
    monkeypatch.setattr("starspec.models.graphs.step_batch.MAX_READ_BYTES", 4 * 256 * num_slot_bytes(runner.cache))
    runner.attention_mode, runner.rows = AttentionMode.IN_STEPS, RowRange(1, 64)
    [pieces] = plan_forwards([segment], RowRange(1, 64))
    assert [(each.first, each.last) for [each] in runner.graphs.shares(pieces, RowRange(1, 64))] == [
        (0, 3), (3, 7), (7, 10), (10, 14)
    ]  # fmt: skip
    torch.testing.assert_close(runner.forward([segment]).logits, plain.forward([segment]).logits, **TOLERANCE)
    monkeypatch.setattr("starspec.models.graphs.step_batch.MAX_READ_BYTES", 1)  # a single token is read all the same
    assert [len(each) for each in runner.graphs.shares(pieces, RowRange(2, 64))] == [1] * 14


def test_forwards_in_steps_agree_with_those_packed_anew():
    plain, graphed = make_runner(), make_graphed()
    graphed.attention_mode, graphed.rows = AttentionMode.IN_STEPS, RowRange(7, 8)
    rng = random.Random(6)
    rows = [prefill(graphed, prompt_ids(length, seed=length)) for length in (1, 30, 62, 100)]
    assert rows == [prefill(plain, prompt_ids(length, seed=length)) for length in (1, 30, 62, 100)]
    for _ in range(30):
        before, segments = random_segments(plain, rng, rows)
        for runner in (plain, graphed):
            if before:
                runner.forward(before)
        expected, found = plain.forward(segments, (1,)), graphed.forward(segments, (1,))
        torch.testing.assert_close(found.logits, expected.logits, **TOLERANCE)
        torch.testing.assert_close(found.features, expected.features, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_of_steps_tells_whether_a_kernel_minds(dtype, monkeypatch):
    """A kernel that multiplies and sums in one order for each token keeps bits; one that minds its batch does not."""
    cache = make_runner(dtype=dtype).cache

    rule = ScoreRule(0.25)

    def attention(query, keys, values, *, attn_mask, is_causal, scale):
        assert not is_causal
        scores = (query.double().unsqueeze(-2) * keys.double().unsqueeze(2)).cumsum(-1)[..., -1]  # [R, H, G, S]
        weights = (scores * scale + attn_mask).exp().unsqueeze(-1)
        total = (weights * values.double().unsqueeze(2)).cumsum(3)[..., -1, :]
        return (total / weights.cumsum(3)[..., -1, :]).to(query.dtype)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", attention)
    assert steps_are_invariant(cache, 6, rule)
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda query, *others, **more: attention(query, *others, **more) * (1 + 0.01 * (len(query) > 24)),
    )
    assert not steps_are_invariant(cache, 6, rule)


def test_other_readings_are_not_recorded():
    recorder = Recorder()
    runner = make_graphed(recorder)
    runner.attention_mode = AttentionMode.BY_TOKEN
    row = prefill(runner, prompt_ids(20))
    runner.forward([Segment(row, [1], 1)])
    assert recorder.num_recorded == 0
    runner.with_fast_numerics().forward([Segment(row, [1], 1)])
    assert recorder.num_recorded == 1


def test_a_forward_that_nobody_wants_is_not_launched():
    recorder = Recorder()
    runner = make_graphed(recorder)
    row = prefill(runner, prompt_ids(20))
    with pytest.raises(ForwardAborted):
        runner.forward([Segment(row, [1], 1)], is_obsolete=lambda: True)
    assert recorder.num_recorded == 1  # the prompt
    runner.forward([Segment(row, [1], 1)], is_obsolete=lambda: False)
    assert recorder.num_recorded == 2


@pytest.mark.parametrize("bounds", [None, (2, 64)])
def test_what_cannot_be_recorded_is_run_all_the_same(bounds):
    recorder = Recorder(RuntimeError("operation not permitted when capturing"))
    plain, runner = make_runner(), make_graphed(recorder)
    if bounds:
        runner.attention_mode, runner.rows = AttentionMode.IN_STEPS, RowRange(*bounds)
    rows = [each.cache.lease() for each in (plain, runner)]
    for num_tokens in (2, 5, 2):
        told = [Segment(row, prompt_ids(num_tokens), num_tokens) for row in rows]
        found = runner.forward(told[1:]).logits
        torch.testing.assert_close(found, plain.forward(told[:1]).logits, **TOLERANCE)
    assert (runner.graphs.num_graphs, recorder.num_recorded) == (0, 0)  # not tried again


def test_a_shape_without_memory_keeps_no_other_from_being_recorded():
    recorder = Recorder(torch.OutOfMemoryError("CUDA out of memory"))
    runner = make_graphed(recorder)
    row = runner.cache.lease()
    for num_tokens in (5, 1, 5, 1):
        runner.forward([Segment(row, prompt_ids(num_tokens), num_tokens)])
    assert (recorder.num_recorded, recorder.num_run) == (1, 2)


def test_a_runner_that_is_dropped_is_gone_at_once():
    runner = make_graphed()
    runner.forward([Segment(runner.cache.lease(), [1, 2], 2)])
    gone = weakref.ref(runner)
    gc.disable()
    try:
        del runner
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("has_graphs", [True, False])
def test_where_there_are_graphs_steps_are_tried_first(has_graphs, monkeypatch):
    runner, tried = make_graphed() if has_graphs else make_runner(), []
    monkeypatch.setattr(numerics, "is_accelerator", lambda _device: True)
    monkeypatch.setattr(numerics, "invariant_rows", lambda *_: RowRange(2, 8))
    monkeypatch.setattr(numerics, "quickest_rows", lambda _linears, rows, _dtype: rows)
    monkeypatch.setattr(
        numerics, "attention_is_invariant", lambda _cache, _heads, mode, _rules: tried.append(mode) or True
    )
    monkeypatch.setattr(numerics, "model_is_invariant", lambda _: True)
    numerics.settle_numerics(runner)
    assert tried == [AttentionMode.IN_STEPS if has_graphs else AttentionMode.BY_RUN] == [runner.attention_mode]
    assert ("fixed shapes" in runner.numerics_report) == has_graphs


def test_the_probe_of_a_whole_model_runs_in_steps():
    recorder = Recorder()
    runner = make_graphed(recorder)
    runner.attention_mode, runner.rows = AttentionMode.IN_STEPS, RowRange(2, 64)
    numerics.model_is_invariant(runner)
    assert recorder.num_run > 10


def test_fast_numerics_have_graphs_of_their_own():
    runner = make_graphed()
    fast = runner.with_fast_numerics()
    row = prefill(runner, prompt_ids(20))
    del runner
    expected = make_runner()
    prefill(expected, prompt_ids(20))
    found = fast.forward([Segment(row, [1, 2], 2)]).logits
    torch.testing.assert_close(found, expected.forward([Segment(row, [1, 2], 2)]).logits, **TOLERANCE)


def test_so_many_shapes_are_recorded_and_no_more(monkeypatch):
    monkeypatch.setattr("starspec.models.graphs.cuda.MAX_GRAPHS", 1)
    recorder = Recorder()
    runner, plain = make_graphed(recorder), make_runner()
    row = plain.cache.lease()
    assert runner.cache.lease() == row
    for num_tokens in (1, 5, 1):
        segment = Segment(row, prompt_ids(num_tokens), num_tokens)
        torch.testing.assert_close(runner.forward([segment]).logits, plain.forward([segment]).logits, **TOLERANCE)
    assert (recorder.num_recorded, recorder.num_run) == (1, 2)
