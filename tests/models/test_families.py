"""Families whose attention is not Llama's: over starspec's cache they are what they are in transformers."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from families import FAMILIES, VOCAB_SIZE, make_family
from tiny import decode_greedily, generate, make_config, make_info, plain_logits, prefill, prompt_ids

from starspec import LLM, SamplingParams
from starspec.models.attention.plan import AttentionMode
from starspec.models.fused import FusedRunner, why_not_fused
from starspec.models.hf import TransformersRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.loading.config_json import cache_shape
from starspec.models.packed import PackedRunner
from starspec.models.padded import PaddedRunner
from starspec.models.runner import Segment
from starspec.stats import BatchStats

TOLERANCE = {"atol": 1e-4, "rtol": 1e-3}  # float32: only the order of sums differs
MAX_LEN = 100
TREE = (-1, 0, 0, 1, 1, 2)
PATHS = ((0, 1, 3), (0, 1, 4), (0, 2, 5))


def tokens(length, seed=0):
    return prompt_ids(length, seed, VOCAB_SIZE)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def plain(family):
    return make_family(family)


@pytest.fixture
def runner(family) -> PackedRunner:
    return TransformersRunner(make_family(family), make_config(num_rows=4), make_info(VOCAB_SIZE, MAX_LEN))


def test_the_config_tells_the_size_of_the_cache_before_weights_are_read(plain, runner):
    keys = runner.cache.keys
    assert cache_shape(plain.config) == (len(keys), keys[0].shape[1], keys[0].shape[3])


def test_greedy_decoding_is_that_of_generate(plain, runner):
    for length in (1, 40):
        ids = tokens(length, seed=length)
        assert decode_greedily(runner, ids, 30) == generate(plain, ids, 30)


@pytest.mark.parametrize("mode", [mode for mode in AttentionMode if mode is not AttentionMode.IN_STEPS])
def test_a_batch_of_prompts_chains_and_trees_agrees_with_each_path_alone(plain, runner, mode):
    runner.attention_mode = mode
    prefixes = [tokens(length, seed=length) for length in (3, 30, 62)]
    rows = [prefill(runner, ids) for ids in prefixes]
    nodes, prompt = tokens(len(TREE), seed=1), tokens(20, seed=2)
    segments = [
        Segment(rows[0], nodes[:1], 1),
        Segment(rows[1], nodes, len(nodes), TREE),
        Segment(rows[2], nodes[:4], 4),
        Segment(runner.cache.lease(), prompt, 1),
    ]
    one, tree, chain, last = torch.split(runner.forward(segments).logits, [1, len(nodes), 4, 1])
    torch.testing.assert_close(one, plain_logits(plain, prefixes[0] + nodes[:1])[-1:], **TOLERANCE)
    torch.testing.assert_close(chain, plain_logits(plain, prefixes[2] + nodes[:4])[-4:], **TOLERANCE)
    torch.testing.assert_close(last, plain_logits(plain, prompt)[-1:], **TOLERANCE)
    for path in PATHS:
        expected = plain_logits(plain, prefixes[1] + [nodes[node] for node in path])[-3:]
        torch.testing.assert_close(tree[list(path)], expected, **TOLERANCE)


def test_a_padded_rectangle_agrees_with_each_sequence_alone(plain, runner):
    padded = PaddedRunner(runner, BatchStats())
    prefixes = [tokens(length, seed=length) for length in (3, 30)]
    rows = []
    for ids in prefixes:
        rows.append(padded.cache.lease())
        padded.forward([Segment(rows[-1], ids, 0)])
        padded.cache.append(rows[-1], len(ids))
    nodes = tokens(len(TREE), seed=1)
    logits = padded.forward([Segment(rows[0], nodes[:2], 2), Segment(rows[1], nodes, len(nodes), TREE)]).logits
    torch.testing.assert_close(logits[:2], plain_logits(plain, prefixes[0] + nodes[:2])[-2:], **TOLERANCE)
    for path in PATHS:
        expected = plain_logits(plain, prefixes[1] + [nodes[node] for node in path])[-3:]
        torch.testing.assert_close(logits[2:][list(path)], expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["Mistral with a window", "Qwen2 with a window", "Llama with dynamic rotary"])
def test_the_fused_path_decodes_what_generate_does(name):
    plain = make_family(name)
    assert why_not_fused(plain.config) is None
    runner = FusedRunner(make_family(name), make_config(num_rows=1), make_info(VOCAB_SIZE, MAX_LEN), pack_dense)
    ids = tokens(40)
    assert decode_greedily(runner, ids, 30) == generate(plain, ids, 30)


def test_the_probe_tries_the_linears_and_nothing_else_that_has_a_matrix(plain, runner):
    """Embeddings, norms of queries and keys, routers and experts have matrices too, and are no linears."""
    linears = [each for each in plain.modules() if isinstance(each, torch.nn.Linear)]
    assert [each.in_features for each in runner.step_linears] == [each.in_features for each in linears]
    for tried, own in zip(runner.step_linears, linears, strict=True):
        x = torch.randn(3, own.in_features)
        torch.testing.assert_close(tried.call(x), own(x), **TOLERANCE)


PROMPTS = [tokens(30, seed=3), tokens(4, seed=4) * 6, tokens(1), tokens(24, seed=5)]
NUM_TOKENS = 14  # of an answer: more than a window, so that even the shortest context goes beyond it


@lru_cache
def own_answers(family):
    """What `generate` says to the prompts, for several tests."""
    plain = make_family(family)
    return [generate(plain, ids, NUM_TOKENS) for ids in PROMPTS]


def answers_of(folder, prompts, **options):
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    options = {"dtype": "float32", "max_model_len": MAX_LEN, "numerics": "fast", **options}
    with LLM(folder, **options) as llm:
        return [list(result.outputs[0].token_ids) for result in llm.generate(prompts, params)]


def test_drafts_change_no_token(family, plain, tmp_path, save_with_tokenizer):
    """From the folder, as users load it: n-grams, a draft that is the target itself, and its trees."""
    folder = str(save_with_tokenizer(plain, tmp_path))
    prompts = PROMPTS[:3]
    fixed = {"length": {"policy": "fixed"}}  # each round drafts, whether or not it pays
    speculative = (
        None,
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, **fixed},
        {"model": folder, "num_speculative_tokens": 3, **fixed},
        {"model": folder, "num_speculative_tokens": 3, "eagle_topk": 2, **fixed},
    )
    for config in speculative:
        assert answers_of(folder, prompts, speculative_config=config, max_num_seqs=2) == own_answers(family)[:3]


@pytest.mark.parametrize("method", ["eqspec", "exspec", "rollback"])
def test_padded_batches_change_no_token(family, method, plain, tmp_path, save_with_tokenizer):
    """With trees of a draft that is the target itself, so that rounds are long, and with contexts beyond windows."""
    folder = str(save_with_tokenizer(plain, tmp_path))
    speculative = {"model": folder, "num_speculative_tokens": 3, "eagle_topk": 2, "length": {"policy": "fixed"}}
    found = answers_of(folder, PROMPTS, speculative_config=speculative, batching=method, max_num_seqs=3)
    assert found == own_answers(family)
