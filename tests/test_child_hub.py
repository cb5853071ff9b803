"""`LLM` with a hub that runs ahead, in a process of its own: real processes, synthetic models."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from starspec import LLM, ConfigError, SamplingParams
from starspec.child_hub import MAX_DEATHS, ChildHub, ChildHubDrafts
from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.errors import StarspecError
from starspec.hub.checks import suited_to
from starspec.models.resolve import resolve_draft
from starspec.observe.status import StatusWatch
from starspec.stats import HubStats
from starspec.supervise.child import ChildSpec

TARGET = "synthetic:role=target,step_ms=10"
DRAFT = "synthetic:role=draft,step_ms=1,alpha=0.85"
AHEAD = {"model": DRAFT, "num_speculative_tokens": 4, "device": "cpu", "length": {"policy": "fixed"}}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
PROMPTS = [[1, 2, 3], [4]]
PATIENCE_S = 60.0


def llm_of(run_ahead: bool | str | None = "outcomes", **options: object) -> LLM:
    speculative = None if run_ahead is None else {**AHEAD, "run_ahead": run_ahead}
    return LLM(TARGET, speculative_config=speculative, max_model_len=256, use_tqdm=False, **options)  # type: ignore[arg-type]


def answers(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in llm.generate(PROMPTS, params)]


def hub_of(llm: LLM) -> ChildHub:
    assert isinstance(llm.engine.drafts, ChildHubDrafts)
    return llm.engine.drafts.child


def pid_of(llm: LLM) -> int:
    pid = hub_of(llm).pid
    assert pid is not None
    return pid


def stats_of(llm: LLM) -> HubStats:
    watch = StatusWatch([], hub_of(llm).endpoint)
    until_s = time.monotonic() + PATIENCE_S
    while watch.snapshot.hub is None and time.monotonic() < until_s:
        watch.poll()
        time.sleep(0.01)
    status = watch.snapshot.hub
    watch.close()
    assert status is not None
    return status.stats


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not is_alive(pid)


@pytest.mark.system
def test_a_draft_that_runs_ahead_changes_no_token_and_its_outcomes_are_hit() -> None:
    drawn = SamplingParams(temperature=0.8, seed=5, max_tokens=40)
    with llm_of(None) as plain:
        expected = [answers(plain), answers(plain, drawn)]
    with llm_of() as llm:
        pid = pid_of(llm)
        begun = llm.stream([1], GREEDY)
        next(begun)
        assert [answers(llm), answers(llm, drawn)] == expected
        assert llm.stats.acceptance.num_accepted_tokens > 40
        time.sleep(0.2)  # the age that published statistics may have
        assert stats_of(llm).num_hits > 0  # how many depends on what else the machine does
    assert not is_alive(pid)
    llm.close()  # again
    for ask in (lambda: answers(llm), lambda: next(begun)):
        with pytest.raises(StarspecError, match="this LLM is closed"):
            ask()


@pytest.mark.system
def test_the_hub_of_an_llm_that_nobody_holds_has_ended() -> None:
    llm = llm_of(True)
    pid = pid_of(llm)
    next(llm.stream([1, 2, 3], GREEDY))  # never finished
    del llm
    gc.collect()
    assert not is_alive(pid)


@pytest.mark.system
def test_the_death_of_the_hub_is_told_and_answers_go_on(capfd: pytest.CaptureFixture[str]) -> None:
    with llm_of(None) as plain:
        expected = answers(plain)
    with llm_of() as llm:
        first = pid_of(llm)
        stream = llm.stream(PROMPTS[0], GREEDY)
        tokens = list(next(stream).token_ids)
        os.kill(first, signal.SIGKILL)
        tokens += [token for piece in stream for token in piece.token_ids]
        assert tokens == expected[0]
        until_s = time.monotonic() + PATIENCE_S
        while not (llm.engine.drafts.is_connected and hub_of(llm).pid not in (None, first)):
            assert answers(llm) == expected
            assert time.monotonic() < until_s
        second = pid_of(llm)
    assert not is_alive(second)
    assert "killed by SIGKILL; starting it again" in "".join(capfd.readouterr())


SCRIPT = f"""
import signal
from starspec import LLM, SamplingParams
llm = LLM({TARGET!r}, speculative_config={{"model": {DRAFT!r}, "run_ahead": True}}, max_model_len=4096, use_tqdm=False)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
try:
    print(llm.engine.drafts.child.pid, flush=True)
    llm.generate([[1]], SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True))
except KeyboardInterrupt:
    [result] = llm.generate([[1]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    print(len(result.outputs[0].token_ids), llm.engine.drafts.is_connected, flush=True)
"""


@pytest.mark.system
def test_ctrl_c_ends_an_answer_and_the_end_of_the_script_ends_the_hub(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err, process.returncode) == ("8 True\n", "", 0)
    wait_until_gone(pid)


FORKING = f"""
import os, signal
from starspec import LLM, SamplingParams
llm = LLM({TARGET!r}, speculative_config={{"model": {DRAFT!r}, "run_ahead": True}}, max_model_len=256, use_tqdm=False)
pid = os.fork()
if pid == 0:
    signal.alarm(20)  # it dies of this if it waits for its parent's hub
    llm.close()
    raise SystemExit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), llm.engine.drafts.child.pid, flush=True)
[result] = llm.generate([[1]], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
print(len(result.outputs[0].token_ids), llm.engine.drafts.is_connected)
"""


@pytest.mark.system
def test_a_forked_process_ends_and_leaves_its_parents_hub_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKING)
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    forked, hub, *answered = ended.stdout.split()
    assert (forked, answered, ended.returncode) == ("7", ["8", "True"], 0)
    wait_until_gone(int(hub))


@pytest.mark.system
def test_a_hub_that_cannot_start_is_an_error_with_its_own_words() -> None:
    draft = ModelConfig(model="synthetic:role=draft,vocab=7")
    with pytest.raises(ConfigError, match="hub cannot start: synthetic model: vocab must be at least 64, got 7"):
        ChildHub(SpeculativeConfig(model=draft.model, run_ahead=True), draft, TARGET)


@pytest.mark.system
@pytest.mark.parametrize(
    "code", ["kill -9 $$", 'echo \'{"type":"ready","address":"x"}\' >&$STARSPEC_SUPERVISOR_FD; kill -9 $$']
)
def test_a_hub_that_dies_again_and_again_while_it_starts_is_soon_an_error(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def dying(_: object, environment: dict[str, str]) -> ChildSpec:
        return ChildSpec(name="hub", command=("/bin/bash", "-c", code), environment=environment, is_essential=False)

    monkeypatch.setattr("starspec.child_hub.hub_spec", dying)
    begun_s = time.monotonic()
    with pytest.raises(
        StarspecError, match=f"the draft's process ended {MAX_DEATHS} times before it was ready: killed"
    ):
        llm_of()
    assert time.monotonic() - begun_s < 15.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": DRAFT, "run_ahead": "outcome"}, "run_ahead 'outcome' is unknown; did you mean 'outcomes'"),
        ({"model": DRAFT, "run_ahead": True, "device": "gpu"}, "device 'gpu' is unknown"),
        ({"method": "ngram", "run_ahead": True}, "run_ahead: for drafts with a model, and method 'ngram' has none"),
        ({"method": "ngram", "device": "cpu"}, "device: for drafts with a model"),
        ({"method": "eagle", "model": DRAFT, "run_ahead": True}, "run_ahead of the speculative config is for draft"),
        (
            {"remote": {"endpoint": "tcp://h:1"}, "run_ahead": True, "device": "cpu"},
            "device and run_ahead: how a draft elsewhere runs is told to its hub",
        ),
    ],
)
def test_what_cannot_run_ahead_is_refused_before_anything_loads(given: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM(TARGET, speculative_config=given, max_model_len=256, use_tqdm=False)


def test_a_hub_runs_ahead_as_its_speculative_config_or_its_option_says() -> None:
    for said, option, mode in ((True, "off", "auto"), ("chain", "chain", "chain"), (None, "chain", "chain")):
        draft = resolve_draft(SpeculativeConfig(model=DRAFT, run_ahead=said))
        assert suited_to(draft, HubConfig(run_ahead=option)).run_ahead == mode
    draft = resolve_draft(SpeculativeConfig(model=DRAFT, run_ahead="outcomes"))
    with pytest.raises(ConfigError, match="--run-ahead chain and run_ahead 'outcomes' of the speculative config: give"):
        suited_to(draft, HubConfig(run_ahead="chain"))


def test_the_draft_runs_on_its_own_device_and_else_on_the_targets() -> None:
    target = ModelConfig(model=TARGET, device="cuda:0")
    for given, device in (({}, "cuda:0"), ({"device": "cuda:1"}, "cuda:1")):
        draft = SpeculativeConfig(model=DRAFT, **given).draft_model(target)
        assert draft is not None
        assert draft.device == device
