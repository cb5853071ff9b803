"""Level 1 of docs/lossless.md: whatever is drafted, each token is that of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import DTYPES, samplings, trees
from torch import Tensor

from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import next_token
from starspec.sampling.reference import splitmix64
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import reference
from starspec.speculation.propose_coupled import propose_token
from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree
from starspec.speculation.verify import verify_tree, verify_trees

V = 5
PROMPT = [0, 3]
NUM_TOKENS = 9

Draft = Callable[[list[int]], DraftTree]  # what is proposed after these tokens


class ToyTarget:
    """A model: a row of logits for every sequence of tokens, made of a hash. Ties are frequent."""

    def __init__(self, model_seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.model_seed = model_seed
        self.dtype = dtype

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """The row after these tokens, [V]."""
        state = reduce(splitmix64, token_ids, self.model_seed)
        return torch.tensor([splitmix64(state, i) % 9 / 2 for i in range(V)], dtype=self.dtype)

    def tree_logits(self, token_ids: Sequence[int], tree: DraftTree) -> Tensor:
        """The rows after the tokens and after each node of the tree, [N + 1, V]."""
        return torch.stack([self.logits([*token_ids, *path_to(tree, node)]) for node in range(ROOT, len(tree.parents))])


class ToyGrammar:
    """A grammar: a set of tokens that may follow an output, made of a hash. None of them may be empty."""

    def __init__(self, grammar_seed: int) -> None:
        self.grammar_seed = grammar_seed

    def after(self, output: Sequence[int]) -> set[int]:
        bits = reduce(splitmix64, output, self.grammar_seed)
        return {token_id for token_id in range(V) if bits >> token_id & 1} or {bits % V}

    def behind(self, output: Sequence[int]) -> ToyConstraint:
        return ToyConstraint(self, list(output))


class ToyConstraint(NamedTuple):
    grammar: ToyGrammar
    output: list[int]

    def allowed(self, path: Sequence[int]) -> Tensor:
        after = self.grammar.after([*self.output, *path])
        return torch.tensor([token_id in after for token_id in range(V)])


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [] if node == ROOT else [*path_to(tree, tree.parents[node]), tree.token_ids[node]]


grammars = st.none() | st.builds(ToyGrammar, st.integers(0, 99))


def decode_plainly(
    target: ToyTarget, sampling: SamplingSpec, num_tokens: int = NUM_TOKENS, grammar: ToyGrammar | None = None
) -> list[int]:
    output: list[int] = []
    while len(output) < num_tokens:
        token_ids = PROMPT + output
        allowed = None if grammar is None else grammar.behind(output).allowed([])
        counts = TokenCounts(PROMPT, output)
        output.append(next_token(target.logits(token_ids), sampling, len(token_ids), counts, allowed))
    return output


def decode_with_drafts(
    target: ToyTarget, sampling: SamplingSpec, draft: Draft, grammar: ToyGrammar | None = None
) -> list[int]:
    output: list[int] = []
    counts = TokenCounts(PROMPT)
    while len(output) < NUM_TOKENS:
        token_ids = PROMPT + output
        tree = draft(token_ids)
        constraint = None if grammar is None else grammar.behind(output)
        logits = target.tree_logits(token_ids, tree)
        result = verify_tree(tree, logits, sampling, len(token_ids), counts, constraint=constraint)
        assert result.num_accepted == len(result.token_ids) - 1
        assert path_to(tree, ([ROOT, *result.accepted_nodes])[-1]) == list(result.token_ids[:-1])
        output.extend(result.token_ids)
        counts.append(result.token_ids)
    return output[:NUM_TOKENS]


@given(
    data=st.data(),
    sampling=samplings(V),
    model_seed=st.integers(0, 99),
    dtype=st.sampled_from(DTYPES),
    grammar=grammars,
)
@settings(max_examples=150)
def test_any_drafts_under_any_sampling_parameters_and_grammar_emit_the_plain_tokens(
    data, sampling, model_seed, dtype, grammar
):
    target = ToyTarget(model_seed, dtype)
    emitted = decode_with_drafts(target, sampling, lambda _: data.draw(trees(V)), grammar)
    assert emitted == decode_plainly(target, sampling, grammar=grammar)


@given(
    sampling=samplings(V), model_seed=st.integers(0, 99), tree=trees(V), num_output=st.integers(0, 3), grammar=grammars
)
def test_a_result_is_the_references_own_walk(sampling, model_seed, tree, num_output, grammar):
    target = ToyTarget(model_seed)
    output = decode_plainly(target, sampling, num_output, grammar)
    logits = target.tree_logits(PROMPT + output, tree)
    prefix_len, counts = len(PROMPT + output), TokenCounts(PROMPT, output)
    constraint, after = (None, None) if grammar is None else (grammar.behind(output), grammar.after)
    result = verify_trees([tree], logits, [sampling], [prefix_len], [counts], constraints=[constraint])[0]
    assert list(result.token_ids) == reference.verify_tree(tree, logits.tolist(), sampling, PROMPT, output, after)
    assert verify_tree(tree, logits, sampling, prefix_len, counts, constraint=constraint) == result


SAMPLINGS = {
    "greedy": SamplingSpec(temperature=0.0),
    "greedy with penalties": SamplingSpec(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    "sampled": SamplingSpec(temperature=0.7, seed=3),
    "sampled, top-p": SamplingSpec(temperature=1.0, top_p=0.9, seed=4),
    "sampled, everything": SamplingSpec(
        temperature=1.2,
        top_k=4,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={1: 1.0},
        min_tokens=4,
        end_token_ids=(2,),
        seed=5,
    ),
}
by_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())


@by_sampling
def test_a_draft_that_is_always_wrong_costs_speed_and_no_token(sampling):
    target = ToyTarget(1)
    plain = decode_plainly(target, sampling, NUM_TOKENS + 5)

    def wrong(token_ids: list[int]) -> DraftTree:
        right = plain[len(token_ids) - len(PROMPT)]
        siblings = tuple(token_id for token_id in range(V) if token_id != right)
        return DraftTree(siblings, (ROOT,) * len(siblings))

    assert decode_with_drafts(target, sampling, wrong) == plain[:NUM_TOKENS]


@by_sampling
def test_a_draft_that_is_always_right_is_accepted_whole_and_yields_a_bonus_token(sampling):
    target = ToyTarget(1)
    plain = decode_plainly(target, sampling)
    tree = DraftTree.chain(plain[:-1])
    result = verify_tree(tree, target.tree_logits(PROMPT, tree), sampling, len(PROMPT), TokenCounts(PROMPT))
    assert list(result.token_ids) == plain


@by_sampling
def test_a_hub_that_runs_the_same_model_is_always_right(sampling):
    # the same logits, sampling parameters, seed and position: the guess is the draw (the vocabulary is smaller than 64)
    target = ToyTarget(2)
    output: list[int] = []
    for _ in range(NUM_TOKENS):
        token_ids = PROMPT + output
        counts = TokenCounts(PROMPT).with_path(output)
        output.append(propose_token(target.logits(token_ids), sampling, len(token_ids), counts))
    assert output == decode_plainly(target, sampling)


@given(data=st.data(), sampling=samplings(V), model_seed=st.integers(0, 99))
def test_no_draft_can_change_a_token_only_how_many_come(data, sampling, model_seed):
    target = ToyTarget(model_seed)
    one, other = (
        verify_tree(tree, target.tree_logits(PROMPT, tree), sampling, len(PROMPT), TokenCounts(PROMPT)).token_ids
        for tree in (data.draw(trees(V)), data.draw(trees(V)))
    )
    shared = min(len(one), len(other))
    assert one[:shared] == other[:shared]


@given(sampling=samplings(V), model_seed=st.integers(0, 99), tree=trees(V))
def test_what_the_target_thinks_of_refused_nodes_is_never_looked_at(sampling, model_seed, tree):
    target = ToyTarget(model_seed)
    logits = target.tree_logits(PROMPT, tree)
    result = verify_tree(tree, logits, sampling, len(PROMPT), TokenCounts(PROMPT))
    refused = [node + 1 for node in range(tree.num_draft_tokens) if node not in result.accepted_nodes]
    logits[refused] = torch.nan
    assert verify_tree(tree, logits, sampling, len(PROMPT), TokenCounts(PROMPT)) == result
    assert verify_trees([tree], logits, [sampling], [len(PROMPT)], [TokenCounts(PROMPT)]) == [result]


def test_another_seed_gives_another_text_and_the_same_seed_the_same():
    texts = [decode_plainly(ToyTarget(3), SamplingSpec(temperature=2.0, seed=seed), 20) for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_decoding_without_drafts_is_verification_of_empty_trees():
    sampling = SAMPLINGS["sampled, everything"]
    assert decode_with_drafts(ToyTarget(4), sampling, lambda _: EMPTY_TREE) == decode_plainly(ToyTarget(4), sampling)
