"""Why several drafted paths are not tested one by one with fresh random numbers.

StarSD's Algorithm 2, as printed, tests each root-to-leaf path with its own uniforms and keeps the longest. Here its
distribution for one token is written out exactly, beside that of the walk over the same tree.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import ROOT, DraftTree
from starspec.speculation.verify import verify_tree

TARGET = (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10))
DRAFT = (Fraction(6, 10), Fraction(3, 10), Fraction(1, 10))


def printed_distribution(paths: tuple[int, ...]) -> list[Fraction]:
    """The distribution of the first token by Algorithm 2 at depth 1.

    Path n is accepted if r_n <= p(x_n), the first of the longest is kept, and if none is, one token comes from the
    residual max(0, p - q) (the listing emits nothing then; this is the reading that favours it).
    """
    sampling = [Fraction(0)] * 3
    all_refused = Fraction(1)
    for token_id in paths:
        sampling[token_id] += all_refused * TARGET[token_id]
        all_refused *= 1 - TARGET[token_id]
    residual = [max(Fraction(0), p - q) for p, q in zip(TARGET, DRAFT, strict=True)]
    return [each + all_refused * left / sum(residual) for each, left in zip(sampling, residual, strict=True)]


def test_the_printed_rule_does_not_keep_the_targets_distribution():
    assert printed_distribution((0, 1)) == [Fraction(50, 100), Fraction(15, 100), Fraction(35, 100)]
    assert printed_distribution((0, 1)) != list(TARGET)


def test_the_walk_over_the_same_paths_does():
    tree = DraftTree((0, 1), (ROOT, ROOT))
    logits = torch.tensor([[float(p) for p in TARGET]] * 3).log()
    num = 10_000
    firsts = [verify_tree(tree, logits, SamplingSpec(seed=seed), prefix_len=1).token_ids[0] for seed in range(num)]
    for token_id, prob in enumerate(map(float, TARGET)):
        # five standard deviations: a false alarm of 2e-6 over the three
        assert abs(firsts.count(token_id) / num - prob) < 5 * (prob * (1 - prob) / num) ** 0.5
