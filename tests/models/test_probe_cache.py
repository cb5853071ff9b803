"""A cached probe result is used where it is valid, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_config, make_info, make_model

from starspec.models.attention.plan import AttentionMode
from starspec.models.batch import RowRange
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.linear.dense import pack_dense
from starspec.models.numerics import probe_cache, ragged_attention
from starspec.models.numerics.probe import settle_numerics
from starspec.models.numerics.probe_cache import EARLIER, settle_from_cache

TELL_MODEL = probe_cache._model  # in other tests the folder has no part in it


class Probe:
    """The real one, counted."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, runner: FusedRunner) -> None:
        self.num_calls += 1
        settle_numerics(runner)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probe:
    monkeypatch.setenv("STARSPEC_CACHE", str(tmp_path / "cache"))
    probe = Probe()
    monkeypatch.setattr(probe_cache, "settle_numerics", probe)
    monkeypatch.setattr(probe_cache, "_model", TELL_MODEL)
    monkeypatch.setattr(ragged_attention, "PREFIX_LENS", (3, 60))  # in less time
    monkeypatch.setattr(ragged_attention, "NEAR_BLOCK_ENDS", range(0))
    return probe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def settled(
    folder: Path, kind: str = "fused", dtype: torch.dtype = torch.float32, max_model_len: int = 128, **changes: object
) -> FusedRunner | TransformersRunner:
    model, config = make_model(dtype=dtype), make_config(**changes)
    info = make_info(max_model_len=max_model_len)
    runner = (
        TransformersRunner(model, config, info) if kind == "unfused" else FusedRunner(model, config, info, pack_dense)
    )
    settle_from_cache(runner, config, folder)
    return runner


def test_a_second_start_knows_what_the_first_one_found(probe: Probe, folder: Path) -> None:
    first, second = settled(folder), settled(folder)
    assert probe.num_calls == 1
    assert (
        (second.rows, second.attention_mode)
        == (first.rows, first.attention_mode)
        != (RowRange(1, None), AttentionMode.FAST)
    )
    assert second.numerics_report == first.numerics_report + EARLIER


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": torch.bfloat16},
        {"max_model_len": 64},
        {"kind": "unfused"},
        {"fused": False},
        {"quantization": "int8"},
        {"enforce_eager": True},
    ],
    ids=str,
)
def test_another_way_of_computing_is_probed(probe: Probe, folder: Path, changes: dict[str, Any]) -> None:
    settled(folder)
    settled(folder, **changes)
    assert probe.num_calls == 2


def test_another_machine_number_of_threads_or_version_of_the_code_is_probed(
    probe: Probe, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(folder)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    settled(folder)
    monkeypatch.setattr(probe_cache, "_processor", lambda: "another one")
    settled(folder)
    monkeypatch.setattr(probe_cache, "_code", lambda: [b"other code"])
    settled(folder)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        settled(folder)
    finally:
        torch.set_num_threads(num_threads)
    assert probe.num_calls == 5


def test_another_model_of_the_same_shapes_is_probed(probe: Probe, folder: Path) -> None:
    settled(folder)
    (folder / "config.json").write_text('{"rope_theta": 1}')
    settled(folder)
    other = folder.with_name("other")
    folder.rename(other)
    settled(other)
    assert probe.num_calls == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"lowest": 2, "highest": 64, "attention_mode": 7, "report": ""}',
        b'{"lowest": 2, "highest": 64, "attention_mode": 2, "report": "\xff"}',
        b'{"lowest": 5, "highest": 3, "attention_mode": 2, "report": ""}',
        b'{"lowest": 0, "highest": 64, "attention_mode": 2, "report": ""}',
        b"[" * 100_000,
    ],
    ids=lambda content: str(content[:60]),
)
def test_a_finding_that_cannot_be_read_is_none(probe: Probe, folder: Path, tmp_path: Path, content: bytes) -> None:
    settled(folder)
    (file,) = (tmp_path / "cache" / "numerics").iterdir()
    file.write_bytes(content)
    settled(folder)
    settled(folder)
    assert probe.num_calls == 2


def test_where_nothing_can_be_kept_every_start_probes(
    probe: Probe, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert settled(folder).attention_mode is settled(folder).attention_mode
    assert probe.num_calls == 2

    monkeypatch.setenv("STARSPEC_CACHE", "~nosuch/cache")
    assert settled(folder).attention_mode is not AttentionMode.FAST
