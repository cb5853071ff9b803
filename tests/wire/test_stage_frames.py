"""Frames between stages: bounds that a decoder checks."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.errors import PeerProtocolError
from starspec.quoting import MAX_TEXT_LEN
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree, Drawing, DrawnCandidates, TopTokens
from starspec.stages.frames import pack, unpack
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    Attach,
    CoordinatorToStage,
    JudgeOf,
    Judges,
    Landing,
    RowLaw,
    StageToCoordinator,
    Traversal,
    VerdictOf,
)

WINDOW = {"row": 0, "lease": 1, "epoch": 0, "base": 0, "num_tokens": 2, "num_logits": 2}
VERDICT = {"token_ids": [1, 2], "nodes": [0]}
JUDGE = {"window": 0, "prefix_len": 3, "token_ids": [1, 2, 3]}
INVALID_WINDOWS = {
    "more logits than tokens": {"num_logits": 3},
    "token ids of some tokens": {"token_ids": [1]},
    "a token outside the vocabulary": {"token_ids": [1, 100]},
    "a path that turns back": {"path": [1, 0]},
    "parents of some tokens": {"parents": [-1]},
    "a parent that comes later": {"parents": [-1, 1]},
    "no tokens": {"num_tokens": 0, "num_logits": 0},
    "a lease that nobody has": {"lease": 0},
    "a negative base": {"base": -1},
    "more logits than a draft has": {"num_tokens": 66, "num_logits": 66},
    "a tree longer than a draft": {"num_tokens": 66, "num_logits": 0, "parents": [-1] * 66},
}
INVALID_VERDICTS = {
    "a node without a token": {"nodes": [0, 1]},
    "nodes without tokens": {"token_ids": []},
    "tokens of a window that failed": {"error": "no such law"},
    "nodes that turn back": {"token_ids": [1, 2, 3], "nodes": [1, 0]},
    "a relaxed token that was not accepted": {"relaxed": [1]},
    "log-probabilities of some tokens": {"logprobs": [[-1.0, []]]},
    "a probability above 1": {"logprobs": [[0.5, []], [-1.0, []]]},
    "a token outside the vocabulary": {"token_ids": [1, 100]},
    "more relaxed tokens than a draft has": {"relaxed": [0] * 65},
    "a divergence that is no number": {"divergences": [float("nan")]},
    "an infinite divergence": {"divergences": [float("inf")]},
    "very many divergences": {"divergences": [0.0] * 66},
    "very many likely tokens": {"logprobs": [[-1.0, [[1, -1.0]] * 1001], [-1.0, []]]},
}
INVALID_WORK = {
    "a time that is no number": [float("nan"), 0.0, 0, 0],
    "a time without end": [0.0, float("inf"), 0, 0],
    "a negative time": [-1.0, 0.0, 0, 0],
    "more bytes than frames have": [0.0, 0.0, 2**29, 0],
}
INVALID_JUDGES = {
    "no root": {"token_ids": []},
    "a parent that comes later": {"parents": [-1, 1]},
    "siblings with one token": {"token_ids": [1, 2, 2], "parents": [-1, -1]},
    "drawn twice": {"drawn": [[-1, [2], [2], [1.0]], [-1, [2], [2], [1.0]]]},
    "a root outside the vocabulary": {"token_ids": [100]},
    "a stated token outside the vocabulary": {"tops": [[-1, [100], [-1.0]]]},
    "a law's token outside the vocabulary": {"law": {"sampling": {}, "token_ids": [100]}},
    "a prompt longer than all tokens": {"law": {"sampling": {}, "prompt_len": 2, "token_ids": [1]}},
    "a relaxation beyond all": {"law": {"sampling": {}, "relaxation": {"tau": 1.5}}},
}


def decode(union: object, message: dict[str, object]) -> object:
    return Decoder(union, vocab_size=100).decode(msgspec.msgpack.encode(message))


def traversal(*windows: dict[str, object]) -> dict[str, object]:
    return {"type": "traversal", "pipe_epoch": 1, "number": 1, "changes": [], "windows": list(windows)}


@pytest.mark.parametrize("change", INVALID_WINDOWS.values(), ids=INVALID_WINDOWS)
def test_an_impossible_window_is_refused(change: dict[str, object]) -> None:
    assert isinstance(decode(Traversal, traversal(WINDOW)), Traversal)
    with pytest.raises(PeerProtocolError):
        decode(Traversal, traversal({**WINDOW, **change}))


def test_two_windows_of_a_traversal_share_no_row() -> None:
    with pytest.raises(PeerProtocolError, match="share a row"):
        decode(Traversal, traversal(WINDOW, WINDOW))


@pytest.mark.parametrize("change", INVALID_VERDICTS.values(), ids=INVALID_VERDICTS)
def test_an_impossible_verdict_is_refused(change: dict[str, object]) -> None:
    landing = {"type": "landing", "pipe_epoch": 1, "number": 1}
    assert isinstance(decode(StageToCoordinator, {**landing, "verdicts": [VERDICT]}), Landing)
    with pytest.raises(PeerProtocolError):
        decode(StageToCoordinator, {**landing, "verdicts": [{**VERDICT, **change}]})


@pytest.mark.parametrize("work", INVALID_WORK.values(), ids=INVALID_WORK)
def test_an_impossible_account_of_a_stage_is_refused(work: list[float]) -> None:
    landing = {"type": "landing", "pipe_epoch": 1, "number": 1, "verdicts": []}
    assert isinstance(decode(StageToCoordinator, {**landing, "work": [[0.1, 0.1, 9, 8, 0, 2]]}), Landing)
    for each in ([[*work, 0, 2]], [[0.0, 0.0, 0, 0, 0, 2]] * 257):
        with pytest.raises(PeerProtocolError):
            decode(StageToCoordinator, {**landing, "work": each})


@pytest.mark.parametrize("endpoint", ["tcp://\x1b[2J:7", "tcp://a\n:7", "x" * 1025])
def test_an_endpoint_that_would_spoil_a_log_is_refused(endpoint: str) -> None:
    attach = {"type": "attach", "protocol_version": 2, "target_id": "t", "pipe_epoch": 1, "lease_s": 9.0}
    assert isinstance(decode(CoordinatorToStage, {**attach, "next": "tcp://[fe80::1%eth0]:7"}), Attach)
    with pytest.raises(PeerProtocolError):
        decode(CoordinatorToStage, {**attach, "next": endpoint})


@pytest.mark.parametrize("change", INVALID_JUDGES.values(), ids=INVALID_JUDGES)
def test_an_impossible_judge_is_refused(change: dict[str, object]) -> None:
    assert isinstance(decode(Judges, {"type": "judges", "judges": [JUDGE]}), Judges)
    with pytest.raises(PeerProtocolError):
        decode(Judges, {"type": "judges", "judges": [{**JUDGE, **change}]})


def test_judges_come_in_the_order_of_their_windows() -> None:
    with pytest.raises(PeerProtocolError, match="not in the order"):
        decode(Judges, {"type": "judges", "judges": [JUDGE, JUDGE]})


@st.composite
def trees(draw) -> DraftTree:
    size = draw(st.integers(0, 6))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    drafts = {}
    if size and draw(st.booleans()):
        drafts[-1] = DrawnCandidates(tuple(range(9)), tuple(range(9)), (1 / 9,) * 9, Drawing.WITHOUT_REPLACEMENT)
    tops = {-1: TopTokens((3, 4), (-0.5, -1.25))} if draw(st.booleans()) else {}
    logprobs = (-0.5,) * size if draw(st.booleans()) else ()
    return DraftTree(tuple(range(size)), parents, drafts, logprobs, tops)


@given(trees())
def test_every_tree_reaches_the_last_stage_as_it_was(tree: DraftTree) -> None:
    judge = JudgeOf.of(0, 5, 7, tree, RowLaw(SamplingSpec(seed=3), prompt_len=2, token_ids=[1, 2, 7]))
    [arrived] = Decoder[Judges](Judges).decode(encode(Judges([judge]))).judges
    assert (arrived.tree, arrived.tree.logprobs, arrived.tree.tops) == (tree, tree.logprobs, tree.tops)
    assert (arrived.root, arrived.law) == (7, judge.law)


def test_a_verdict_without_tokens_says_that_its_window_was_dropped_or_why_it_failed() -> None:
    landing = Landing(1, 2, [VerdictOf(), VerdictOf([5]), VerdictOf(error="no such law")])
    assert Decoder(StageToCoordinator).decode(encode(landing)) == landing


def test_why_a_window_failed_spoils_no_log() -> None:
    [verdict] = Decoder(StageToCoordinator).decode(encode(Landing(1, 2, [VerdictOf(error="\x1b[2J" * 500)]))).verdicts
    assert verdict.error.isprintable()
    assert len(verdict.error) <= MAX_TEXT_LEN


values = st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6), min_size=1, max_size=5)


@given(values)
def test_states_in_eight_bits_are_off_by_half_a_step_of_their_token_at_most(values: list[list[float]]) -> None:
    states = torch.tensor(values)
    packed = pack(states, "int8")
    assert len(packed) == len(values) * (6 + 4)
    off = (unpack(packed, len(values), 6, states, "int8") - states).abs()
    assert (off <= 0.5001 * states.abs().amax(1, keepdim=True) / 127 + 1e-30).all()


def test_states_in_eight_bits_come_back_in_the_dtype_of_the_model_and_zeros_stay() -> None:
    states = torch.tensor([[0.0, 0.0], [1.0, -127.0]], dtype=torch.bfloat16)
    back = unpack(pack(states, "int8"), 2, 2, states, "int8")
    assert back.dtype == torch.bfloat16
    assert torch.equal(back, states)
    assert unpack(b"", 0, 2, states, "int8").shape == (0, 2)
    with pytest.raises(PeerProtocolError, match="hidden states of 2 tokens have 12 bytes, not 8"):
        unpack(bytes(8), 2, 2, states, "int8")
