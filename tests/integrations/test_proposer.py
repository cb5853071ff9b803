"""The class as vLLM constructs and calls it, with a vLLM of three attributes and no hub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from starspec.errors import ConfigError
from starspec.integrations.vllm import StarProposer
from starspec.wire.messages import Hello

HEAVY = ["torch", "transformers", "starspec.models", "starspec.engine", "starspec.hub", "starspec.gateway", "fastapi"]


@pytest.fixture
def proposer(vllm_config: Any) -> Iterator[StarProposer]:
    proposer = StarProposer(vllm_config)
    yield proposer
    proposer.shutdown()


def batch(*rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    token_ids = np.zeros((4, 128), np.int32)
    for row, ids in enumerate(rows):
        token_ids[row, : len(ids)] = ids
    return np.array([len(ids) for ids in rows] + [0] * (4 - len(rows)), np.int32), token_ids


def test_without_a_hub_ngrams_draft(proposer: StarProposer) -> None:
    rows = [1, 2, 3, 4, 1, 2], [5, 6, 7]
    assert proposer.propose([[2], []], *batch(*rows), slot_mappings=None) == [[3, 4, 1], []]


def test_a_bug_of_ours_ends_the_drafting_and_not_the_server(proposer: StarProposer) -> None:
    nonsense: Any = "no array"
    assert proposer.propose([[2], [3]], nonsense, nonsense) == [[], []]
    assert proposer.propose([[2]], *batch([1, 2, 1, 2])) == [[]]


def test_only_the_rank_whose_drafts_are_used_speaks_to_the_hub(vllm_config: Any) -> None:
    vllm_config.parallel_config.rank = 1
    proposer = StarProposer(vllm_config)
    assert proposer.propose([[2]], *batch([1, 2, 1, 2])) == [[]]


@pytest.mark.parametrize(("size", "name"), [(1, "rack"), (4, "rack-3")])
def test_data_parallel_ranks_of_one_name_are_told_apart(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch, size: int, name: str
) -> None:
    monkeypatch.setenv("STARSPEC_NAME", "rack")
    said: list[Hello] = []
    monkeypatch.setattr("starspec.integrations.vllm.proposer.ZmqTarget", lambda hub, hello, *_: said.append(hello))
    monkeypatch.setattr("starspec.integrations.vllm.proposer.HubClient", MagicMock())
    vllm_config.parallel_config.data_parallel_size = size
    vllm_config.parallel_config.data_parallel_rank = 3
    StarProposer(vllm_config).shutdown()
    assert said[0].target_id.startswith(f"{name} (vLLM ")


def test_a_long_name_is_cut_to_what_a_hub_takes(vllm_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSPEC_NAME", "x" * 300)
    said: list[Hello] = []
    monkeypatch.setattr("starspec.integrations.vllm.proposer.ZmqTarget", lambda hub, hello, *_: said.append(hello))
    monkeypatch.setattr("starspec.integrations.vllm.proposer.HubClient", MagicMock())
    StarProposer(vllm_config).shutdown()
    assert len(said[0].target_id) == 200


@pytest.mark.parametrize("rank", [0, 1])
def test_the_sampler_is_mended_on_every_rank(vllm_config: Any, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    patch = MagicMock()
    monkeypatch.setattr("starspec.integrations.vllm.proposer.patch_sampler", patch)
    vllm_config.parallel_config.rank = rank
    StarProposer(vllm_config).shutdown()
    patch.assert_called_once_with()


def test_who_shares_cores_with_the_hub_is_advised(vllm_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    advise = MagicMock()
    monkeypatch.setattr("starspec.integrations.vllm.proposer.advise", advise)
    StarProposer(vllm_config).shutdown()
    advise.assert_called_once_with("tcp://127.0.0.1:9", os.environ)


def test_a_vllm_without_a_tokenizer_is_refused(vllm_config: Any) -> None:
    vllm_config.model_config.words = None
    with pytest.raises(ConfigError, match="--skip-tokenizer-init"):
        StarProposer(vllm_config)


def test_a_hub_elsewhere_needs_keys_and_the_sentence_names_what_vllms_operator_can_set(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARSPEC_HUB", "tcp://10.0.0.1:7700")
    with pytest.raises(
        ConfigError, match=r"tcp://10.0.0.1:7700 without keys: .* STARSPEC_KEYS=FOLDER, .* STARSPEC_INS"
    ):
        StarProposer(vllm_config)


def test_it_is_used_no_more_after_shutdown(proposer: StarProposer) -> None:
    proposer.shutdown()
    proposer.shutdown()
    assert proposer.propose([[2]], *batch([1, 2, 1, 2])) == [[]]


def test_importing_it_brings_nothing_heavy() -> None:
    code = f"import sys, starspec.integrations.vllm; print([each for each in {HEAVY} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
