"""A model that is cut into stages gives bit for bit the logits of the whole model, whatever is forwarded and kept."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stages import MAX_LEN, NUM_LAYERS, WITH_CODE_OF_THEIR_OWN, Chain, Whole, config_of, saved
from tiny import FAMILIES, prompt_ids

from starspec.errors import ConfigError, ModelError
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.loading.load import load_runner, load_stage
from starspec.models.runner import Segment

CUTS = [cut for num in (1, 2, 3) for cut in combinations(range(1, NUM_LAYERS), num)]
TREE = (-1, 0, 0, 1, 1, 2)
SMALL_VOCAB = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that saves a tiny model the first time it is asked for it. Returns: its folder."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp("deep") / "tiny")
        return made[name]

    return folder


def random_segments(data, rows, lengths):
    """New tokens for some of the rows: a part of a prompt, a chain or a tree."""
    segments = []
    for row in data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=len(rows), unique=True)):
        kind = data.draw(st.sampled_from(("prompt", "chain", "tree")))
        num = data.draw(st.integers(17, 30) if kind == "prompt" else st.integers(1, 7))
        num = min(num, MAX_LEN - lengths[row])
        parents = None
        if kind == "tree":
            parents = [-1, *(data.draw(st.integers(0, node)) for node in range(num - 1))]
        token_ids = data.draw(st.lists(st.integers(0, SMALL_VOCAB - 1), min_size=num, max_size=num))
        segments.append(Segment(row, token_ids, data.draw(st.integers(0, 1)) if kind == "prompt" else num, parents))
    return segments


def path_to(segment, node):
    """The path of the segment that ends in a token; () = nothing is accepted."""
    path = []
    while node >= 0:
        path.append(node)
        node = node - 1 if segment.parents is None else segment.parents[node]
    return tuple(reversed(path))


def live(data, models):
    """Lives of random sequences, the same in all models: what is forwarded gives the same logits everywhere."""
    rows, lengths = [], {}
    for _ in range(data.draw(st.integers(1, 6))):
        if not rows or (len(rows) < 3 and data.draw(st.booleans())):
            [row] = {each.lease() for each in models}
            rows.append(row)
            lengths[row] = 0
        full = [row for row in rows if lengths[row] > MAX_LEN - 40]
        for row in full:
            cut_off = data.draw(st.integers(0, lengths[row]))
            lengths[row] = cut_off
            for each in models:
                each.truncate(row, cut_off)
        segments = random_segments(data, rows, lengths)
        expected, *found = [each.forward(segments) for each in models]
        assert all(torch.equal(each, expected) for each in found)
        for segment in segments:
            path = path_to(segment, data.draw(st.integers(-1, len(segment.token_ids) - 1)))
            lengths[segment.row] += len(path)
            for each in models:
                each.commit(segment.row, path)
        if data.draw(st.integers(0, 4)) == 0:
            row = rows.pop()
            for each in models:
                each.free(row)


def check_lives(config, max_examples):
    models = [Whole.load(config), *(Chain.cut(config, *cut) for cut in CUTS)]

    @settings(max_examples=max_examples)
    @given(st.data())
    def lives(data):
        for each in models:
            each.empty()
        live(data, models)

    lives()
    return models


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_on_the_fast_path_give_the_bits_of_the_whole_model(family, folders):
    models = check_lives(config_of(folders(family)), 25)
    assert all(isinstance(runner, FusedRunner) for each in models for runner in each.runners)


@pytest.mark.parametrize("family", [*FAMILIES, *WITH_CODE_OF_THEIR_OWN])
def test_stages_of_unmodified_modules_give_the_bits_of_the_whole_model(family, folders):
    models = check_lives(config_of(folders(family), fused=False), 6)
    assert all(isinstance(runner, TransformersRunner) for each in models for runner in each.runners)
