"""Drafts that a client gives: verified in one forward behind the prompt, whatever drafts otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from toy import VOCAB_SIZE, HashRunner, WordTokenizer, next_of

from starspec.config import BatchingConfig, TargetConfig
from starspec.engine.drafts import NgramDrafts, NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.errors import RequestError
from starspec.ids import RequestId
from starspec.policy.length.fixed import FixedLength
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.messages import DraftToVerify, EngineOutput, RequestSpec

PROMPT = [3, 1, 4, 1, 5, 9, 2]


def truth(num: int) -> list[int]:
    """The toy's own continuation of the prompt."""
    path = list(PROMPT)
    for _ in range(num):
        path.append(next_of(path))
    return path[len(PROMPT) :]


def spec_of(draft: DraftToVerify, **sampling: Any) -> RequestSpec:
    return RequestSpec(
        PROMPT, SamplingSpec(**{"temperature": 0.0} | sampling), max_tokens=16, num_draft_tokens=0, draft=draft
    )


def engine_of(drafts: Any = None, **config: Any) -> TargetEngine:
    stats = TargetStats()
    return TargetEngine(
        LocalVerifier(HashRunner()), WordTokenizer(), drafts or NoDrafts(), TargetConfig(**config), stats
    )


def verified(engine: TargetEngine, spec: RequestSpec) -> EngineOutput:
    engine.submit(RequestId("r"), spec)
    [output] = [output for _ in range(4) for output in engine.step().values()]
    assert not engine.has_work
    engine.check_integrity()
    return output


@pytest.mark.parametrize("num_right", [0, 1, 3, 5])
def test_a_chain_is_accepted_up_to_its_first_wrong_token(num_right: int) -> None:
    right = truth(6)
    wrong = (right[num_right] + 1) % VOCAB_SIZE
    draft = [*right[:num_right], wrong, *right[num_right + 1 : 5]][:5]
    output = verified(engine_of(), spec_of(DraftToVerify(draft)))
    assert output.verified is not None
    assert output.verified.accepted_nodes == list(range(num_right))
    assert output.token_ids == right[: num_right + 1]
    assert (output.finish_reason, output.verified.tops) == ("length", [])


def test_a_tree_is_verified_along_the_right_path_in_one_forward() -> None:
    first, second, third = truth(3)
    other = (first + 1) % VOCAB_SIZE
    draft = DraftToVerify([other, first, other, second], [-1, -1, 0, 1], num_top=2)
    engine = engine_of()
    output = verified(engine, spec_of(draft))
    assert output.verified is not None
    assert output.verified.accepted_nodes == [1, 3]
    assert output.token_ids == [first, second, third]
    after = [[], [other], [first], [other, other], [first, second]]  # behind the prompt and each node
    assert [tops[0][0] for tops in output.verified.tops] == [next_of([*PROMPT, *path]) for path in after]
    assert all(len(tops) == 2 and tops[0][1] > tops[1][1] for tops in output.verified.tops)
    assert engine.verifier.runner.num_forwards == 2  # the prompt and the tree
    assert engine.stats.acceptance.num_forwards == 0  # it says nothing about the target's own drafts


def test_no_draft_gives_the_next_token() -> None:
    output = verified(engine_of(), spec_of(DraftToVerify([], num_top=0)))
    assert output.verified is not None
    assert (output.token_ids, output.verified.accepted_nodes, output.verified.tops) == (truth(1), [], [[]])


def test_an_end_of_text_in_a_draft_ends_nothing() -> None:
    right = truth(4)
    spec = spec_of(DraftToVerify(right[:3]))
    engine = TargetEngine(
        LocalVerifier(HashRunner(eos_token_ids=(right[1],))), WordTokenizer(), NoDrafts(), TargetConfig(), TargetStats()
    )
    assert verified(engine, spec).token_ids == right


def test_given_drafts_and_others_share_a_round() -> None:
    drafts = NgramDrafts(FixedLength(DraftBudget.chain(3)), 1, 3, TargetStats())
    engine = engine_of(drafts)
    right = truth(12)
    engine.submit(RequestId("plain"), RequestSpec(PROMPT, SamplingSpec(temperature=0.0), max_tokens=12))
    engine.submit(RequestId("given"), spec_of(DraftToVerify(right[:4])))
    tokens: dict[str, list[int]] = {"plain": [], "given": []}
    while engine.has_work:
        for key, output in engine.step().items():
            tokens[key.request_id] += output.token_ids
    assert tokens == {"plain": right, "given": right[:5]}


@pytest.mark.parametrize("seed", range(8))
def test_a_drawn_token_is_the_one_that_a_completion_with_the_seed_draws(seed: int) -> None:
    engine = engine_of()
    drawn = SamplingSpec(temperature=3.0, seed=seed)
    engine.submit(RequestId("plain"), RequestSpec(PROMPT, drawn, max_tokens=4))
    right: list[int] = []
    while engine.has_work:
        right += [each for output in engine.step().values() for each in output.token_ids]
    output = verified(engine, spec_of(DraftToVerify(right[:3]), temperature=3.0, seed=seed))
    assert output.token_ids == right


def test_what_cannot_be_verified_is_refused() -> None:
    with pytest.raises(RequestError, match="draft_token_ids must be"):
        engine_of().submit(RequestId("r"), spec_of(DraftToVerify([VOCAB_SIZE])))
    cuts = engine_of(batching=BatchingConfig(method="rollback"))
    with pytest.raises(RequestError, match="batching 'rollback' cuts what it verifies"):
        cuts.submit(RequestId("r"), spec_of(DraftToVerify([1])))
    with pytest.raises(ValueError, match="parents must come first"):
        DraftToVerify([1, 2], [1, -1])
