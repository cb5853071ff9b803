"""`bench vllm` with a toy in the place of vLLM: servers, turns, counts, near-ties. `make test-vllm` has real ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from starspec.bench.vllm.measure import VllmPlan, VllmRow, measure_vllm, ratios_of
from starspec.bench.vllm.methods import (
    DRAFT_MODEL,
    HUB,
    NEAR_TIE,
    PLAIN,
    SILENT_HUB,
    Parting,
    VllmAnswer,
    VllmModels,
    partings,
)
from starspec.errors import ConfigError, PeerLost
from starspec.harness.datasets import own_prompts
from starspec.harness.report import Spread
from starspec.harness.servers import VllmServer

TOY = Path(__file__).parent / "toy_vllm"


@pytest.fixture
def toy_vllm(monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that finds the toy under vLLM's name."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), *sys.path]))
    return sys.executable


def toy_models(python: str) -> VllmModels:
    return VllmModels(
        python=python,
        target="synthetic:role=target",
        draft="synthetic:role=draft",
        quantization="none",
        dtype="bfloat16",
        num_threads=1,
        num_draft_tokens=4,
    )


def answer(*token_ids: int, likeliest: list[dict[int, float]] | None = None) -> VllmAnswer:
    return VllmAnswer(token_ids, likeliest or [])


def test_answers_part_where_their_tokens_first_differ() -> None:
    likeliest = [{1: -0.1, 9: -3.0}, {2: -0.7, 7: -0.75}, {3: -0.2}]
    truth = answer(1, 2, 3, likeliest=likeliest)
    assert partings([truth], [answer(1, 2, 3)]) == []
    assert partings([truth, truth], [answer(1, 2, 3), answer(1, 7, 3)]) == [Parting(1, 1, pytest.approx(0.05))]
    (wide,) = partings([truth], [answer(9, 2, 3)])
    (unseen,) = partings([truth], [answer(1, 2, 4)])
    assert (wide.is_near_tie, unseen.gap, unseen.is_near_tie) == (False, None, False)
    assert Parting(0, 0, NEAR_TIE).is_near_tie


@pytest.mark.system
def test_every_method_answers_in_turns(toy_vllm: str) -> None:
    models = toy_models(toy_vllm)
    plan = VllmPlan(num_prompts=2, max_tokens=6, batch_sizes=(1, 2), num_repeats=1, lengths=(3,))
    so_far, report = measure_vllm(models, [own_prompts()], plan, lambda *_: None)
    assert so_far.rows == report.rows[:6]
    silent = f"{PLAIN}, {SILENT_HUB}"
    assert so_far.notes["rivals"] == [PLAIN, silent]
    own = f"{DRAFT_MODEL}, K = 3"
    assert [(row.rival, row.method, row.num_draft_tokens, row.batch_size) for row in report.rows] == [
        *((PLAIN, PLAIN, 0, size) for size in (1, 2)),
        *((PLAIN, HUB, 4, size) for size in (1, 2)),
        (silent, PLAIN, 0, 1),
        (silent, SILENT_HUB, 4, 1),
        *((own, DRAFT_MODEL, 3, size) for size in (1, 2)),
        *((own, HUB, 4, size) for size in (1, 2)),
    ]
    for row in report.rows:
        assert row.tokens_per_s.lowest > 0
        assert row.acceptance_length == (1.0 if row.method == PLAIN else 2.0)
        has_parted = row.method in (HUB, SILENT_HUB)
        assert (row.num_identical, row.num_near_ties) == ((0, 2) if has_parted else (2, 0))
    assert report.ratios.keys() == {
        "hub_vs_draft_model_b1",
        "hub_vs_plain_b1",
        "silent_hub_vs_plain_b1",
        "hub_vs_draft_model_b2",
        "hub_vs_plain_b2",
    }
    assert report.notes["vllm_version"] == "0.32.0"


def test_a_ratio_is_of_two_that_answered_in_turns_and_against_the_best_length() -> None:
    def row(method: str, rival: str, rate: float) -> VllmRow:
        return VllmRow(
            method=method,
            num_draft_tokens=0,
            rival=rival,
            batch_size=1,
            tokens_per_s=Spread.of([rate]),
            acceptance_length=1.0,
            num_answers=1,
            num_identical=1,
            num_near_ties=0,
            gaps=[],
        )

    rows = [row(PLAIN, PLAIN, 10.0), row(HUB, PLAIN, 20.0)]
    rows += [row(PLAIN, "plain, silent hub", 8.0), row(SILENT_HUB, "plain, silent hub", 7.2)]
    # The machine was slower meanwhile, for both: 18 / 12 tells more than 20 / 12.
    rows += [row(DRAFT_MODEL, "K = 3", 12.0), row(HUB, "K = 3", 18.0)]
    rows += [row(DRAFT_MODEL, "K = 5", 16.0), row(HUB, "K = 5", 20.0)]
    assert ratios_of(rows) == {"hub_vs_draft_model_b1": 1.25, "hub_vs_plain_b1": 2.0, "silent_hub_vs_plain_b1": 0.9}


@pytest.mark.system
def test_a_server_that_does_not_come_up_is_told_with_its_last_words(toy_vllm: str) -> None:
    with (
        VllmServer(toy_vllm, "model", speculative={"method": "custom_class"}) as server,
        pytest.raises(PeerLost, match="this one does not come up"),
    ):
        server.wait_ready()


def test_a_batch_that_no_run_would_fill_is_refused() -> None:
    models = toy_models(sys.executable)
    with pytest.raises(ConfigError, match="3 prompts do not fill a batch of 8"):
        next(measure_vllm(models, [own_prompts()], VllmPlan(num_prompts=3, batch_sizes=(1, 8)), lambda *_: None))


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'/nowhere/python' cannot be run: no such file"):
        VllmServer("/nowhere/python", "model")
