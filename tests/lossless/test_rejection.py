"""Rejection sampling, levels 1 and 3 of docs/lossless.md: integrated exactly, and sampled many times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_rejection import draw_children, seed_after
from starspec.speculation.rejection import try_candidates
from starspec.speculation.tree import ROOT, DraftTree, Drawing, DrawnCandidates
from starspec.speculation.verify import verify_tree

WITH, WITHOUT = Drawing.WITH_REPLACEMENT, Drawing.WITHOUT_REPLACEMENT
by_drawing = pytest.mark.parametrize("drawing", [WITH, WITHOUT], ids=lambda each: each.value)
Distribution = tuple[float, ...]


def node_draft(q: Sequence[float], candidates: Sequence[int], drawing: Drawing) -> DrawnCandidates:
    """A dense distribution as the sparse one that crosses the wire."""
    support = [token_id for token_id, prob in enumerate(q) if prob > 0]
    return DrawnCandidates(tuple(candidates), tuple(support), tuple(q[token_id] for token_id in support), drawing)


def possible_candidates(q: Sequence[float], num: int, drawing: Drawing) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every way in which candidates can be drawn, with its probability: drawn one after the other."""
    for candidates in product([token_id for token_id, prob in enumerate(q) if prob > 0], repeat=num):
        if drawing is WITHOUT and len(set(candidates)) < num:
            continue
        chance, left = 1.0, 1.0
        for candidate in candidates:
            chance *= q[candidate] / left
            left -= q[candidate] if drawing is WITHOUT else 0.0
        yield candidates, chance


def outcomes(p: Sequence[float], draft: DrawnCandidates) -> Iterator[tuple[int, bool, float]]:
    """What a node's seed can say: the token, whether a candidate passed, how likely."""
    trial = try_candidates(torch.tensor(p, dtype=torch.float64), draft)
    left = 1.0
    for candidate, accept_prob in zip(draft.candidates, trial.accept_probs, strict=True):
        yield candidate, True, left * accept_prob
        left *= 1.0 - accept_prob
    for token_id, prob in enumerate(trial.residual.tolist()):
        yield token_id, False, left * prob


def emitted_distribution(p: Sequence[float], q: Sequence[float], num: int, drawing: Drawing) -> list[float]:
    """The distribution of the token at one node, integrated over drafts and seeds."""
    sampling = [0.0] * len(p)
    for candidates, chance in possible_candidates(q, num, drawing):
        for token_id, _, prob in outcomes(p, node_draft(q, candidates, drawing)):
            sampling[token_id] += chance * prob
    return sampling


@st.composite
def distributions(draw: st.DrawFn, size: int) -> Distribution:
    """Distributions over a small vocabulary, often with zeros, ties and only one token."""
    weights = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 7, 50]), min_size=size, max_size=size).filter(any))
    return tuple(weight / sum(weights) for weight in weights)


@by_drawing
@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.integers(1, 4), num=st.integers(1, 3))
def test_a_node_emits_the_targets_distribution_exactly(
    drawing: Drawing, data: st.DataObject, size: int, num: int
) -> None:
    p, q = data.draw(distributions(size)), data.draw(distributions(size))
    if drawing is WITHOUT:
        num = min(num, sum(prob > 0 for prob in q))
    assert emitted_distribution(p, q, num, drawing) == pytest.approx(p, abs=1e-12)


P = {  # the target's distribution after each path, over three tokens
    (): (0.5, 0.3, 0.2),
    (0,): (0.1, 0.9, 0.0),
    (1,): (0.4, 0.4, 0.2),
    (2,): (1.0, 0.0, 0.0),
}
Q = {(): (0.6, 0.3, 0.1), (0,): (0.7, 0.2, 0.1), (1,): (0.0, 0.5, 0.5), (2,): (0.3, 0.3, 0.4)}


@by_drawing
def test_two_steps_of_a_tree_emit_the_targets_distribution_of_two_tokens_exactly(drawing: Drawing) -> None:
    emitted: defaultdict[tuple[int, int], float] = defaultdict(float)
    for candidates, chance in possible_candidates(Q[()], 2, drawing):
        for token_id, is_accepted, prob in outcomes(P[()], node_draft(Q[()], candidates, drawing)):
            # a refused round ends here: the next one has no draft
            following = emitted_distribution(P[token_id,], Q[token_id,], 2, drawing) if is_accepted else P[token_id,]
            for next_id, next_prob in enumerate(following):
                emitted[token_id, next_id] += chance * prob * next_prob
    expected = {(one, two): P[()][one] * P[one,][two] for one, two in product(range(3), repeat=2)}
    assert {pair: emitted[pair] for pair in expected} == pytest.approx(expected, abs=1e-12)


def test_testing_candidates_by_the_rule_of_the_other_drawing_is_biased() -> None:
    p, q = (0.05, 0.45, 0.3, 0.2), (0.5, 0.3, 0.15, 0.05)
    sampling = [0.0] * 4
    for candidates, chance in possible_candidates(q, 2, WITHOUT):
        for token_id, _, prob in outcomes(p, node_draft(q, candidates, WITH)):
            sampling[token_id] += chance * prob
    assert max(abs(found - expected) for found, expected in zip(sampling, p, strict=True)) > 0.01


# ---------------------------------------------------------------- drawn, not integrated

FALSE_ALARM = 1e-4  # of each chi-square below; seeds are fixed, so they pass always or never
NUM_SEEDS = 3000
SAMPLING = {"temperature": 1.0}


def logits_of(probs: Sequence[float]) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


def drawn_below(path: tuple[int, ...], seed: int, position: int, drawing: Drawing) -> DrawnCandidates:
    """Two candidates; without replacement they are drawn as a hub draws them."""
    draw_seed = seed_after(seed, path)
    if drawing is WITHOUT:
        sampling = SamplingSpec(seed=seed, **SAMPLING)
        return draw_children(logits_of(Q[path]), sampling, position, None, num_tokens=2, draw_seed=draw_seed).draft
    probs, generator = torch.tensor(Q[path], dtype=torch.float64), torch.Generator().manual_seed(draw_seed)
    return node_draft(Q[path], probs.multinomial(2, replacement=True, generator=generator).tolist(), drawing)


def draw_two_tokens(seed: int, drawing: Drawing) -> tuple[int, int]:
    """A round with a tree of depth two; if it emitted only one token, a second round without a draft."""
    position = 7
    drafts: dict[int, DrawnCandidates] = {}
    tokens: list[int] = []
    parents: list[int] = []
    for node, path in _nodes(drafts, tokens, parents):
        drafts[node] = drawn_below(path, seed, position + len(path), drawing)
    tree = DraftTree(tuple(tokens), tuple(parents), drafts)
    paths = [(), *(_path(tree, node) for node in range(tree.num_draft_tokens))]
    logits = torch.stack([logits_of(P.get(path, (1.0, 0.0, 0.0))) for path in paths])
    sampling = SamplingSpec(seed=seed, **SAMPLING)
    emitted = list(verify_tree(tree, logits, sampling, position).token_ids)
    while len(emitted) < 2:
        logits = logits_of(P[tuple(emitted)]).unsqueeze(0)
        emitted += verify_tree(DraftTree(), logits, sampling, position + len(emitted)).token_ids
    return emitted[0], emitted[1]


def _nodes(
    drafts: dict[int, DrawnCandidates], tokens: list[int], parents: list[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The root and its children; whoever iterates says what was drawn below each."""
    yield ROOT, ()
    first = dict.fromkeys(drafts[ROOT].candidates)
    tokens += first
    parents += [ROOT] * len(first)
    for node, token_id in enumerate(first):
        yield node, (token_id,)
        children = dict.fromkeys(drafts[node].candidates)
        tokens += children
        parents += [node] * len(children)


def _path(tree: DraftTree, node: int) -> tuple[int, ...]:
    return () if node == ROOT else (*_path(tree, tree.parents[node]), tree.token_ids[node])


@by_drawing
def test_a_tree_that_was_really_drawn_emits_the_targets_distribution(drawing: Drawing) -> None:
    pairs = [draw_two_tokens(seed, drawing) for seed in range(NUM_SEEDS)]
    expected = {(one, two): P[()][one] * P[one,][two] for one, two in product(range(3), repeat=2)}
    assert all(expected[pair] > 0 for pair in pairs)
    cells = [pair for pair, prob in expected.items() if prob > 0]
    found = [pairs.count(pair) for pair in cells]
    p_value = float(stats.chisquare(found, [expected[pair] * NUM_SEEDS for pair in cells]).pvalue)
    assert p_value > FALSE_ALARM


def test_candidates_are_drawn_from_the_drafts_distribution() -> None:
    drawn = [drawn_below((), seed, 3, WITHOUT).candidates for seed in range(NUM_SEEDS)]
    expected = dict(possible_candidates(Q[()], 2, WITHOUT))
    found = [drawn.count(each) for each in expected]
    p_value = float(stats.chisquare(found, [chance * NUM_SEEDS for chance in expected.values()]).pvalue)
    assert sum(found) == NUM_SEEDS
    assert p_value > FALSE_ALARM
