"""One stage and what it is sent: it computes what follows, and whatever else comes breaks nothing but its pipe."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from memory_pipe import MemoryPipe
from stage_driver import Driver, no_draft
from structlog.testing import capture_logs
from toy_stages import plain, toy_stages

from starspec.errors import ConfigError, PeerLost, PeerProtocolError
from starspec.ids import PipeEpoch, RowEpoch, RowLease, StageId, TargetId
from starspec.log_limit import INTERVAL_S, LINES
from starspec.models.runner import Segment
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stages.attach import attach
from starspec.stages.coordinator import CHANGES_WAIT_S, RemoteVerifier
from starspec.stages.frames import Frame
from starspec.stages.inbox import MAX_QUEUED_BYTES
from starspec.stages.pipe import Pipe
from starspec.stages.worker import StageWorker
from starspec.windows.window import Law, Window
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Alive,
    Attach,
    Attached,
    Beat,
    CoordinatorToStage,
    Gap,
    JudgeOf,
    Judges,
    Landing,
    Outdated,
    Refused,
    Retract,
    RowChange,
    RowLaw,
    StageToCoordinator,
    StageWork,
    Traversal,
    VerdictOf,
    WindowHead,
)
from starspec.wire.stage_session import StageState
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES

GREEDY = Law(SamplingSpec(temperature=0.0), None, None)
NUM_FRAMES = 100_000
PROMPT = [3, 1, 4, 1, 5]


def attached(pipe: MemoryPipe, target: str = "t") -> Pipe:
    return attach(pipe, pipe.names[: len(pipe.runners)], TargetId(target), lease_s=2.0, timeout_s=1.0, clock=pipe.clock)


def piped(num_stages: int = 3, delay_s: float = 0.0) -> tuple[MemoryPipe, RemoteVerifier]:
    pipe = MemoryPipe(toy_stages(num_stages), lambda: delay_s)
    return pipe, RemoteVerifier(pipe, attached(pipe), pipe.runners[0].info, depth=4, clock=pipe.clock)


def test_several_rounds_of_different_sequences_are_in_flight_at_once() -> None:
    pipe, verifier = piped(delay_s=0.1)
    driver = Driver(verifier, no_draft)
    sequences = [driver.begin([*PROMPT, last], GREEDY, 5) for last in range(3)]
    while driver.poll(1.0):
        pass
    started_s = pipe.now
    for each in sequences:
        driver.launch([each])
    assert verifier.num_in_flight == 3
    assert [driver.poll(1.0) for _ in sequences] == [1, 1, 1]
    assert pipe.now - started_s == pytest.approx(0.4)  # one traversal of three stages, and the answer


def test_nothing_is_launched_while_a_stage_that_pauses_might_not_keep_it() -> None:
    pipe = MemoryPipe(toy_stages(2), lambda: 0.1)
    verifier = RemoteVerifier(
        pipe, attached(pipe), pipe.runners[0].info, depth=4, clock=pipe.clock, max_tokens=2 * len(PROMPT)
    )
    driver = Driver(verifier, no_draft)
    sequences = [driver.begin([*PROMPT, last], GREEDY, 5) for last in range(2)]
    assert verifier.depth == 0, "more than half of what a stage takes at once is in flight"
    while driver.poll(1.0):
        pass
    assert verifier.depth == 4
    driver.launch(sequences)
    assert verifier.depth == 4
    a_chunk_more = (0.5 + 1.0) * MAX_HIDDEN_BYTES
    assert a_chunk_more <= MAX_QUEUED_BYTES - a_chunk_more, "then it keeps a round, too"


def test_an_abort_with_a_window_in_flight_saves_computing_it_and_frees_the_row() -> None:
    pipe, verifier = piped(delay_s=0.1)
    driver = Driver(verifier, no_draft)
    gone = driver.begin(PROMPT, GREEDY, 5)
    while driver.poll(1.0):
        pass
    driver.launch([gone])
    driver.poll(0.15)
    driver.abort(gone)
    follower = driver.begin(PROMPT, GREEDY, 5)
    driver.decode_all()
    assert follower.token_ids == plain(3, PROMPT, GREEDY.sampling, 5)
    assert sum(worker.num_dropped for worker in pipe.workers) >= 1


def test_a_row_that_is_freed_last_is_freed_at_every_stage_soon() -> None:
    pipe, verifier = piped()
    driver = Driver(verifier, no_draft)
    driver.begin(PROMPT, GREEDY, 2)
    driver.decode_all()
    assert any(worker.rows.cache.rows.leased for worker in pipe.workers)
    pipe.now += CHANGES_WAIT_S
    driver.poll(0.1)
    assert not any(worker.rows.cache.rows.leased for worker in pipe.workers)
    assert verifier.num_in_flight == 0


def test_beats_keep_a_silent_pipe_and_close_ends_it() -> None:
    pipe, verifier = piped()
    for _ in range(20):
        verifier.poll(0.4)
    assert [worker.session.state for worker in pipe.workers] == [StageState.ATTACHED] * 3
    verifier.close()
    pipe.drain()
    assert [worker.session.state for worker in pipe.workers] == [StageState.DETACHED] * 3


def test_a_stage_that_restarts_loses_the_pipe_and_another_begins_with_empty_rows() -> None:
    pipe, verifier = piped()
    driver = Driver(verifier, no_draft)
    sequence = driver.begin(PROMPT, GREEDY, 6)
    driver.poll(1.0)
    pipe.restart(1)
    driver.launch([sequence])
    driver.decode_all()
    assert verifier.num_losses == 1
    assert pipe.workers[1].session.pipe_epoch > 1
    assert sequence.token_ids == plain(3, PROMPT, GREEDY.sampling, 6)


def test_stages_that_are_not_one_model_make_no_pipe() -> None:
    pipe = MemoryPipe(toy_stages(3))
    pipe.runners[1].info = replace(pipe.runners[1].info, fingerprint="other")
    with pytest.raises(ConfigError, match="stages s0 and s1 have different models or weights"):
        attached(pipe)
    pipe.drain()
    del pipe.runners[1], pipe.workers[1]
    with pytest.raises(ConfigError, match=r"no stage has layers 1:2"):
        attached(pipe)


@pytest.mark.parametrize(("leads_to", "what"), [("s2", "stage s2"), ("spare", "a stage that is not in --stages")])
def test_a_stage_that_is_told_another_next_one_is_refused_with_the_option(leads_to: str, what: str) -> None:
    pipe = MemoryPipe([*toy_stages(3), toy_stages(3)[1]])
    pipe.names[3], pipe.told_next = "spare", {0: leads_to}
    with pytest.raises(ConfigError) as refusal:
        attach(pipe, pipe.names[:3], TargetId("t"), lease_s=2.0, timeout_s=1.0, clock=pipe.clock)
    assert str(refusal.value) == (
        f"stage s0 sends to {what}, not to s1, which comes behind it: start s0 with a --next that leads to s1, or with "
        "none"
    )
    pipe.drain()
    assert {worker.session.state for worker in pipe.workers} == {StageState.DETACHED}


def test_a_stage_that_comes_back_with_a_wrong_next_one_is_named_until_it_is_right() -> None:
    pipe, verifier = piped()
    driver = Driver(verifier, no_draft)
    sequence = driver.begin(PROMPT, GREEDY, 6)
    driver.poll(1.0)
    pipe.told_next = {0: "s2"}
    pipe.restart(0)
    driver.launch([sequence])
    while verifier.refusal is None:
        driver.poll(1.0)
    assert "stage s0 sends to stage s2, not to s1" in sequence.why_failed
    assert sequence.token_ids == PROMPT
    pipe.told_next = {}
    while verifier.refusal is not None:
        driver.poll(1.0)
    again = driver.begin(PROMPT, GREEDY, 6)
    driver.decode_all()
    assert again.token_ids == plain(3, PROMPT, GREEDY.sampling, 6)


def test_a_stage_that_starts_again_while_all_are_attached_is_known_by_its_new_name() -> None:
    pipe = MemoryPipe(toy_stages(2))
    is_restarted: list[bool] = []

    def restart_once(timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        answers = MemoryPipe.receive(pipe, timeout_s)
        if is_restarted:
            return answers
        is_restarted.append(True)
        pipe.drain()
        [first, _] = sorted([*answers, *MemoryPipe.receive(pipe, 0.0)], key=lambda each: each[0])
        pipe.restart(1)
        pipe.control(1, attach_message())
        return [first]

    pipe.receive = restart_once  # type: ignore[method-assign]
    assert [each.next_id for each in attached(pipe).stages] == [pipe.workers[1].session.stage_id, None]


def test_one_stage_under_two_names_is_refused_in_one_sentence() -> None:
    pipe = MemoryPipe(toy_stages(2))
    pipe.names.append("alias")
    pipe.workers.append(pipe.workers[1])
    pipe.runners.append(pipe.runners[1])
    with pytest.raises(ConfigError, match=r"^s1 and alias are the same stage: list it once in --stages and --spares$"):
        attached(pipe)


def test_a_stage_of_another_target_refuses_in_one_sentence() -> None:
    pipe, _ = piped()
    with pytest.raises(ConfigError, match="stage s0 refuses: the stage belongs to target t"):
        attached(pipe, "other")


def test_a_stage_that_does_not_answer_is_named() -> None:
    pipe = MemoryPipe(toy_stages(2), lambda: 5.0)
    with pytest.raises(PeerLost, match="no answer from stage s0, s1"):
        attached(pipe)


@pytest.mark.parametrize("place", [0, 1])
def test_a_stage_that_lives_and_does_not_reach_the_next_one_is_named_at_the_start(place: int) -> None:
    pipe = MemoryPipe(toy_stages(3))
    pipe.cut_link(place, place + 1)
    why = f"stage s{place} does not reach the one behind it: can its machine connect to s{place + 1}, or to its --next?"
    with capture_logs() as logs, pytest.raises(PeerLost) as lost:
        attach(pipe, pipe.names, TargetId("t"), lease_s=4.0, timeout_s=20.0, clock=pipe.clock)
    assert str(lost.value) == why
    assert [(each["event"], each["why"]) for each in logs] == [("waiting for stages", why)]


def test_a_stage_that_does_not_reach_a_dead_one_is_not_blamed_for_it() -> None:
    pipe = MemoryPipe(toy_stages(3))
    pipe.cut_link(0, 1)
    pipe.kill(1)
    with pytest.raises(PeerLost, match=r"^no answer from stage s1$"):
        attach(pipe, pipe.names, TargetId("t"), lease_s=4.0, timeout_s=20.0, clock=pipe.clock)


def test_features_are_refused_before_anything_is_sent() -> None:
    pipe, verifier = piped()
    row = verifier.cache.lease()
    with pytest.raises(ConfigError, match="send no features"):
        verifier.launch([Window(Segment(row, [1], 0), None)], [1])
    assert (verifier.num_in_flight, pipe.num_bytes) == (0, 0)


# ---------------------------------------------------------------- one worker


def attach_message(epoch: int = 1) -> Attach:
    return Attach(PROTOCOL_VERSION, TargetId("t"), PipeEpoch(epoch), 1e6)


def head(row: int = 0, lease: int = 1, base: int = 0, num_tokens: int = 3, num_logits: int = 0, path=(), ids=()):
    return WindowHead(row, RowLease(lease), RowEpoch(0), base, num_tokens, num_logits, path, None, list(ids))


FIRST_OF_TWO = (StageWork(0.0, 0.0, 0, 0, 0, 1),)


def frame(number: int, changes=(), windows=(), judges=(), hidden: bytes = b"", work=FIRST_OF_TWO) -> list[bytes]:
    traversal = Traversal(PipeEpoch(1), number, list(changes), list(windows), work)
    return Frame(traversal, encode(Judges(list(judges))), hidden).parts


LEASE = RowChange("lease", 0, RowLease(1))
BREAKING = {
    "a row that does not exist": frame(1, [RowChange("lease", 99, RowLease(1))]),
    "a row that is not leased": frame(1, [], [head()]),
    "a lease of a leased row": frame(1, [LEASE, RowChange("lease", 0, RowLease(2))]),
    "another occupant": frame(1, [LEASE], [head(lease=2)]),
    "positions that were never written": frame(1, [LEASE], [head(base=4)]),
    "a window longer than a row": frame(1, [LEASE], [head(num_tokens=65)]),
    "hidden states of other tokens": frame(1, [LEASE], [head()], hidden=bytes(16)),
    "logits that nobody judges": frame(1, [LEASE], [head(num_logits=3)], hidden=bytes(24)),
    "a judge without a law": frame(1, [LEASE], [head(num_logits=3)], [JudgeOf(0, 1, [1, 2, 3])], bytes(24)),
    "a judge of another tree": frame(
        1, [LEASE], [head(num_logits=3)], [JudgeOf(0, 1, [1, 2, 3], [-1, -1], law=RowLaw(SamplingSpec()))], bytes(24)
    ),
    "a law that counts, without the tokens": frame(
        1, [LEASE], [head(num_logits=3)], [JudgeOf(0, 1, [1, 2, 3], law=RowLaw(SamplingSpec(min_tokens=1)))], bytes(24)
    ),
    "judges that are none": [*frame(1)[:1], b"\xc1", b""],
    "a judge about another position": frame(
        1, [LEASE], [head(num_logits=3)], [JudgeOf(0, 7, [1, 2, 3], law=RowLaw(SamplingSpec()))], bytes(24)
    ),
    "a law with tokens for nothing": frame(
        1,
        [LEASE],
        [head(num_logits=3)],
        [JudgeOf(0, 1, [1, 2, 3], law=RowLaw(SamplingSpec(), token_ids=[1]))],
        bytes(24),
    ),
    "more states than a stage takes": frame(1, [LEASE], [head(row=each, num_tokens=2**20) for each in range(9)]),
    "states that are no numbers": frame(1, [LEASE], [head()], hidden=b"\xff" * 24),
}


def last_stage() -> StageWorker:
    worker = StageWorker(toy_stages(2)[1], lambda: 0.0)
    assert isinstance(worker.control(attach_message()), Attached)
    return worker


@pytest.mark.parametrize("parts", BREAKING.values(), ids=BREAKING)
def test_a_traversal_that_cannot_be_computed_breaks_the_pipe_with_a_reason(parts: list[bytes]) -> None:
    worker = last_stage()
    gap = worker.take(parts)
    assert isinstance(gap, Gap)
    assert gap.reason
    assert "have computed" not in gap.reason
    assert isinstance(worker.take(frame(2)), Gap)  # nothing is computed on rows that may be wrong
    assert isinstance(worker.control(attach_message(2)), Attached)
    worker.rows.check_integrity()
    assert not worker.rows.cache.rows.leased


@pytest.mark.parametrize("came", [(), ((0, 2),), ((0, 1), (0, 1)), ((1, 1),)])
def test_a_stage_computes_nothing_behind_other_layers_than_those_before_its_own(came) -> None:
    work = tuple(StageWork(0.0, 0.0, 0, 0, *layers) for layers in came)
    gap = last_stage().take(frame(1, [LEASE], [head()], hidden=bytes(24), work=work))
    assert isinstance(gap, Gap)
    assert gap.reason.endswith("came to layers 1:2: is a --next wrong?")


@pytest.mark.parametrize("ids", [(), (1, 2, 3)])
def test_a_first_stage_computes_no_window_whose_tokens_it_is_not_told(ids: tuple[int, ...]) -> None:
    worker = StageWorker(toy_stages(2)[0], lambda: 0.0)
    assert isinstance(worker.control(attach_message()), Attached)
    assert isinstance(worker.take(frame(1, [LEASE], [head(ids=ids)], work=())), Frame if ids else Gap)


def test_what_is_no_traversal_changes_nothing() -> None:
    worker = last_stage()
    for parts in ([b""] * 3, frame(1)[:2], [encode(Judges([])), *frame(1)[1:]]):
        with pytest.raises(PeerProtocolError):
            worker.take(parts)
    assert isinstance(worker.take(frame(1)), Landing)


def test_a_repeated_traversal_is_computed_once() -> None:
    worker = last_stage()
    assert isinstance(worker.take(frame(1, [LEASE])), Landing)
    assert worker.take(frame(1, [LEASE])) is None


def test_a_tree_cannot_be_presumed() -> None:
    """The path of a tree moves slots, so it could not be taken back."""
    pipe, verifier = piped()
    driver = Driver(verifier, lambda *_: DraftTree((1, 2, 3), (-1, -1, 0)))
    sequence = driver.begin(PROMPT, GREEDY, 9)
    driver.launch([sequence])
    assert not driver.can_launch(sequence)
    driver._draft = lambda *_: EMPTY_TREE
    driver.decode_all()
    assert sequence.token_ids == plain(3, PROMPT, GREEDY.sampling, 9)
    assert not pipe._events


# ---------------------------------------------------------------- hostile frames


def mutated(sound: bytes, rng: random.Random) -> bytes:
    frame = bytearray(sound)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(frame) + 1)
        match rng.randrange(5):
            case 0:
                frame[at : at + 1] = rng.randbytes(1)
            case 1:  # small numbers: rows, leases, lengths and paths that lie
                frame[at : at + 1] = bytes([rng.randrange(8)])
            case 2:  # a length or a type that lies
                frame[at : at + 1] = bytes([rng.choice((0x80, 0x8F, 0x90, 0xDC, 0xDD, 0xDF, 0xDB, 0xCF, 0xCB, 0xC0))])
            case 3:
                del frame[at : at + rng.randint(1, 8)]
            case 4:
                frame[at:at] = frame[: rng.randint(1, 16)]
    return bytes(frame)


def test_a_stage_survives_a_hundred_thousand_mutated_frames() -> None:
    rng, worker, epoch = random.Random(1), last_stage(), 1
    law = RowLaw(SamplingSpec(temperature=0.5, min_tokens=2), None, 1, 2, [1, 2, 3, 1])
    judge = JudgeOf(0, 4, [1, 2, 3], law=law)
    seeds = [
        frame(1, [LEASE], [head()], [], bytes(24)),
        frame(2, [], [head(path=(0, 1, 2), num_logits=3)], [judge], bytes(24)),
        frame(3, [], [head(base=3, num_tokens=1, num_logits=1, path=(0, 1))], [JudgeOf(0, 6, [9])], bytes(8)),
        frame(3, [RowChange("free", 0, RowLease(1))]),
    ]
    control = [
        encode(attach_message()),
        encode(Retract(PipeEpoch(1), 0, RowLease(1), RowEpoch(1))),
        encode(Beat(PipeEpoch(1), 0.5)),
    ]
    decoder, num_sent, outcomes = Decoder[CoordinatorToStage](CoordinatorToStage), 0, set[str]()
    while num_sent < NUM_FRAMES:
        try:
            if rng.random() < 0.1:
                num_sent += 1
                answer = worker.control(decoder.decode(mutated(rng.choice(control), rng)))
                outcomes.add(type(answer).__name__)
            else:
                index = worker.session.next_number - 1 if rng.random() < 0.9 else rng.randrange(4)
                parts = seeds[min(index, 3)]
                wrong = [rng.random() < 0.4 for _ in parts]
                num_sent += sum(wrong)
                sent = [mutated(part, rng) if is_wrong else part for part, is_wrong in zip(parts, wrong, strict=True)]
                outcomes.add(type(worker.take(sent)).__name__)
        except PeerProtocolError:
            outcomes.add("refused")
        if worker.session.state is not StageState.ATTACHED or worker.session.pipe_epoch != 1 or rng.random() < 0.02:
            worker.rows.check_integrity()
            worker.rows.free_all()
            worker = StageWorker(worker._runner, lambda: 0.0)
            worker.control(attach_message(epoch))
    assert outcomes >= {"Landing", "Gap", "refused", "NoneType"}


def test_a_coordinator_survives_whatever_stages_send_and_goes_on() -> None:
    rng = random.Random(2)
    pipe, verifier = piped()
    driver = Driver(verifier, no_draft)
    sequence = driver.begin(PROMPT, GREEDY, 12)
    answers: list[StageToCoordinator] = [
        Alive(PipeEpoch(1), 0.5),
        Gap(PipeEpoch(1), 1, "no"),
        Attached(PipeEpoch(2), 0, 1, 3, "toy", 4, 64, StageId("0" * 16)),
        Outdated(PipeEpoch(7), StageId("0" * 16)),
        Refused("full", "no"),
        Landing(PipeEpoch(1), 1, [VerdictOf([3, 4], (0,))], (StageWork(0.1, 0.0, 9, 0, 0, 3),)),
    ]
    seeds, decoder = [encode(each) for each in answers], Decoder[StageToCoordinator](StageToCoordinator)
    num_heard = 0
    for _ in range(3000):
        sound = rng.choice(seeds)
        try:
            told = decoder.decode(sound if rng.random() < 0.3 else mutated(sound, rng))
        except PeerProtocolError:
            continue
        num_heard += 1
        pipe._answers.append((rng.randrange(3), told))
        if sequence.row is not None and not sequence.flights:
            driver.launch([sequence])
        driver.poll(rng.choice((0.0, 0.3)))
    assert num_heard > 500
    end_s = pipe.now + 60.0
    while not verifier.depth:
        assert pipe.now < end_s
        driver.poll(1.0)
    follower = driver.begin(PROMPT, GREEDY, 6)
    driver.decode_all()
    assert follower.token_ids == plain(3, PROMPT, GREEDY.sampling, 6)


def test_a_stage_that_breaks_off_again_and_again_is_not_attached_all_the_time_and_does_not_fill_the_log() -> None:
    pipe, verifier = piped()
    with capture_logs() as logs:
        while pipe.now < 60.0:
            pipe._answers.append((0, Gap(verifier._members.pipe_epoch, 1, "no")))
            verifier.poll(0.05)
    assert 20 < verifier.num_losses < 50
    for event in ("the stages are attached anew", "all stages are attached"):
        assert sum(each["event"] == event for each in logs) <= LINES * (1 + pipe.now / INTERVAL_S)
