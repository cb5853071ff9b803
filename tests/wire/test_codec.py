"""Frames: what goes in comes out, and nothing else comes out."""

from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.config import MAX_STOP_LEN, MAX_TOP_K
from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.ids import Epoch, LinkId, PipeEpoch, RequestId, RowEpoch, RowLease, StageId, Tag, TargetId
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import MAX_SUPPORT, DraftTree, Drawing, DrawnCandidates
from starspec.stats import AcceptanceStats, HubStats, HubTargetStats, RequestStats, TargetStats
from starspec.wire import codec
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Alive,
    Ask,
    Attach,
    Attached,
    Beat,
    Close,
    CoordinatorToStage,
    Detach,
    Drawn,
    EngineOutput,
    Fault,
    Features,
    Gap,
    GatewayToTarget,
    Goodbye,
    HandshakeMessage,
    Hello,
    HubPublicReply,
    HubStatus,
    HubToTarget,
    Identify,
    Identity,
    JudgeOf,
    Judges,
    Landing,
    Message,
    Open,
    Outdated,
    Ping,
    Pong,
    Proposal,
    Refused,
    Rejected,
    Reopen,
    RequestSpec,
    Retract,
    RowChange,
    RowLaw,
    StageToCoordinator,
    StageToStage,
    StageToStageBefore,
    StageWork,
    Submit,
    TargetStatus,
    TargetToGateway,
    TargetToHub,
    TokenLogprob,
    Top,
    Traversal,
    Verdict,
    VerdictOf,
    Verified,
    Welcome,
    WindowHead,
)

SAMPLING = SamplingSpec(temperature=0.7, top_p=0.9, logit_bias={5: -1.5}, seed=2**62, end_token_ids=(2, 3))
WORK = StageWork(0.5, 0.25, 900, 700, 0, 2)
STAGE = StageId("0123456789abcdef")
HEAD = WindowHead(0, RowLease(1), RowEpoch(0), 4, 3, 3, (0, 2), (-1, 0, 0), [5, 6, 7])
LAW = RowLaw(SAMPLING, None, 2, 1, [1, 2])
STATS = TargetStats(acceptance=AcceptanceStats(num_drafts=3, num_accepted_tokens_per_pos=[3, 1]), num_rounds=4)
EVERY_MESSAGE: list[tuple[object, Message]] = [
    (HandshakeMessage, Hello(PROTOCOL_VERSION, TargetId("t"), 100, "f")),
    (HandshakeMessage, Ask(PROTOCOL_VERSION)),
    (HubPublicReply, Welcome(PROTOCOL_VERSION, LinkId("s"), 1234, "draft", 16, 10.0)),
    (HubPublicReply, Refused("full", "no room", 2.0)),
    (HubPublicReply, HubStatus("draft", HubStats(num_tags=2))),
    (TargetToHub, Open(Tag(1), Epoch(1), [1, 2, 3], 2, SAMPLING, 4)),
    (TargetToHub, Features(Tag(1), 7, 2, b"\x00\xff" * 6)),
    (TargetToHub, Verdict(Tag(1), Epoch(2), 3, [4, 5], 0)),
    (TargetToHub, Close(Tag(1), Epoch(3))),
    (TargetToHub, Ping(7)),
    (TargetToHub, Goodbye("done")),
    (HubToTarget, Proposal(Tag(1), Epoch(1), 3, [4, 5, 6], [-1, 0, 0], 0.001, 0.002)),
    (HubToTarget, Proposal(Tag(1), Epoch(1), 3, [])),
    (HubToTarget, Proposal(Tag(1), Epoch(1), 3, [4], logprobs=[-0.5], tops=[Top(-1, [4, 6], [-0.5, -1.0])])),
    (HubToTarget, Proposal(Tag(1), Epoch(1), 3, [4], drawn=[Drawn(-1, [4, 6], [4, 5, 6], [0.5, 0.25, 0.25])])),
    (HubToTarget, Reopen(Tag(1), Epoch(1))),
    (HubToTarget, Pong(7)),
    (HubToTarget, Fault("no")),
    (CoordinatorToStage, Attach(PROTOCOL_VERSION, TargetId("t"), PipeEpoch(1), 10.0)),
    (CoordinatorToStage, Beat(PipeEpoch(1))),
    (CoordinatorToStage, Retract(PipeEpoch(1), 2, RowLease(3), RowEpoch(1))),
    (CoordinatorToStage, Detach(PipeEpoch(1))),
    (
        StageToStage,
        Traversal(PipeEpoch(1), 1, [RowChange("lease", 0, RowLease(1))], [HEAD], (WORK,)),
    ),
    (StageToStage, Identify()),
    (StageToStageBefore, Identity(STAGE)),
    (StageToStage, Judges([JudgeOf(0, 3, [5, 6, 7], [-1, -1], law=LAW)])),
    (StageToCoordinator, Attached(PipeEpoch(1), 0, 2, 4, "f", 8, 100, STAGE, next_id=STAGE)),
    (StageToCoordinator, Outdated(PipeEpoch(4), STAGE)),
    (StageToCoordinator, Alive(PipeEpoch(1), 0.5)),
    (StageToCoordinator, Gap(PipeEpoch(1), 3, "no")),
    (StageToCoordinator, Landing(PipeEpoch(1), 3, [VerdictOf([6, 9], (0,), (0,), [(-0.5, [(6, -0.5)])] * 2, (0.25,))])),
    (GatewayToTarget, Submit(RequestId("r"), RequestSpec([1], SAMPLING, stop=("a",), logprobs=2))),
    (GatewayToTarget, Submit(RequestId("r"), RequestSpec([1], SAMPLING, grammar=GrammarSpec("regex", "a+")))),
    (GatewayToTarget, Abort(RequestId("r"))),
    (
        TargetToGateway,
        EngineOutput(RequestId("r"), [1], "x", [TokenLogprob(1, -0.5, [(1, -0.5)])], "stop", "a", RequestStats()),
    ),
    (TargetToGateway, Rejected(RequestId("r"), "no", "n")),
    (TargetToGateway, TargetStatus(TargetId("t"), "m", 10, 1, 2, 3, 4, True, STATS)),
]
ALL_DIRECTIONS = (
    HandshakeMessage,
    HubPublicReply,
    TargetToHub,
    HubToTarget,
    GatewayToTarget,
    TargetToGateway,
    CoordinatorToStage,
    StageToCoordinator,
    StageToStage,
    StageToStageBefore,
)


@pytest.mark.parametrize(("union", "message"), EVERY_MESSAGE, ids=lambda each: type(each).__name__)
def test_every_message_survives_the_wire(union: object, message: Message) -> None:
    assert Decoder(union).decode(encode(message)) == message


def test_every_message_class_is_listed_above() -> None:
    assert {type(message) for _, message in EVERY_MESSAGE} == set(Message.__subclasses__())


def test_an_unknown_field_is_ignored() -> None:
    frame = msgspec.msgpack.encode({"type": "pong", "sequence": 3, "colour": "blue"})
    assert Decoder(HubToTarget).decode(frame) == Pong(3)


@pytest.mark.parametrize(
    "stats",
    [
        {"acceptance": {"num_accepted_tokens_per_pos": [1] * 257}},
        {"lengths": {"num_by_length": [1] * 257}},
        {"lengths": {"num_by_reason": {str(each): 1 for each in range(257)}}},
        {"pipe": {"stages": [{"endpoint": "e"}] * 257}},
    ],
)
def test_a_status_that_lists_more_than_a_target_can_is_refused(stats: dict) -> None:
    status = msgspec.to_builtins(TargetStatus(TargetId("t"), "m", 10, 1, 2, 3, 4, True, STATS)) | {"stats": stats}
    with pytest.raises(PeerProtocolError, match="statistics list 257 values; 256 are allowed"):
        Decoder(TargetToGateway).decode(msgspec.msgpack.encode(status))


@pytest.mark.parametrize(
    "stats",
    [
        {"num_spec_tokens": 257},
        {"num_spec_tokens": 2**53},
        {"acceptance_histogram": [1] * 257},
        {"acceptance": {"num_accepted_tokens_per_pos": [1] * 257}},
    ],
)
def test_statistics_of_an_answer_that_no_answer_has_are_refused(stats: dict) -> None:
    output = msgspec.to_builtins(EngineOutput(RequestId("r"), [1], "x")) | {"stats": stats}
    with pytest.raises(PeerProtocolError, match="statistics list 257 values; 256 are allowed"):
        Decoder(TargetToGateway).decode(msgspec.msgpack.encode(output))


@pytest.mark.parametrize(
    "wrong", [{"status": 200}, {"status": 10**9}, {"retry_after_s": -1.0}, {"retry_after_s": 1e300}]
)
def test_a_refusal_that_http_does_not_have_is_none(wrong: dict) -> None:
    refusal = msgspec.to_builtins(Rejected(RequestId("r"), "no")) | wrong
    with pytest.raises(PeerProtocolError):
        Decoder(TargetToGateway).decode(msgspec.msgpack.encode(refusal))


def test_a_hubs_status_of_too_many_targets_is_refused() -> None:
    status = {"type": "hubstatus", "draft_name": "d", "stats": {}, "targets": {str(each): {} for each in range(1025)}}
    with pytest.raises(PeerProtocolError, match="a status lists 1025 targets; 1024 are allowed"):
        Decoder(HubPublicReply).decode(msgspec.msgpack.encode(status))


def test_names_in_a_status_are_readable() -> None:
    bad, good = "\x1b[2J" + "x" * 400, r"\x1b[2J" + "x" * 290 + "..."
    stats = {"lengths": {"num_by_reason": {bad: 1}}, "pipe": {"stages": [{"endpoint": bad}]}}
    status = msgspec.to_builtins(TargetStatus(TargetId(bad), "m", 10, 1, 2, 3, 4, True, STATS)) | {"stats": stats}
    target = Decoder(TargetToGateway).decode(msgspec.msgpack.encode(status))
    assert (target.target_id, [*target.stats.lengths.num_by_reason]) == (good, [good])
    assert target.stats.pipe.stages[0].endpoint == good
    hub = Decoder(HubPublicReply).decode(encode(HubStatus(bad, HubStats(), {TargetId(bad): HubTargetStats()})))
    assert (hub.draft_name, [*hub.targets]) == (good, [good])
    for model in (bad, "m" * 1025):
        with pytest.raises(PeerProtocolError, match="no model has this name"):
            Decoder(TargetToGateway).decode(msgspec.msgpack.encode(status | {"model": model}))


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_why_an_answer_failed_is_readable(reason: str) -> None:
    failed = EngineOutput(RequestId("r"), [], "", finish_reason=reason, stop_reason="\x1b[2J\n" + "x" * 900_000)
    told = Decoder(TargetToGateway).decode(encode(failed)).stop_reason
    assert len(told) == 300
    assert told.startswith(r"\x1b[2J\nxxx")
    refused = Rejected(RequestId("r"), "no", "p\n" * 5000)
    assert Decoder(TargetToGateway).decode(encode(refused)).param.isprintable()


def test_a_stop_string_that_no_request_has_is_refused() -> None:
    for length in (MAX_STOP_LEN, MAX_STOP_LEN + 1):
        frame = encode(EngineOutput(RequestId("r"), [1], "", finish_reason="stop", stop_reason="\n" * length))
        if length == MAX_STOP_LEN:
            assert Decoder(TargetToGateway).decode(frame).stop_reason == "\n" * length
        else:
            with pytest.raises(PeerProtocolError, match="a stop string of 10001 characters; 10000 are allowed"):
                Decoder(TargetToGateway).decode(frame)


@pytest.mark.parametrize("verified", [Verified([1] * 65), Verified([], [[]] * 66), Verified([], [[(1, -1.0)] * 1000])])
def test_what_is_said_of_a_draft_is_no_longer_than_a_draft(verified: Verified) -> None:
    with pytest.raises(PeerProtocolError, match="of length <="):
        Decoder(TargetToGateway).decode(encode(EngineOutput(RequestId("r"), [1], "x", verified=verified)))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_amounts_that_are_none_are_refused_in_all_statistics(wrong: float) -> None:
    target, hub, of_target, answer = TargetStats(), HubStats(), HubTargetStats(), RequestStats()
    target.t_v.value = target.batch.verify_s = hub.load = of_target.queue.total = answer.queue_s = wrong
    cases = [
        (TargetToGateway, TargetStatus(TargetId("t"), "m", 10, 1, 2, 3, 4, True, target)),
        (HubPublicReply, HubStatus("d", hub)),
        (HubPublicReply, HubStatus("d", HubStats(), {TargetId("t"): of_target})),
        (TargetToGateway, EngineOutput(RequestId("r"), [1], "x", stats=answer)),
    ]
    for union, message in cases:
        with pytest.raises(PeerProtocolError, match="is not a message: Expected `float`"):
            Decoder(union).decode(encode(message))


def test_numbers_that_json_cannot_carry_are_refused() -> None:
    stats = TargetStats(num_rounds=2**53 + 1)
    with pytest.raises(PeerProtocolError, match="is not a message: Expected `int`"):
        Decoder(TargetToGateway).decode(encode(TargetStatus(TargetId("t"), "m", 10, 1, 2, 3, 4, True, stats)))


def test_a_prompt_of_128k_ids_fits_in_a_frame() -> None:
    message = Open(Tag(1), Epoch(1), [151_000] * 131_072, 131_072, SAMPLING, 16)
    assert Decoder(TargetToHub).decode(encode(message)) == message


def test_a_message_larger_than_a_frame_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match=r"Goodbye of \d+ bytes is larger"):
        encode(Goodbye("x" * codec.MAX_FRAME_BYTES))


def test_a_frame_over_the_limit_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(PeerProtocolError, match="frame of 11 bytes: the limit is 10"):
        Decoder(HubToTarget, max_frame_bytes=10).decode(b"\xc1" * 11)  # 0xc1 starts no MessagePack value


def test_a_multipart_of_too_many_frames_is_refused() -> None:
    with pytest.raises(PeerProtocolError, match="1025 frames in one multipart: the limit is 1024"):
        Decoder(HubToTarget).decode_all([encode(Pong(1))] * (codec.MAX_MESSAGES + 1))


def test_a_multipart_is_decoded_whole_or_not_at_all() -> None:
    frames = [encode(Pong(1)), encode(Pong(2))]
    assert Decoder(HubToTarget).decode_all(frames) == [Pong(1), Pong(2)]
    with pytest.raises(PeerProtocolError):
        Decoder(HubToTarget).decode_all([*frames, b""])


PROPOSAL = {"type": "proposal", "tag": 1, "epoch": 1, "prefix_len": 1, "token_ids": [1, 2]}
OPEN = {"type": "open", "tag": 1, "epoch": 1, "token_ids": [1], "prompt_len": 1, "sampling": {}, "num_draft_tokens": 1}
DRAWN = [-1, [1], [1, 9], [0.75, 0.25]]  # node, candidates, token_ids, probs
VERDICT = {"type": "verdict", "tag": 1, "epoch": 2, "base_len": 1, "token_ids": [1], "num_draft_tokens": 0}
INVALID = {
    "a parent that comes later": {**PROPOSAL, "parents": [-1, 1]},
    "a parent before the root": {**PROPOSAL, "parents": [-1, -2]},
    "siblings with one token": {**PROPOSAL, "token_ids": [1, 1], "parents": [-1, -1]},
    "fewer parents than tokens": {**PROPOSAL, "parents": [-1]},
    "a draft outside the vocabulary": {**PROPOSAL, "token_ids": [1, 100]},
    "a negative token": {**PROPOSAL, "token_ids": [-1]},
    "drawn below no node": {**PROPOSAL, "drawn": [[2, *DRAWN[1:]]]},
    "drawn twice": {**PROPOSAL, "drawn": [DRAWN, DRAWN]},
    "a child that was not drawn": {**PROPOSAL, "drawn": [[-1, [9], *DRAWN[2:]]]},
    "a candidate outside its own support": {**PROPOSAL, "drawn": [[-1, [1, 8], *DRAWN[2:]]]},
    "a candidate that came twice": {**PROPOSAL, "drawn": [[-1, [1, 1], *DRAWN[2:]]]},
    "no candidate": {**PROPOSAL, "token_ids": [], "drawn": [[-1, [], *DRAWN[2:]]]},
    "a probability outside the vocabulary": {**PROPOSAL, "drawn": [[-1, [1], [1, 100], [0.75, 0.25]]]},
    "a probability of a negative token": {**PROPOSAL, "drawn": [[-1, [1], [1, -9], [0.75, 0.25]]]},
    "probabilities of one token": {**PROPOSAL, "drawn": [[-1, [1], [1, 1], [0.75, 0.25]]]},
    "fewer probabilities than tokens": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [1.0]]]},
    "probabilities that do not sum to 1": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [0.75, 0.26]]]},
    "a probability of 0": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [1.0, 0.0]]]},
    "a negative probability": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [1.25, -0.25]]]},
    "a probability that is not a number": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [float("nan"), 0.25]]]},
    "a probability without end": {**PROPOSAL, "drawn": [[-1, [1], [1, 9], [float("inf"), 0.25]]]},
    "probabilities of too many tokens": {**PROPOSAL, "drawn": [[-1, [1], list(range(65)), [1 / 65] * 65]]},
    "an unknown method": {**OPEN, "method": "relaxed"},
    "epoch 0": {**PROPOSAL, "epoch": 0},
    "an epoch beyond counting": {**PROPOSAL, "epoch": 2**53},
    "a time that is not a number": {**PROPOSAL, "queue_s": float("nan")},
    "a time without end": {**PROPOSAL, "service_s": float("inf")},
    "a negative time": {**PROPOSAL, "service_s": -1.0},
    "an unknown type": {**PROPOSAL, "type": "exec"},
    "no type": {"tag": 1},
    "a message of the other direction": {"type": "ask"},
    "no committed token": {**OPEN, "token_ids": []},
    "a prompt longer than the tokens": {**OPEN, "prompt_len": 2},
    "a committed token outside the vocabulary": {**OPEN, "token_ids": [100]},
    "a temperature below 0": {**OPEN, "sampling": {"temperature": -1.0}},
    "a temperature that is not a number": {**OPEN, "sampling": {"temperature": float("nan")}},
    "an empty verdict": {**VERDICT, "token_ids": []},
    "a verdict outside the vocabulary": {**VERDICT, "token_ids": [100]},
    "not even a map": [1, 2, 3],
}


@pytest.mark.parametrize("fields", INVALID.values(), ids=INVALID)
def test_a_message_that_lies_about_its_shape_is_refused(fields: object) -> None:
    frame = msgspec.msgpack.encode(fields)
    with pytest.raises(PeerProtocolError, match=r"frame of \d+ bytes is not a message: ."):
        Decoder(TargetToHub | HubToTarget, vocab_size=100).decode(frame)


def test_the_checks_above_do_not_refuse_the_honest_form() -> None:
    decoder = Decoder(TargetToHub | HubToTarget, vocab_size=100)
    assert decoder.decode(msgspec.msgpack.encode(PROPOSAL)).tree == DraftTree.chain([1, 2])
    assert decoder.decode(msgspec.msgpack.encode({**PROPOSAL, "parents": [-1, -1]})).tree.depths == (1, 1)
    drawn = decoder.decode(msgspec.msgpack.encode({**PROPOSAL, "drawn": [DRAWN]})).tree.drafts
    assert drawn == {-1: DrawnCandidates((1,), (1, 9), (0.75, 0.25), Drawing.WITHOUT_REPLACEMENT)}
    assert decoder.decode(msgspec.msgpack.encode(OPEN)).sampling == SamplingSpec()
    assert decoder.decode(msgspec.msgpack.encode(VERDICT)).token_ids == [1]


@given(st.data(), st.integers(1, MAX_SUPPORT), st.integers(1, MAX_TOP_K))
def test_what_was_drawn_crosses_the_wire_bit_by_bit(data: st.DataObject, size: int, num: int) -> None:
    token_ids = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size, unique=True))
    logits = torch.tensor(data.draw(st.lists(st.floats(-50, 5), min_size=size, max_size=size)), dtype=torch.float64)
    candidates = tuple(data.draw(st.permutations(token_ids))[:num])
    probs = tuple(logits.softmax(0).tolist())
    drawn = DrawnCandidates(candidates, tuple(token_ids), probs, Drawing.WITHOUT_REPLACEMENT)
    tree = DraftTree(candidates[:2], (-1,) * len(candidates[:2]), {-1: drawn})
    parents = None if tree.is_chain else list(tree.parents)
    proposal = Proposal(Tag(1), Epoch(1), 3, list(tree.token_ids), parents, drawn=[Drawn.of(-1, drawn)])
    decoded = Decoder(HubToTarget).decode(encode(proposal))
    assert decoded == proposal
    assert decoded.tree == tree


@given(st.sampled_from(ALL_DIRECTIONS), st.binary(max_size=200))
def test_random_bytes_raise_one_error_only(union: object, frame: bytes) -> None:
    refuses_or_decodes(Decoder(union, vocab_size=100), frame)


@given(st.sampled_from(EVERY_MESSAGE), st.data())
def test_a_mutated_frame_raises_one_error_only(case: tuple[object, Message], data: st.DataObject) -> None:
    union, message = case
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(frame)))
    refuses_or_decodes(Decoder(union, vocab_size=100), bytes(frame[:end]))


@pytest.mark.parametrize("nested", [b"\x91" * 500_000, b"\x81\xa1x" * 300_000], ids=["arrays", "maps"])
def test_deep_nesting_raises_one_error_only(nested: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        Decoder(HubToTarget).decode(b"\x82\xa4type\xa4pong\xa1x" + nested)


def test_an_array_that_claims_to_be_huge_costs_no_memory() -> None:
    claim = b"\x82\xa4type\xa4open\xa9token_ids\xdd\xff\xff\xff\xff\x01"
    with pytest.raises(PeerProtocolError):
        Decoder(TargetToHub).decode(claim)


def refuses_or_decodes(decoder: Decoder, frame: bytes) -> None:
    try:
        message = decoder.decode(frame)
    except PeerProtocolError:
        return
    assert decoder.decode(encode(message)) == message


@pytest.mark.parametrize("word", ["pickle", "marshal", "torch.load", "eval(", "recv_pyobj"])
def test_nothing_that_runs_code_reads_what_comes_from_sockets(word: str) -> None:
    sources = Path(codec.__file__).parent.glob("*.py")
    assert not [path.name for path in sources if word in path.read_text()]
