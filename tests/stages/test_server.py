"""Stages behind real sockets: what they refuse, that tokens stay the same, and that a lost stage is noticed."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from jammed_proxy import JammedProxy
from stage_driver import Driver, no_draft
from stage_servers import WAIT_S, addresses, linked, pipe_of, serving
from structlog.testing import capture_logs
from toy_stages import VOCAB, ToyStage, plain, toy_stages

from starspec.audit import AuditLog
from starspec.config import ModelConfig, StageConfig
from starspec.config.lab import LabLink, LinkShape
from starspec.errors import ConfigError, PeerLost
from starspec.harness.servers import free_port
from starspec.ids import PeerId, PipeEpoch, RowEpoch, RowLease, TargetId
from starspec.lab import LabThread
from starspec.log_limit import LINES
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stages import build
from starspec.stages import server as stage_server
from starspec.stages.coordinator import STALLED
from starspec.stages.member import StageTimes
from starspec.stages.open import warn_of_spares
from starspec.stages.server import ATTACHES_BURST, MAX_LEASE_S, StageServer
from starspec.windows.window import Law
from starspec.wire.codec import encode
from starspec.wire.keys import generate_keys
from starspec.wire.messages import PROTOCOL_VERSION, Alive, Attach, Detach, Gap, Refused, Retract, Traversal
from starspec.wire.stage_news import Broken
from starspec.wire.stage_session import StageState, highest_epoch
from starspec.wire.transports.stage_port import StageArrival, StagePort

pytestmark = pytest.mark.timeout(60)

LAW = Law(SamplingSpec(temperature=0.8, seed=3, repetition_penalty=1.1), None, 2)
PROMPTS = ([1, 2, 3], [5], [7, 8, 9, 10, 11, 12], [3, 3])
IMPATIENT = StageTimes(seen_within_s=1.0)  # a thread may have to wait for a core for three quarters of it
PATIENT_S = 6.0
SILENCE_S = 0.9  # the lab's link holds beats up for half a second


def half_right(sequence, token_ids: list[int]) -> DraftTree:
    prompt = token_ids[: sequence.prompt_len]
    truth = plain(3, prompt, LAW.sampling, len(token_ids) - sequence.prompt_len + 3)[len(token_ids) :]
    return DraftTree.chain((truth[0], truth[1], (truth[2] + 1) % VOCAB))


@pytest.mark.parametrize("draft", [no_draft, half_right])
def test_tokens_behind_sockets_are_those_of_the_model(draft) -> None:
    with serving(toy_stages(3)) as servers, pipe_of(addresses(servers)) as verifier:
        driver = Driver(verifier, draft)
        sequences = [driver.begin(prompt, LAW, 12) for prompt in PROMPTS]
        driver.decode_all()
        verifier.close()
    assert [each.token_ids for each in sequences] == [plain(3, prompt, LAW.sampling, 12) for prompt in PROMPTS]


def test_keys_of_all_roles_let_a_target_and_its_stages_talk(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    with (
        serving(toy_stages(2), tmp_path / "keys") as servers,
        pipe_of(addresses(servers), tmp_path / "keys") as verifier,
    ):
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 5)
        driver.decode_all()
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 5)


def test_a_target_whose_key_a_stage_does_not_know_is_refused_in_one_sentence(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    generate_keys(tmp_path / "others")
    (tmp_path / "others" / "stage.public").write_bytes((tmp_path / "keys" / "stage.public").read_bytes())
    with (
        serving(toy_stages(1), tmp_path / "keys") as servers,
        pytest.raises(ConfigError, match=r"does not know the key of the target .*: copy"),
        pipe_of(addresses(servers), tmp_path / "others"),
    ):
        pass


def test_a_stage_with_another_secret_is_not_talked_to(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    generate_keys(tmp_path / "others")
    (tmp_path / "others" / "target.public").write_bytes((tmp_path / "keys" / "target.public").read_bytes())
    with (
        serving(toy_stages(1), tmp_path / "others") as servers,
        pytest.raises(
            ConfigError,
            match=r"breaks off the handshake: does stage.public of the target belong to another .* is the link so slow",
        ),
        pipe_of(addresses(servers), tmp_path / "keys"),
    ):
        pass


@pytest.mark.parametrize("who", ["stage", "target"])
def test_keys_on_one_side_only_are_told_whichever_end_notices_first(who: str, tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    of_stage, of_target = (tmp_path / "keys" if each == who else None for each in ("stage", "target"))
    with (
        serving(toy_stages(1), of_stage) as servers,
        pytest.raises(ConfigError, match=r"keys on one side only"),
        pipe_of(addresses(servers), of_target),
    ):
        pass


def test_a_stage_that_does_not_know_the_key_of_the_one_before_is_refused_at_the_start(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    generate_keys(tmp_path / "lacking")
    for name in ("stage.secret", "stage.public", "target.public"):
        (tmp_path / "lacking" / name).write_bytes((tmp_path / "keys" / name).read_bytes())
    (tmp_path / "lacking" / "stage.public").unlink()
    with ExitStack() as stack:
        [first] = stack.enter_context(serving(toy_stages(2)[:1], tmp_path / "keys"))
        [second] = stack.enter_context(serving(toy_stages(2)[1:], tmp_path / "lacking"))
        with (
            pytest.raises(ConfigError, match=r"refuses: the stage at .* does not know the key of this stage"),
            pipe_of(addresses([first, second]), tmp_path / "keys"),
        ):
            pass


def test_only_a_target_may_lead_stages(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    with (
        serving(toy_stages(1), tmp_path / "keys") as servers,
        pytest.raises(ConfigError, match=r"refuses: the key stage.public is not a target's"),
        pipe_of(addresses(servers), tmp_path / "keys", role="stage"),
    ):
        pass


def test_the_audit_log_of_a_stage_says_who_attached_who_was_refused_and_who_left(tmp_path: Path) -> None:
    keys, audit = tmp_path / "keys", tmp_path / "audit.jsonl"
    generate_keys(keys)
    with serving(toy_stages(1), keys, audit=AuditLog(audit, "stage")) as servers:
        with pipe_of(addresses(servers), keys) as verifier:
            verifier.close()
        with pytest.raises(ConfigError, match="is not a target's"), pipe_of(addresses(servers), keys, role="stage"):
            pass
        with linked(addresses(servers), keys, role="stage") as link:
            link.send([encode(Traversal(PipeEpoch(1), 1, [], [])), b"", b""])
            until_s = time.monotonic() + WAIT_S
            while "may send traversals" not in audit.read_text():
                assert time.monotonic() < until_s
                link.receive(0.05)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(each["event"], each.get("key"), each.get("target")) for each in lines] == [
        ("target_attached", "target", "t"),
        ("target_left", None, "t"),
        ("refused", "stage", "t"),
        ("refused", "stage", None),
    ]


def test_a_pipe_without_its_end_is_refused() -> None:
    with (
        serving(toy_stages(2)) as servers,
        pytest.raises(ConfigError, match=r"no stage has layers 1:2, behind"),
        pipe_of(addresses(servers[:1])),
    ):
        pass


def test_a_stage_that_is_told_who_comes_behind_takes_nobodys_word_for_another() -> None:
    """It is told wrong here, so it never gets there."""
    with ExitStack() as stack:
        first, last = toy_stages(2)
        [behind] = stack.enter_context(serving([last]))
        [before] = stack.enter_context(serving([first], next="tcp://127.0.0.1:1"))
        with pytest.raises(PeerLost, match=f"^stage {before.address} does not reach the one behind it: .* its --next"):
            stack.enter_context(pipe_of(addresses([before, behind]), wait_s=2.0, lease_s=1.0))


def test_a_stage_that_is_told_another_stage_than_the_one_behind_it_is_refused() -> None:
    with ExitStack() as stack:
        first, last = toy_stages(2)
        behind, other = stack.enter_context(serving([last, toy_stages(2)[1]]))
        [before] = stack.enter_context(serving([first], next=other.address))
        told = rf"^stage {before.address} sends to a stage that is not in --stages, not to {behind.address}, .* --next"
        with pytest.raises(ConfigError, match=told):
            stack.enter_context(pipe_of(addresses([before, behind])))


def test_a_stage_that_has_two_addresses_is_listed_once() -> None:
    with serving(toy_stages(2)) as servers:
        twice = [*addresses(servers), servers[1].address.replace("127.0.0.1", "localhost")]
        with (
            pytest.raises(ConfigError, match=rf"^{twice[1]} and {twice[2]} are the same stage: list it once"),
            pipe_of(twice),
        ):
            pass


@pytest.mark.parametrize("twin", ["of a stage", "of a spare"])
def test_a_spare_that_has_another_name_in_the_list_is_refused_at_the_start(twin: str) -> None:
    with serving(toy_stages(2)) as servers, serving(toy_stages(2)[:1]) as others:
        known = addresses(servers if twin == "of a stage" else others)[-1]
        spares = [*addresses(others), known.replace("127.0.0.1", "localhost")]
        with (
            pytest.raises(ConfigError, match=rf"^{known} and {spares[1]} are the same stage: list it once"),
            pipe_of(addresses(servers), spares=spares),
        ):
            pass
        with pipe_of(addresses(servers), name="another target", spares=spares[:1]):
            pass  # nobody was attached


def test_a_spare_that_turns_out_to_be_a_stage_under_another_name_takes_it_out_of_no_pipe() -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(serving(toy_stages(2)))
        lab = stack.enter_context(LabThread(LabLink(to=servers[1].address, listen="0")))
        lab.partition()
        logs = stack.enter_context(capture_logs())
        verifier = stack.enter_context(pipe_of(addresses(servers), spares=[lab.endpoint()]))
        driver, until_s = Driver(verifier, no_draft), time.monotonic() + WAIT_S
        lab.heal()
        while not any(each["event"] == "a stage cannot take a place" for each in logs):
            assert time.monotonic() < until_s
            driver.poll(0.05)
        sequence = driver.begin(PROMPTS[0], LAW, 20)
        driver.decode_all()
        told = f"{servers[1].address} and {lab.endpoint()} are the same stage"
    assert any(each.get("why", "").startswith(told) for each in logs)
    assert verifier.num_losses == 0
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 20)


def test_a_stage_whose_lease_ends_before_it_gets_to_the_next_one_does_not_say_that_it_is_attached() -> None:
    with serving(toy_stages(2)[:1], next="tcp://127.0.0.1:1") as servers, linked(addresses(servers)) as link:
        link.control(0, Attach(PROTOCOL_VERSION, TargetId("t"), PipeEpoch(1), 0.2))
        session, answers = servers[0].server._worker.session, list[object]()
        limit_s = time.monotonic() + WAIT_S
        while session.pipe_epoch < 1 or session.state is not StageState.DETACHED:
            assert time.monotonic() < limit_s
            answers += link.receive(0.05)
        answers += link.receive(0.2)
    assert not answers


def test_a_stage_keeps_its_lease_while_another_one_does_not_get_to_the_next_one() -> None:
    first, last = toy_stages(2)
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        lab = stack.enter_context(LabThread(LabLink(to=behind.address, listen="0")))
        lab.partition()
        [before] = stack.enter_context(serving([first], next=lab.endpoint()))
        healing = threading.Timer(1.6, lab.heal)
        stack.callback(healing.join)
        healing.start()
        verifier = stack.enter_context(pipe_of(addresses([before, behind]), lease_s=1.0))
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 3)
        driver.decode_all()
    assert verifier.num_losses == 0
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 3)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_stage_that_ends_is_attached_again_when_it_is_back_and_tokens_stay_the_same(lost: int) -> None:
    stages = toy_stages(3)
    with serving(stages) as servers, pipe_of(addresses(servers)) as verifier:
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 40)
        while len(sequence.token_ids) < 10:
            if not sequence.flights:
                driver.launch([sequence])
            driver.poll(1.0)
        servers[lost].end()
        again = toy_stages(3)[lost]
        with serving([again], listen=servers[lost].address):
            driver.decode_all()
    assert verifier.num_losses > 0
    assert sequence.token_ids == plain(3, PROMPTS[0], LAW.sampling, 40)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_spare_takes_the_place_of_a_stage_that_ends_before_anybody_could_call_it_silent(lost: int) -> None:
    spares = [toy_stages(2)[lost]]
    times = StageTimes(seen_within_s=PATIENT_S)
    with (
        serving(toy_stages(2)) as servers,
        serving(spares) as others,
        capture_logs() as logs,
        pipe_of(addresses(servers), spares=addresses(others), times=times) as verifier,
    ):
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 40)
        while sum(each["event"] == "attached" for each in logs) < 3:  # then the spare is known
            driver.poll(0.05)
        driver.launch([sequence])
        servers[lost].end()
        ended_s = time.monotonic()
        driver.decode_all()
        assert time.monotonic() - ended_s < PATIENT_S / 2
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 40)


def test_a_cut_between_two_stages_is_seen_as_soon_as_a_silent_stage() -> None:
    first, last = toy_stages(2)
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        lab = stack.enter_context(LabThread(LabLink(to=behind.address, listen="0")))
        [before] = stack.enter_context(serving([first], next=lab.endpoint(), silence_s=0.5))
        verifier = stack.enter_context(pipe_of(addresses([before, behind])))
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 40)
        driver.poll(0.1)
        lab.partition()
        cut_s = time.monotonic()
        while verifier.num_losses == 0:
            driver.poll(0.1)
        assert time.monotonic() - cut_s < 2.0
        lab.heal()
        driver.decode_all()
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 40)


class WideStage(ToyStage):
    """Its hidden states are as wide as a model's."""

    def __init__(self, toy: ToyStage) -> None:
        super().__init__(toy.layers.start, toy.layers.num_layers, toy.cache.num_rows)
        self.info = replace(self.info, hidden_size=WIDTH)

    def forward(self, *arguments, **named):
        output = super().forward(*arguments, **named)
        return output if output.hidden is None else output._replace(hidden=output.hidden.repeat(1, WIDTH))


WIDTH = 10_000  # of float64: 80 kB a token


def test_hidden_states_that_take_longer_than_any_silence_are_waited_for_while_they_move() -> None:
    first, last = map(WideStage, toy_stages(2))
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        shape = LinkShape(mbit_s=1.0)
        lab = stack.enter_context(LabThread(LabLink(to=behind.address, listen="0", shape=shape)))
        [before] = stack.enter_context(serving([first], next=lab.endpoint(), silence_s=SILENCE_S))
        times = StageTimes(seen_within_s=SILENCE_S)
        verifier = stack.enter_context(pipe_of(addresses([before, behind]), times=times))
        driver = Driver(verifier, no_draft)
        sequence, begun_s = driver.begin(range(12), LAW, 2), time.monotonic()
        driver.decode_all()
    assert time.monotonic() - begun_s > (STALLED + 1) * SILENCE_S
    assert verifier.num_losses == 0
    assert sequence.token_ids == plain(2, range(12), LAW.sampling, 2)


def test_hidden_states_that_stop_on_their_way_are_a_loss_within_the_stated_time() -> None:
    first, last = map(WideStage, toy_stages(2))
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        shape = LinkShape(mbit_s=1.0)
        lab = stack.enter_context(LabThread(LabLink(to=behind.address, listen="0", shape=shape)))
        [before] = stack.enter_context(serving([first], next=lab.endpoint(), silence_s=60.0))  # it suspects nothing
        times = StageTimes(seen_within_s=SILENCE_S)
        verifier = stack.enter_context(pipe_of(addresses([before, behind]), times=times))
        driver = Driver(verifier, no_draft)
        driver.begin(range(12), LAW, 2)
        driver.poll(2.0)
        lab.partition()
        stopped_s = time.monotonic()
        while verifier.num_losses == 0:
            driver.poll(0.1)
        assert time.monotonic() - stopped_s < (STALLED + 2) * SILENCE_S
        lab.heal()


@pytest.mark.parametrize("is_for_ever", [False, True], ids=["this connection", "all that come later, too"])
def test_a_cut_of_the_connection_for_hidden_states_alone_is_a_loss_within_the_stated_time(is_for_ever: bool) -> None:
    """The connection for signs of life between the two stages stays, and so do those of the target."""
    first, last = map(WideStage, toy_stages(2))
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        proxy = stack.enter_context(JammedProxy(behind.address))
        [before] = stack.enter_context(serving([first], next=proxy.endpoint, silence_s=SILENCE_S))
        spares = addresses(stack.enter_context(serving([WideStage(toy_stages(2)[0])]))) if is_for_ever else []
        endpoints, times = addresses([before, behind]), StageTimes(seen_within_s=SILENCE_S)
        verifier = stack.enter_context(pipe_of(endpoints, spares=spares, times=times))
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 20)
        while len(sequence.token_ids) < 8:
            if not sequence.flights:
                driver.launch([sequence])
            driver.poll(1.0)
        jammed_s = time.monotonic()
        proxy.jam(is_for_ever=is_for_ever)
        if not sequence.flights:
            driver.launch([sequence])
        while verifier.num_losses == 0:
            driver.poll(0.1)
        assert time.monotonic() - jammed_s < (STALLED + 2) * SILENCE_S
        driver.decode_all()
        assert proxy.num_jammed == 1
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 20)
    assert verifier.num_losses == 1


def test_a_spare_goes_round_a_link_between_two_stages_that_stays_cut() -> None:
    first, last = toy_stages(2)
    with ExitStack() as stack:
        [behind] = stack.enter_context(serving([last]))
        lab = stack.enter_context(LabThread(LabLink(to=behind.address, listen="0")))
        [before] = stack.enter_context(serving([first], next=lab.endpoint(), silence_s=0.5))
        [spare] = stack.enter_context(serving(toy_stages(2)[:1]))
        endpoints, others = addresses([before, behind]), addresses([spare])
        verifier = stack.enter_context(pipe_of(endpoints, spares=others, times=IMPATIENT))
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 40)
        driver.poll(0.1)
        lab.partition()
        driver.decode_all()
        assert [each.endpoint for each in verifier.pipe.stages[:2]] == addresses([spare, behind])
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 40)


class SlowStage(ToyStage):
    """It computes for longer than a stage may be silent."""

    def forward(self, *arguments, **named):
        threading.Event().wait(2 * IMPATIENT.seen_within_s)
        return super().forward(*arguments, **named)


def test_a_stage_that_computes_for_long_is_not_lost() -> None:
    first, last = toy_stages(2)
    slow = SlowStage(last.layers.start, 2, 4)
    with serving([first, slow]) as servers, pipe_of(addresses(servers), times=IMPATIENT) as verifier:
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[1], LAW, 2)
        driver.decode_all()
    assert verifier.num_losses == 0
    assert sequence.token_ids == plain(2, PROMPTS[1], LAW.sampling, 2)


def test_a_spare_that_cannot_be_connected_ends_nothing(tmp_path: Path) -> None:
    generate_keys(tmp_path / "keys")
    with (
        serving(toy_stages(2)) as servers,
        serving(toy_stages(2)[:1], tmp_path / "keys") as guarded,
        capture_logs() as logs,
        pipe_of(addresses(servers), spares=addresses(guarded)) as verifier,
    ):
        driver, limit_s = Driver(verifier, no_draft), time.monotonic() + WAIT_S
        while not any(each["event"] == "a spare cannot be connected" for each in logs):
            assert time.monotonic() < limit_s
            driver.poll(0.1)
        sequence = driver.begin(PROMPTS[0], LAW, 20)
        driver.decode_all()
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 20)


def test_a_spare_that_does_not_run_yet_is_named_at_the_start() -> None:
    with (
        serving(toy_stages(2)) as servers,
        linked(addresses(servers), spares=["tcp://127.0.0.1:1"]) as link,
        capture_logs() as logs,
    ):
        warn_of_spares(link.missing_spares)
    assert [each["missing"] for each in logs] == ["tcp://127.0.0.1:1"]


def test_a_second_target_is_told_whose_the_stages_are_and_may_have_them_later() -> None:
    with serving(toy_stages(2)) as servers:
        with pipe_of(addresses(servers)) as verifier:
            with (
                pytest.raises(ConfigError, match="refuses: the stage belongs to target t"),
                pipe_of(addresses(servers), name="u"),
            ):
                pass
            verifier.close()
        with pipe_of(addresses(servers), name="u") as verifier:
            driver = Driver(verifier, no_draft)
            sequence = driver.begin(PROMPTS[0], LAW, 3)
            driver.decode_all()
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 3)


def test_a_target_whose_stages_another_one_of_its_name_attaches_is_told_so() -> None:
    """They take them from each other until one of them ends, so its log must say why."""
    with (
        serving(toy_stages(2)) as servers,
        pipe_of(addresses(servers)) as verifier,
        capture_logs() as logs,
        pipe_of(addresses(servers)),
    ):
        until_s = time.monotonic() + WAIT_S
        while not any("a process called t has attached it since" in each.get("why", "") for each in logs):
            assert time.monotonic() < until_s, logs
            verifier.poll(0.05)


def test_a_hint_for_a_row_that_is_not_there_does_not_end_a_stage() -> None:
    with serving(toy_stages(1)) as servers, pipe_of(addresses(servers)) as verifier:
        verifier._link.control(0, Retract(PipeEpoch(1), 2**20, RowLease(1), RowEpoch(1)))
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[0], LAW, 3)
        driver.decode_all()
    assert verifier.num_losses == 0
    assert sequence.token_ids == plain(1, PROMPTS[0], LAW.sampling, 3)


def test_a_coordinator_that_vanishes_does_not_keep_a_stage_however_long_a_lease_it_asked_for() -> None:
    with serving(toy_stages(1)) as servers, pipe_of(addresses(servers)) as verifier:
        verifier._link.control(0, Attach(PROTOCOL_VERSION, TargetId("t"), PipeEpoch(9), 1e9))
        session, limit_s = servers[0].server._worker.session, time.monotonic() + WAIT_S
        while session.pipe_epoch < 9:
            assert time.monotonic() < limit_s
            time.sleep(0.01)
        assert session.lease_end_s <= time.monotonic() + MAX_LEASE_S


@pytest.mark.parametrize("epoch", [2**53 - 1, None], ids=["the highest number", "the highest that is taken"])
def test_no_pipe_epoch_shuts_later_coordinators_out_of_a_stage(epoch: int | None) -> None:
    with serving(toy_stages(1)) as servers:
        with pipe_of(addresses(servers), name="hostile") as verifier:
            highest = epoch or highest_epoch(time.time())
            verifier._link.control(0, Attach(PROTOCOL_VERSION, TargetId("hostile"), PipeEpoch(highest), 1.0))
            for each in (highest, 1):
                verifier._link.control(0, Detach(PipeEpoch(each)))
            session, limit_s = servers[0].server._worker.session, time.monotonic() + WAIT_S
            while session.state is not StageState.DETACHED:
                assert time.monotonic() < limit_s
                time.sleep(0.01)
        with pipe_of(addresses(servers)) as verifier:
            driver = Driver(verifier, no_draft)
            sequence = driver.begin(PROMPTS[0], LAW, 3)
            driver.decode_all()
    assert sequence.token_ids == plain(1, PROMPTS[0], LAW.sampling, 3)


def test_whoever_sends_many_traversals_keeps_one_of_another_sender_waiting_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = toy_stages(2)[1]
    config = StageConfig(layers=str(stage.layers), listen="tcp://127.0.0.1:0")
    port = StagePort(config.host, config.port, None, False, AuditLog.off())
    server = StageServer(config, stage, port, None, AuditLog.off())
    flood = [StageArrival(PeerId(b"stranger"), None, [b"noise"] * 3, 0.0)] * 50
    honest = [StageArrival(PeerId(b"coordinator"), None, [b"%d" % number] * 3, 0.0) for number in range(2)]
    arrived, computed = [[*flood, *honest]], list[bytes]()
    monkeypatch.setattr(server._inbox, "take", lambda _timeout_s: arrived.pop() if arrived else [])
    monkeypatch.setattr(server, "_compute", lambda arrival: computed.append(arrival.frames[0]))
    server._inbox.start()  # so that it closes the port
    for _ in range(5):
        server._turn()
    server._inbox.end()
    server._inbox.join()
    assert computed == [b"noise", b"0", b"noise", b"1", b"noise"]


def test_attaches_are_bounded_and_do_not_fill_the_log() -> None:
    with serving(toy_stages(2)[:1]) as servers, linked(addresses(servers)) as link, capture_logs() as logs:
        for epoch in range(9, 209):
            link.control(0, Attach(PROTOCOL_VERSION, TargetId("t"), PipeEpoch(epoch), 2.0, "tcp://127.0.0.1:1"))
        refusals, limit_s = list[Refused](), time.monotonic() + WAIT_S
        while len(refusals) < 200 - 2 * ATTACHES_BURST:
            assert time.monotonic() < limit_s
            refusals += [message for _, message in link.receive(0.1) if isinstance(message, Refused)]
        assert threading.active_count() < 200  # each connection to the next stage has one, for a moment
    assert {each.reason for each in refusals} == {"the stage was attached too often of late"}
    assert 0 < len([each for each in logs if each["event"] == "attached"]) <= LINES


def test_verdicts_that_are_too_long_for_a_frame_break_the_pipe_and_not_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those with a thousand log-probabilities for each of many tokens are."""
    with serving(toy_stages(1)) as servers, pipe_of(addresses(servers)) as verifier, capture_logs() as logs:
        monkeypatch.setattr(stage_server, "MAX_LANDING_BYTES", 100)
        driver = Driver(verifier, no_draft)
        sequence = driver.begin(PROMPTS[1], LAW, 3)
        driver.launch([sequence])
        while not verifier.num_losses:
            driver.poll(0.1)
        monkeypatch.undo()
        driver.decode_all()
    assert any("bytes are more than a target takes" in each.get("why", "") for each in logs)
    assert sequence.token_ids == plain(1, PROMPTS[1], LAW.sampling, 3)


def flood_of(kind: str) -> list[bytes]:
    match kind:
        case "signs of life":
            return [encode(Alive(PipeEpoch(1), 0.0))] * 500
        case "nonsense":
            return [b"\xc1" * 1000] * 500
        case _:
            return [encode(Gap(PipeEpoch(1), 1, "x" * 900_000))]


@pytest.mark.parametrize("kind", ["signs of life", "nonsense", "long reasons"])
def test_a_spare_that_floods_is_left_alone_and_the_target_goes_on(kind: str) -> None:
    has_ended, spare = threading.Event(), zmq.Context.instance().socket(zmq.ROUTER)
    spare.linger, spare.sndtimeo = 0, 50
    port = spare.bind_to_random_port("tcp://127.0.0.1")

    def flood() -> None:
        peer, frames = b"", flood_of(kind)
        while not has_ended.is_set():
            if spare.poll(0 if peer else 50):
                peer = spare.recv_multipart()[0]
            with suppress(zmq.ZMQError):
                spare.send_multipart([peer, *frames])

    thread = threading.Thread(target=flood)
    with (
        serving(toy_stages(2)) as servers,
        capture_logs() as logs,
        pipe_of(addresses(servers), spares=[f"tcp://127.0.0.1:{port}"]) as verifier,
    ):
        thread.start()
        try:
            driver, until_s = Driver(verifier, no_draft), time.monotonic() + WAIT_S
            while not any("far more than it is asked for" in each["event"] for each in logs):
                assert time.monotonic() < until_s
                driver.poll(0.1)
            sequence = driver.begin(PROMPTS[0], LAW, 20)
            driver.decode_all()
        finally:
            has_ended.set()
            thread.join(WAIT_S)
            spare.close(0)
    assert sequence.token_ids == plain(2, PROMPTS[0], LAW.sampling, 20)
    assert verifier.num_losses == 0
    assert len(logs) < 50


def test_a_connection_that_ends_for_a_flood_says_so() -> None:
    stage = zmq.Context.instance().socket(zmq.ROUTER)
    stage.linger, stage.sndtimeo, stage.rcvtimeo = 0, 50, int(1000 * WAIT_S)
    port, news = stage.bind_to_random_port("tcp://127.0.0.1"), list[object]()
    try:
        with linked([f"tcp://127.0.0.1:{port}"]) as link:
            link.control(0, Detach(PipeEpoch(1)))
            peer = stage.recv_multipart()[0]
            while not news:
                with suppress(zmq.ZMQError):
                    for _ in range(20):
                        stage.send_multipart([peer, *flood_of("nonsense")])
                news += [message for _, message in link.receive(0.01)]
    finally:
        stage.close(0)
    assert news == [Broken(is_flood=True)]


def test_a_stage_listens_once_it_reads_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    port, tried = free_port(), []

    def load(model: ModelConfig, layers: str) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        tried.append(layers)
        raise ConfigError("no layers")

    monkeypatch.setattr(build, "load_stage", load)
    with pytest.raises(ConfigError, match="no layers"):
        build.build_stage(StageConfig(layers="0:1", listen=f"tcp://127.0.0.1:{port}"), ModelConfig(model="x"))
    assert tried == ["0:1"]
