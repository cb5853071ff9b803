"""What the probe found is kept for those whom it holds for, and for nobody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import make_config, make_info, make_model

from starspec.models import numerics_memo
from starspec.models.attention_plan import Reading
from starspec.models.batch import RowRange
from starspec.models.fused import FusedRunner
from starspec.models.hf import TransformersRunner
from starspec.models.numerics import settle_numerics
from starspec.models.numerics_memo import EARLIER, settle_once
from starspec.models.prepack import pack_dense


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
    monkeypatch.setattr(numerics_memo, "settle_numerics", probe)
    return probe


def make_runner(kind: str = "fused", **changes: object) -> FusedRunner | TransformersRunner:
    model, config = make_model(dtype=changes.pop("dtype", torch.float32)), make_config()
    if kind == "unfused":
        return TransformersRunner(model, config, make_info(**changes))
    return FusedRunner(model, config, make_info(**changes), pack_dense)


def settled(**changes: object) -> FusedRunner | TransformersRunner:
    runner = make_runner(**changes)
    settle_once(runner)
    return runner


def test_a_second_start_knows_what_the_first_one_found(probe: Probe) -> None:
    first, second = settled(), settled()
    assert probe.num_calls == 1
    assert (second.rows, second.reading) == (first.rows, first.reading) != (RowRange(1, None), Reading.FAST)
    assert second.numerics_report == first.numerics_report + EARLIER


@pytest.mark.parametrize("changes", [{"dtype": torch.bfloat16}, {"max_model_len": 64}, {"kind": "unfused"}], ids=str)
def test_another_way_of_computing_is_probed(probe: Probe, changes: dict[str, object]) -> None:
    settled()
    settled(**changes)
    assert probe.num_calls == 2


def test_another_machine_number_of_threads_or_version_of_the_code_is_probed(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    settled()
    monkeypatch.setattr(numerics_memo, "_processor", lambda: "another one")
    settled()
    monkeypatch.setattr(numerics_memo, "_code", lambda: [b"other code"])
    settled()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        settled()
    finally:
        torch.set_num_threads(num_threads)
    assert probe.num_calls == 5


def test_the_same_shapes_of_another_model_are_probed(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    settled()
    runner = make_runner()
    monkeypatch.setattr(runner, "_info", SimpleNamespace(name="other", vocab_size=64, num_layers=2))
    settle_once(runner)
    assert probe.num_calls == 2


@pytest.mark.parametrize("content", [b"", b"{}", b'{"lowest": 2, "highest": 64, "reading": 7, "report": ""}'], ids=str)
def test_a_finding_that_cannot_be_read_is_none(probe: Probe, tmp_path: Path, content: bytes) -> None:
    settled()
    (file,) = (tmp_path / "cache" / "numerics").iterdir()
    file.write_bytes(content)
    settled()
    settled()
    assert probe.num_calls == 2


def test_where_nothing_can_be_kept_every_start_probes(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert settled().reading is settled().reading
    assert probe.num_calls == 2
