"""A token gets the same bits alone, in a verified chain and in a mixed batch."""

import dataclasses
from operator import itemgetter

import pytest
import torch
import torch.nn.functional as F
from tiny import FAMILIES, make_config, make_info, make_model, prefill, prompt_ids

from starspec.cache.ragged import RaggedCache
from starspec.config import ModelConfig
from starspec.models.attention import bound_calls
from starspec.models.attention.call import MIN_QUERY_ROWS
from starspec.models.attention.plan import AttentionMode
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import RowRange
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.linear.dense import PrepackedLinear, pack_dense
from starspec.models.linear.interface import StepLinear
from starspec.models.linear.packer import make_packer
from starspec.models.linear.swapped import swap_linears
from starspec.models.loading.load import load_runner
from starspec.models.numerics import probe as numerics
from starspec.models.numerics import ragged_attention
from starspec.models.numerics.probe import settle_numerics
from starspec.models.numerics.ragged_attention import attention_is_invariant
from starspec.models.numerics.row_counts import MAX_ROWS, SURE_ROWS, invariant_rows
from starspec.models.runner import Segment

DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_runner(family="llama", dtype=torch.bfloat16, **changes):
    config = make_config(str(dtype).removeprefix("torch."), numerics="invariant")
    runner = FusedRunner(make_model(family, dtype, **changes), config, make_info(), pack_dense)
    settle_numerics(runner)
    return runner


def decode_singly(runner, row, tokens):
    """Logits of each token, decoded one by one; the row's length does not change."""
    length = runner.cache.lengths[row]
    logits = []
    for token in tokens:
        logits.append(runner.forward([Segment(row, [token], 1)]).logits)
        runner.cache.append(row, 1)
    runner.cache.truncate(row, length)
    return torch.cat(logits)


def assert_same_bits_however_batched(runner, prefix_lens, chain_len):
    vocab_size = runner.info.vocab_size
    rows = [prefill(runner, prompt_ids(length, length, vocab_size)) for length in prefix_lens]
    chains = [prompt_ids(chain_len, 1000 + length, vocab_size) for length in prefix_lens]
    alone = [decode_singly(runner, row, chain) for row, chain in zip(rows, chains, strict=True)]
    for row, chain, expected in zip(rows, chains, alone, strict=True):
        assert torch.equal(runner.forward([Segment(row, chain, chain_len)]).logits, expected)
    # a batch of mixed widths: chains of 1, 2, ... tokens side by side, then all whole
    widths = [1 + index % chain_len for index in range(len(rows))]
    mixed = [Segment(row, chain[:width], width) for row, chain, width in zip(rows, chains, widths, strict=True)]
    expected = torch.cat([logits[:width] for logits, width in zip(alone, widths, strict=True)])
    assert torch.equal(runner.forward(mixed).logits, expected)
    whole = [Segment(row, chain, chain_len) for row, chain in zip(rows, chains, strict=True)]
    assert torch.equal(runner.forward(whole).logits, torch.cat(alone))
    # those that lie side by side may be read together
    in_order = sorted(zip(rows, chains, alone, strict=True), key=itemgetter(0))
    got = runner.forward([Segment(row, chain, chain_len) for row, chain, _ in in_order]).logits
    assert torch.equal(got, torch.cat([expected for _, _, expected in in_order]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_has_the_same_bits_alone_in_a_chain_and_in_a_batch_of_eight(family, dtype, num_threads):
    runner = make_runner(family, dtype)
    assert runner.is_invariant, runner.numerics_report
    assert_same_bits_however_batched(runner, (1, 7, 30, 59, 62, 63, 64, 120), chain_len=7)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 1), (8, 4), (10, 2)])
def test_the_same_bits_for_any_grouping_of_heads(heads, num_threads):
    runner = make_runner(num_attention_heads=heads[0], num_key_value_heads=heads[1], hidden_size=80)
    assert runner.is_invariant, runner.numerics_report
    assert_same_bits_however_batched(runner, (1, 61, 62, 130), chain_len=5)


def test_hugging_face_modules_over_packed_linears_have_the_same_bits_too(num_threads):
    model, config = make_model(dtype=torch.bfloat16), make_config("bfloat16", numerics="invariant")
    swap_linears(model, make_packer(config, model.config.vocab_size))
    runner = TransformersRunner(model, config, make_info())
    settle_numerics(runner)
    assert runner.is_invariant, runner.numerics_report
    assert_same_bits_however_batched(runner, (1, 7, 30, 59, 62, 63, 64, 120), chain_len=7)


def test_a_verification_wider_than_any_forward_has_the_bits_of_decoding():
    runner = make_runner()
    tokens = prompt_ids(MAX_ROWS + 10)
    row = prefill(runner, prompt_ids(20))
    assert torch.equal(runner.forward([Segment(row, tokens, len(tokens))]).logits, decode_singly(runner, row, tokens))


def test_a_prompt_has_the_same_bits_alone_and_beside_others():
    runner, prompt = make_runner(), prompt_ids(40)
    row, other = prefill(runner, prompt_ids(3)), prefill(runner, prompt_ids(9))
    alone = runner.forward([Segment(row, prompt, 1)]).logits
    keys = runner.cache.keys[1][row].clone()
    together = runner.forward(
        [Segment(other, [4], 1), Segment(row, prompt, 1), Segment(runner.cache.lease(), [5], 1)]
    ).logits
    assert torch.equal(together[1:2], alone)
    assert torch.equal(runner.cache.keys[1][row], keys)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("heads", [(9, 3, 64), (12, 2, 128), (14, 2, 64), (1, 1, 64), (32, 8, 128)])
def test_attention_of_a_token_has_the_same_bits_alone_and_in_a_chain(heads, dtype, num_threads):
    """By token on any machine; in other modes where the probe finds that they preserve bits."""
    num_heads, num_kv_heads, head_dim = heads
    like = RaggedCache(1, 1, 1, num_kv_heads, head_dim, dtype=dtype)
    assert attention_is_invariant(like, num_heads, AttentionMode.BY_TOKEN)


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_a_wider_padding_that_is_quicker_is_told_of_and_changes_no_bit(monkeypatch, width):
    monkeypatch.setattr(numerics, "quickest_rows", lambda linears, rows, dtype: rows)
    narrow = make_runner()
    found = narrow.rows
    width = max(width, found.lowest)
    monkeypatch.setattr(numerics, "quickest_rows", lambda linears, rows, dtype: RowRange(width, rows.highest))
    padded = make_runner()
    assert padded.is_invariant
    assert padded.rows == RowRange(width, found.highest)
    assert (f"forwards are padded to {width} rows" in padded.numerics_report) == (width > found.lowest)
    tokens = prompt_ids(4)
    decoded = [decode_singly(runner, prefill(runner, prompt_ids(20)), tokens) for runner in (padded, narrow)]
    assert torch.equal(*decoded)
    assert_same_bits_however_batched(padded, (1, 30, 62, 64), chain_len=5)


def test_the_promise_is_tried_in_the_smallest_forwards_before_a_width_is_chosen(monkeypatch):
    monkeypatch.setattr(numerics, "quickest_rows", lambda linears, rows, dtype: RowRange(8, rows.highest))
    monkeypatch.setattr(numerics, "invariant_rows", lambda *args: RowRange(2, 16))
    tried = []
    monkeypatch.setattr(numerics, "model_is_invariant", lambda runner: not tried.append(runner.rows.lowest))
    assert make_runner().rows.lowest == 8
    assert set(tried) == {2}


class Moody:
    """A linear whose rounding depends on the number of rows."""

    def __init__(self, mood):
        self.mood = mood
        self.weight = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
        self.num_bytes = 0

    def __call__(self, x):
        # one small product a row: the same bits whatever the row count
        exact = torch.stack([self.weight.double() @ row for row in x.double()]).float()
        return exact * (1 + 1e-6 * self.mood(len(x)))


@pytest.mark.parametrize(
    ("mood", "expected"),
    [
        (lambda rows: 0, RowRange(2, MAX_ROWS)),
        (lambda rows: rows > 32, RowRange(2, 32)),
        (lambda rows: rows < 4, RowRange(4, MAX_ROWS)),
        (lambda rows: rows < 4 or rows == 17, RowRange(4, 16)),
        (lambda rows: rows, None),
    ],
)
def test_the_probe_finds_the_range_in_which_rounding_does_not_change(mood, expected):
    found = invariant_rows([StepLinear(Moody(mood), 16, 0)], torch.float32, torch.device("cpu"), probe_s=60.0)
    assert found == expected


def test_a_processor_that_is_slow_is_tried_as_far_as_time_allows_and_promised_no_more():
    linears = [
        StepLinear(Moody(mood), 16, shape) for shape, mood in enumerate((lambda rows: 0, lambda rows: rows > 11))
    ]
    assert invariant_rows(linears[:1], torch.float32, torch.device("cpu"), probe_s=0.0) == RowRange(2, SURE_ROWS)
    assert invariant_rows(linears, torch.float32, torch.device("cpu"), probe_s=0.0) == RowRange(2, 11)


def test_the_probe_intersects_the_ranges_of_all_linears():
    linears = [
        StepLinear(Moody(mood), 16, shape) for shape, mood in enumerate((lambda rows: rows < 5, lambda rows: rows > 20))
    ]
    assert invariant_rows(linears, torch.float32, torch.device("cpu"), probe_s=60.0) == RowRange(5, 20)


def test_sums_in_float32_are_compared_before_they_are_rounded():
    """Rounded to bfloat16, results that differ by a millionth are mostly the same."""

    class Subtle(PrepackedLinear):
        def __call__(self, x):
            return Moody(lambda rows: rows > 10)(x).to(x.dtype)

    subtle = StepLinear(Subtle(torch.randn(40, 16), None), 16, 0)
    rounded = StepLinear(lambda x: subtle.call(x), 16, 0)  # noqa: PLW0108 (what is no PrepackedLinear is asked as it is)
    dtype, device = torch.bfloat16, torch.device("cpu")
    assert invariant_rows([subtle], dtype, device, probe_s=60.0) == RowRange(2, 10)
    assert invariant_rows([rounded], dtype, device, probe_s=60.0) == RowRange(2, MAX_ROWS)


def test_linears_that_round_by_row_count_are_reported_and_nothing_is_promised():
    runner = make_runner(dtype=torch.float32)
    runner.rows, runner.attention_mode = RowRange(1, None), AttentionMode.FAST
    head = runner._head
    runner._head = lambda x: head(x) * (1 + 1e-6 * len(x))
    runner._head.num_bytes = head.num_bytes
    settle_numerics(runner)
    assert not runner.is_invariant
    assert runner.rows == RowRange(1, None)
    assert "the linears round differently" in runner.numerics_report


def test_layers_that_round_by_row_count_are_reported_though_every_linear_is_fine():
    runner = make_runner(dtype=torch.float32)
    runner.attention_mode = AttentionMode.FAST
    layer = runner.fused_layers[0]
    runner.fused_layers[0] = dataclasses.replace(layer, input_norm=lambda x: layer.input_norm(x) * (1 + 1e-5 * len(x)))
    settle_numerics(runner)
    assert not runner.is_invariant
    assert "the layers round differently" in runner.numerics_report
    runner.cache.check_integrity()
    assert runner.cache.num_free_rows == runner.cache.num_rows


@pytest.fixture
def kernels_that_round_by_query_rows(monkeypatch):
    """Attention whose last bits depend on how many query rows a call has, beyond those of one token."""
    attend = F.scaled_dot_product_attention

    def moody(query, *args, **kwargs):
        return attend(query, *args, **kwargs) * (1 + 1e-5 * max(0, query.shape[2] - MIN_QUERY_ROWS))

    monkeypatch.setattr(F, "scaled_dot_product_attention", moody)


@pytest.mark.usefixtures("kernels_that_round_by_query_rows")
def test_where_query_rows_change_bits_tokens_attend_one_by_one_and_the_promise_holds():
    runner = make_runner(dtype=torch.float32)
    assert runner.attention_mode is AttentionMode.BY_TOKEN
    assert "one by one" in runner.numerics_report
    assert_same_bits_however_batched(runner, (1, 30, 59, 62, 63, 64), chain_len=5)


def test_where_query_rows_do_not_change_bits_keys_are_read_once_a_run():
    runner = make_runner(dtype=torch.float32)
    assert runner.attention_mode in (AttentionMode.TOGETHER, AttentionMode.BY_RUN)
    assert "one by one" not in runner.numerics_report


@pytest.fixture
def kernels_that_round_by_slots(monkeypatch):
    """Attention whose last bits depend on how many keys a call reads, masked ones included."""
    attend = F.scaled_dot_product_attention

    def moody(query, keys, *args, **kwargs):
        return attend(query, keys, *args, **kwargs) * (1 + 1e-5 * (keys.shape[2] % 1000))

    monkeypatch.setattr(F, "scaled_dot_product_attention", moody)


@pytest.mark.usefixtures("kernels_that_round_by_slots")
def test_where_hidden_slots_change_bits_sequences_attend_one_by_one_and_the_promise_holds():
    runner = make_runner(dtype=torch.float32)
    assert runner.attention_mode is AttentionMode.BY_RUN
    assert_same_bits_however_batched(runner, (1, 30, 59, 62, 63, 64), chain_len=5)


def test_sequences_that_are_read_together_have_the_bits_that_each_has_alone(num_threads):
    runner = make_runner()
    is_said = "sequences of about one length attend together" in runner.numerics_report
    assert is_said == (runner.attention_mode is AttentionMode.TOGETHER)  # which this machine's kernels may not allow
    # all about as long, some in one key block and some in two
    assert_same_bits_however_batched(runner, (60, 90, 127, 128, 70, 125), chain_len=5)


@pytest.mark.parametrize(
    "is_moody",
    [
        lambda query: 9 * MIN_QUERY_ROWS <= query.shape[2] < 32 * MIN_QUERY_ROWS,  # runs of 9 to 31 tokens
        lambda query: query.shape[0] > 3,  # more than three sequences
        lambda query: torch.arange(len(query)) == 1,  # the second of them
    ],
    ids=["long runs", "many sequences", "the second sequence"],
)
def test_kernels_that_round_otherwise_for_some_of_what_is_read_together_are_found_out(monkeypatch, is_moody):
    attend = F.scaled_dot_product_attention

    def moody(query, *args, **kwargs):
        is_alone = len(query) == 2 and torch.equal(query[0], query[1])  # a token, computed twice
        mood = torch.as_tensor(is_moody(query), dtype=torch.float32).view(-1, 1, 1, 1)
        return attend(query, *args, **kwargs) * (1 + 1e-5 * mood * (not is_alone))

    monkeypatch.setattr(F, "scaled_dot_product_attention", moody)
    like = RaggedCache(1, 1, 1, 2, 32)
    # float32 kernels mind more slots, on some machines
    monkeypatch.setattr(ragged_attention, "PREFIX_LENS", (3, 60))
    monkeypatch.setattr(ragged_attention, "NEAR_BLOCK_ENDS", range(0))
    assert not attention_is_invariant(like, 8, AttentionMode.TOGETHER)


@pytest.mark.parametrize("odd_one", [128, 320, 1344])
def test_kernels_that_cut_a_sum_for_one_number_of_slots_are_found_out_behind_bfloat16(monkeypatch, odd_one):
    """They differ in float32's last bit, which one rounded output in thousands shows."""

    def cutting(query, key, value, attn_mask, scale, **_):
        weights = (query.double() @ key.double().transpose(-1, -2) * scale + attn_mask).softmax(-1)
        halves = [
            weights[..., part] @ value[..., part, :].double()
            for part in (slice(odd_one // 2), slice(odd_one // 2, None))
        ]
        is_cut = key.shape[2] == odd_one
        return (halves[0].float() + halves[1].float() if is_cut else (halves[0] + halves[1]).float()).to(query.dtype)

    monkeypatch.setattr(F, "scaled_dot_product_attention", cutting)
    like = RaggedCache(1, 1, 1, 1, 16, dtype=torch.bfloat16)
    assert attention_is_invariant(like, 2, AttentionMode.BY_RUN)
    assert not attention_is_invariant(like, 2, AttentionMode.TOGETHER)


@pytest.fixture
def few_prefixes(monkeypatch):
    monkeypatch.setattr(ragged_attention, "PREFIX_LENS", (3, 60, 300))
    monkeypatch.setattr(ragged_attention, "NEAR_BLOCK_ENDS", range(0))


@pytest.mark.parametrize("rule", [ScoreRule(0.2, window=20), ScoreRule(0.2, softcap=5.0)], ids=str)
def test_a_token_within_a_window_or_with_softcapped_scores_has_the_same_bits_in_a_chain(rule, few_prefixes):
    assert attention_is_invariant(RaggedCache(1, 1, 1, 2, 32), 8, AttentionMode.BY_TOKEN, [rule])


@pytest.mark.parametrize("odd", [ScoreRule(0.2, window=4096), ScoreRule(0.2, softcap=5.0)], ids=str)
def test_what_rounds_otherwise_in_some_layers_only_is_found_out(odd, few_prefixes, monkeypatch):
    attend = bound_calls.attended

    def moody(query, keys, values, mask, rule):
        is_odd = (rule.window, rule.softcap) != (None, None) and len(query) > 2  # several tokens
        return attend(query, keys, values, mask, rule) * (1 + 1e-4 * is_odd)

    monkeypatch.setattr(bound_calls, "attended", moody)
    like = RaggedCache(1, 1, 1, 2, 32)
    assert attention_is_invariant(like, 8, AttentionMode.BY_TOKEN, [ScoreRule(0.2)])
    assert not attention_is_invariant(like, 8, AttentionMode.BY_TOKEN, [ScoreRule(0.2), odd])


def test_sequences_that_cannot_attend_together_are_found_out_after_few_trials(monkeypatch):
    """As with Gemma 2 in bfloat16: only full layers show it soon, and only where many tokens of two sequences do."""
    trials = []

    def is_as_alone(trial, prefix_lens, num_tokens):
        trials.append(prefix_lens)
        return len(prefix_lens) == 1 or num_tokens < 26 or trial._rule.window is not None

    monkeypatch.setattr(ragged_attention._Trial, "is_as_alone", is_as_alone)
    rules = [ScoreRule(0.2, window=4096, softcap=50.0), ScoreRule(0.2, softcap=50.0)]
    assert not attention_is_invariant(RaggedCache(1, 1, 1, 2, 8), 4, AttentionMode.TOGETHER, rules)
    assert len(trials) < 10


def test_what_a_model_does_not_bear_together_is_tried_by_run(monkeypatch):
    monkeypatch.setattr(numerics, "attention_is_invariant", lambda *args: True)
    monkeypatch.setattr(
        numerics, "model_is_invariant", lambda runner: runner.attention_mode is not AttentionMode.TOGETHER
    )
    assert make_runner().attention_mode is AttentionMode.BY_RUN


def test_what_a_model_does_not_bear_by_run_is_tried_by_token(monkeypatch):
    monkeypatch.setattr(numerics, "model_is_invariant", lambda runner: runner.attention_mode is AttentionMode.BY_TOKEN)
    assert make_runner().attention_mode is AttentionMode.BY_TOKEN


def test_attention_that_rounds_by_batch_entries_is_reported_and_nothing_is_promised(monkeypatch):
    monkeypatch.setattr(numerics, "attention_is_invariant", lambda *args: False)
    runner = make_runner()
    assert not runner.is_invariant
    assert runner.rows == RowRange(1, None)
    assert "the attention round" in runner.numerics_report


def test_fast_numerics_neither_pad_nor_split():
    runner = FusedRunner(make_model(), make_config(numerics="fast"), make_info(), pack_dense)
    assert runner.rows == RowRange(1, None)
    assert not runner.is_invariant


@pytest.mark.model
def test_smollm2_gives_a_token_the_same_bits_alone_in_a_chain_and_in_a_batch_of_eight(smollm2, num_threads):
    runner = load_runner(ModelConfig(model=str(smollm2), max_model_len=256))
    assert runner.is_invariant, runner.numerics_report
    assert_same_bits_however_batched(runner, (1, 7, 30, 59, 62, 63, 64, 120), chain_len=4)
