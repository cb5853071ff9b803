import itertools

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from starspec.config import ModelConfig
from starspec.errors import CacheRangeError, ConfigError, ForwardAborted
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import check_pair, load_tokenizer
from starspec.models.runner import Segment
from starspec.models.synthetic.runner import SyntheticRunner
from starspec.models.synthetic.spec import NUM_SPECIAL_TOKENS, SyntheticSpec, parse_synthetic
from starspec.models.synthetic.tokenizer import word


class Clock:
    """Virtual seconds; sleeping is what moves them."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def make_runner(clock=None, num_rows=2, **spec):
    clock = clock or Clock()
    return SyntheticRunner(SyntheticSpec(**spec), num_rows=num_rows, max_model_len=256, clock=clock, sleep=clock.sleep)


def next_token(runner, token_ids):
    """The best token after a sequence, computed in one go in a row of its own."""
    row = runner.cache.lease()
    logits = runner.forward([Segment(row, token_ids, 1)]).logits
    runner.cache.free(row)
    return int(logits[0].argmax())


def decode(runner, prompt, num_tokens):
    row = runner.cache.lease()
    output = list(prompt)
    pending = list(prompt)
    for _ in range(num_tokens):
        logits = runner.forward([Segment(row, pending, 1)]).logits
        runner.cache.append(row, len(pending))
        pending = [int(logits[0].argmax())]
        output += pending
    runner.cache.free(row)
    return output[len(prompt) :]


def test_the_same_prefix_has_the_same_token_however_it_was_computed():
    runner = make_runner()
    output = decode(runner, [7, 8, 9], 30)
    assert [next_token(runner, [7, 8, 9, *output[:n]]) for n in range(30)] == output


def test_every_earlier_token_counts():
    runner = make_runner()
    prompt = list(range(10, 60))
    others = {next_token(runner, [*prompt[:i], 9, *prompt[i + 1 :]]) for i in range(50)}
    assert len(others) > 40  # of 508 tokens, 50 draws


def test_a_node_of_a_tree_has_the_token_of_its_path():
    runner = make_runner()
    row = runner.cache.lease()
    runner.forward([Segment(row, [5, 6], 0)])
    runner.cache.append(row, 2)
    logits = runner.forward([Segment(row, [11, 12, 13, 14], 4, (-1, 0, 0, 2))]).logits
    paths = ([11], [11, 12], [11, 13], [11, 13, 14])
    assert logits.argmax(-1).tolist() == [next_token(runner, [5, 6, *path]) for path in paths]


def test_the_draft_ranks_the_targets_token_as_often_as_it_was_told():
    target, draft = (
        make_runner(alpha=0.7, vocab=4096),
        make_runner(alpha=0.7, vocab=4096, role="draft"),
    )
    num_tokens = 4000
    path = [[4 + i % 4000] for i in range(num_tokens)]
    counts = [0] * 5
    row = target.cache.lease(), draft.cache.lease()
    for tokens in path:
        truth = int(target.forward([Segment(row[0], tokens, 1)]).logits[0].argmax())
        counts[draft.forward([Segment(row[1], tokens, 1)]).logits[0].topk(5).indices.tolist().index(truth)] += 1
    expected = (0.7, 0.15, 0.075, 0.0375, 0.0375)
    # 4 standard deviations of a share of 4000 draws are at most 0.029
    assert all(abs(count / num_tokens - share) < 0.03 for count, share in zip(counts, expected, strict=True))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_sure_draft_is_always_right_or_never(alpha):
    target, draft = make_runner(alpha=alpha), make_runner(alpha=alpha, role="draft")
    prefixes = [[4 + a, 4 + b] for a, b in itertools.product(range(10), range(10))]
    assert {next_token(target, each) == next_token(draft, each) for each in prefixes} == {alpha == 1.0}


def test_another_seed_is_another_language():
    assert decode(make_runner(seed=1), [5], 10) != decode(make_runner(seed=2), [5], 10)


def test_no_forward_prefers_a_special_token():
    assert min(decode(make_runner(vocab=64), [5], 200)) >= NUM_SPECIAL_TOKENS


def test_noise_of_sampling_does_not_reorder_the_candidates():
    """A sampled target must agree with its draft as often as a greedy one: the gaps are far above Gumbel noise."""
    runner = make_runner()
    top = runner.forward([Segment(runner.cache.lease(), [5], 1)]).logits[0].topk(6).values
    assert (top[:-1] - top[1:] >= 40).all()


def test_a_forward_takes_the_modelled_time():
    clock = Clock()
    runner = make_runner(clock, num_rows=4, step_ms=20, per_sequence=0.1, per_token=0.05)
    rows = [runner.cache.lease() for _ in range(4)]
    runner.forward([Segment(rows[0], [5], 1)])
    assert clock.now == pytest.approx(0.020)
    runner.forward([Segment(row, [5, 6, 7], 3) for row in rows])
    assert clock.now == pytest.approx(0.020 + 0.020 * (1 + 3 * 0.1 + 8 * 0.05))


def test_time_spent_computing_is_part_of_the_modelled_time():
    readings = iter((10.0, 10.004))
    slept = []
    runner = SyntheticRunner(SyntheticSpec(step_ms=5), clock=lambda: next(readings), sleep=slept.append)
    runner.forward([Segment(runner.cache.lease(), [5], 1)])
    assert slept == [pytest.approx(0.001)]


def test_a_forward_that_nobody_wants_any_more_ends_soon():
    clock = Clock()
    runner = make_runner(clock, step_ms=10)
    row = runner.cache.lease()
    with pytest.raises(ForwardAborted):
        runner.forward([Segment(row, [5], 1)], is_obsolete=lambda: clock.now >= 0.004)
    assert clock.now == pytest.approx(0.004)
    runner.forward([Segment(row, [5], 1)], is_obsolete=lambda: False)
    assert clock.now == pytest.approx(0.014)


def test_nothing_to_run_takes_no_time():
    clock = Clock()
    assert make_runner(clock).forward([]).logits.shape == (0, 512)
    assert clock.now == 0


def test_a_forward_that_does_not_fit_writes_nothing():
    runner = make_runner()
    row = runner.cache.lease()
    with pytest.raises(CacheRangeError):
        runner.forward([Segment(row, [5], 1), Segment(row, [6], 1)])
    with pytest.raises(CacheRangeError):
        runner.forward([Segment(row, [5] * 1000, 1)])
    assert not runner.cache.keys[0].any()


class CacheWalk(RuleBasedStateMachine):
    """However a sequence is appended, committed and rolled back, its next token is that of its tokens."""

    def __init__(self):
        super().__init__()
        self.runner, self.other = make_runner(vocab=64), make_runner(vocab=64)
        self.row = self.runner.cache.lease()
        self.token_ids = []

    @rule(new=st.lists(st.integers(4, 63), min_size=1, max_size=6), data=st.data())
    def chain(self, new, data):
        self.runner.forward([Segment(self.row, new, len(new))])
        kept = data.draw(st.integers(0, len(new)))
        self.runner.cache.append(self.row, kept)
        self.token_ids += new[:kept]

    @rule(new=st.lists(st.integers(4, 63), min_size=1, max_size=6), data=st.data())
    def tree(self, new, data):
        parents = [data.draw(st.integers(-1, index - 1)) for index in range(len(new))]
        self.runner.forward([Segment(self.row, new, len(new), parents)])
        node = data.draw(st.integers(0, len(new) - 1))
        path = []
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        self.runner.cache.commit(self.row, path)
        self.token_ids += [new[index] for index in path]

    @precondition(lambda self: self.token_ids)
    @rule(data=st.data())
    def roll_back(self, data):
        length = data.draw(st.integers(0, len(self.token_ids)))
        self.runner.cache.truncate(self.row, length)
        del self.token_ids[length:]

    @invariant()
    def agrees_with_a_fresh_row(self):
        assert self.runner.token_ids(self.row) == self.token_ids
        logits = self.runner.forward([Segment(self.row, [4], 1)]).logits
        assert int(logits[0].argmax()) == next_token(self.other, [*self.token_ids, 4])

    @precondition(lambda self: len(self.token_ids) > 200)
    @rule()
    def start_again(self):
        self.runner.cache.truncate(self.row, 0)
        self.token_ids.clear()


TestCacheWalk = CacheWalk.TestCase


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("synthetic:vocb=512", "unknown key 'vocb'; did you mean 'vocab'"),
        ("synthetic:vocab_size=512", "unknown key 'vocab_size'; did you mean 'vocab'"),
        (
            "synthetic:layers=2",
            "did you mean 'later'[?] known: alpha, later, per_sequence, per_token, role, seed, step_ms",
        ),
        ("synthetic:x=2", "unknown key 'x'; known: alpha, later"),
        ("synthetic:vocab=many", "Expected `int`"),
        ("synthetic:vocab=3", "vocab must be at least 64"),
        ("synthetic:vocab=999999999999", "vocab must be at most 1048576, got 999999999999"),
        ("synthetic:alpha=1.5", "alpha must be 0 to 1"),
        ("synthetic:step_ms=-1", "step_ms must not be negative"),
        ("synthetic:step_ms=nan", "step_ms must not be negative"),
        ("synthetic:role=hub", "Invalid enum value 'hub'"),
        ("synthetic:alpha", "needs exactly one value"),
        ("synthetic:alpha=0.1,alpha=0.2", "needs exactly one value"),
        ("other:vocab=512", "does not begin with 'synthetic:'"),
    ],
)
def test_an_error_in_the_name_is_one_sentence(name, why):
    with pytest.raises(ConfigError, match=why):
        parse_synthetic(name)


def test_a_synthetic_model_is_loaded_by_name_and_says_what_it_is():
    name = "synthetic:vocab=128,step_ms=0,role=draft"
    runner = load_runner(ModelConfig(model=name, num_rows=3, max_model_len=100))
    assert (runner.info.name, runner.info.vocab_size, runner.info.max_model_len) == (name, 128, 100)
    assert runner.cache.num_rows == 3
    assert runner.cache.num_bytes < 1 << 20


@pytest.mark.parametrize("changes", [{"quantization": "int4"}, {"device": "cuda"}])
def test_what_only_weights_have_is_refused(changes):
    with pytest.raises(ConfigError, match="has no weights"):
        load_runner(ModelConfig(model="synthetic:", **changes))


def test_text_goes_in_and_out():
    tokenizer = load_tokenizer("synthetic:vocab=512")
    token_ids = list(range(4, 512))
    assert tokenizer(tokenizer.decode(token_ids))["input_ids"] == token_ids
    assert tokenizer("zzz")["input_ids"] == [1]
    assert tokenizer.decode([4, 0, 5], skip_special_tokens=True) == f"{word(4)} {word(5)}"


def test_a_chat_becomes_tokens():
    tokenizer = load_tokenizer("synthetic:")
    chat = [{"role": "user", "content": word(10)}]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] == [2, 10, 3]


def test_every_token_has_a_word_of_its_own():
    assert len({word(token_id) for token_id in range(20_000)}) == 20_000


def test_twins_share_a_vocabulary():
    check_pair("synthetic:role=target,alpha=0.5", "synthetic:role=draft,step_ms=1")


def test_logits_are_float32_on_the_cpu():
    runner = make_runner()
    logits = runner.forward([Segment(runner.cache.lease(), [5, 6, 7], 2)]).logits
    assert (logits.dtype, tuple(logits.shape)) == (torch.float32, (2, 512))
