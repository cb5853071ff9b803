"""Answers whose grammars take long do not slow the others of a batch for long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from toy import VOCAB_SIZE, HashRunner, WordTokenizer

from starspec.config import TargetConfig
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.grammars.matcher import FittedDraft
from starspec.ids import RequestId
from starspec.policy.grammar_turns import FREE_S, SHARE
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import RequestSpec

FORWARD_S, MASK_S = 0.02, 0.01
NUM_DEAR, NUM_STEPS = 7, 400


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Grammar:
    """Allows everything, and takes its time. As GrammarMatcher."""

    has_ended, failure, complaint = False, "", ""

    def __init__(self, clock: Clock, mask_s: float) -> None:
        self._clock, self._mask_s, self._spent_s = clock, mask_s, 0.0

    def allowed(self, path: Sequence[int]) -> Tensor:
        self._clock.now_s += self._mask_s
        self._spent_s += self._mask_s
        return torch.ones(VOCAB_SIZE, dtype=torch.bool)

    def fit(self, tree: DraftTree, max_forced_depth: int, before: Sequence[int] = ()) -> FittedDraft:
        return FittedDraft(tree, tree.num_draft_tokens)

    def commit(self, token_id: int) -> None:
        pass

    def take_spent_s(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


def tokens_of(masks_s: Sequence[float | None]) -> tuple[Counter[str], float]:
    """The tokens of answers whose grammars take so long (None: it has none) in NUM_STEPS steps, and the time."""
    clock = Clock()
    settings = TargetConfig(max_num_seqs=len(masks_s))
    engine = TargetEngine(
        LocalVerifier(HashRunner(num_rows=len(masks_s), max_len=1000)),
        WordTokenizer(),
        NoDrafts(),
        settings,
        TargetStats(),
        clock,
    )
    spec = RequestSpec([1, 2], SamplingSpec(temperature=0.0), max_tokens=900)
    for number, mask_s in enumerate(masks_s):
        grammar = None if mask_s is None else Grammar(clock, mask_s)
        engine.submit(RequestId(str(number)), spec, grammar=grammar)  # type: ignore[arg-type]
    counted: Counter[str] = Counter()
    for _ in range(NUM_STEPS):
        clock.now_s += FORWARD_S
        for key, output in engine.step().items():
            counted[key.request_id] += len(output.token_ids)
    return counted, clock.now_s


def test_another_answer_of_the_batch_loses_no_more_than_the_share_of_its_time() -> None:
    counted, seconds = tokens_of([None, *[MASK_S] * NUM_DEAR])
    alone, alone_s = tokens_of([None])
    slower = (alone["0"] / alone_s) / (counted["0"] / seconds)
    assert 1 + SHARE / 2 < slower < 1.2
    assert min(counted[str(number)] for number in range(1, NUM_DEAR + 1)) > 5  # they go on


def test_without_others_nobody_waits() -> None:
    counted, _ = tokens_of([MASK_S] * 2)
    assert min(counted.values()) >= NUM_STEPS - len(counted) - 1


def test_usual_grammars_wait_for_nobody() -> None:
    counted, _ = tokens_of([None, *[FREE_S] * NUM_DEAR])
    assert min(counted.values()) >= NUM_STEPS - len(counted) - 1
