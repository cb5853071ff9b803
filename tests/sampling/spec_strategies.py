"""What hypothesis generates: rows of logits that break samplers, sampling parameters, and bad trees."""

from __future__ import annotations

from math import inf

import torch
from hypothesis import strategies as st
from torch import Tensor

from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import ROOT, DraftTree

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

levels = st.sampled_from([-inf, -20.0, -1.5, -1.0, 0.0, 0.5, 0.5625, 3.0])  # few values: ties are the rule
numbers = st.floats(-60, 60, width=32)
seeds = st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1))
positions = st.one_of(st.integers(0, 9), st.integers(0, 2**40))


@st.composite
def rows(draw: st.DrawFn, vocab_size: int) -> list[float]:
    """Logits of one row with at least one finite value."""
    kind = draw(st.sampled_from(["ties", "numbers", "one-hot", "flat"]))
    if kind == "flat":
        return [draw(numbers)] * vocab_size
    if kind == "one-hot":
        row = [-inf] * vocab_size
    else:
        row = draw(st.lists(levels if kind == "ties" else numbers, min_size=vocab_size, max_size=vocab_size))
    row[draw(st.integers(0, vocab_size - 1))] = draw(numbers)
    return row


@st.composite
def tensors(draw: st.DrawFn, num_rows: int, vocab_size: int) -> Tensor:
    """Logits [num_rows, vocab_size] in some dtype."""
    values = [draw(rows(vocab_size)) for _ in range(num_rows)]
    return torch.tensor(values, dtype=torch.float64).to(draw(st.sampled_from(DTYPES)))


@st.composite
def samplings(draw: st.DrawFn, vocab_size: int) -> SamplingSpec:
    """Any sampling parameters; each is off about half of the time. Some tokens are outside the vocabulary."""

    def maybe(default: float, values: st.SearchStrategy[float]) -> float:
        return draw(st.one_of(st.just(default), values))

    token_ids = st.integers(-1, vocab_size)
    return SamplingSpec(
        temperature=draw(st.sampled_from([0.0, 1e-3, 0.3, 0.7, 1.0, 1.7, 40.0])),
        top_k=draw(st.sampled_from([0, 0, 0, 1, 2, 3, vocab_size, 10**6])),
        top_p=maybe(1.0, st.one_of(st.sampled_from([0.5, 0.95, 0.25, 1e-9]), st.floats(0.01, 1.0))),
        min_p=maybe(0.0, st.one_of(st.sampled_from([0.05, 0.5, 1.0]), st.floats(0.0, 1.0))),
        repetition_penalty=maybe(1.0, st.sampled_from([0.5, 1.3, 2.0])),
        presence_penalty=maybe(0.0, st.sampled_from([-2.0, 0.5, 0.4])),
        frequency_penalty=maybe(0.0, st.sampled_from([-1.0, 0.25, 0.3])),
        logit_bias=draw(st.dictionaries(token_ids, st.sampled_from([-100.0, -1.0, 0.7, 100.0]), max_size=2)),
        seed=draw(seeds),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3])),
        end_token_ids=tuple(draw(st.lists(token_ids, max_size=min(2, vocab_size - 1)))),
        bad_words=tuple(draw(st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=2))),
    )


@st.composite
def trees(draw: st.DrawFn, vocab_size: int, max_nodes: int = 8) -> DraftTree:
    """Any tree over the vocabulary."""
    token_ids: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(ROOT, len(parents) - 1))
        siblings = {token for token, other in zip(token_ids, parents, strict=True) if other == parent}
        free = [token for token in range(vocab_size) if token not in siblings]
        if free:
            token_ids.append(draw(st.sampled_from(free)))
            parents.append(parent)
    return DraftTree(tuple(token_ids), tuple(parents))
