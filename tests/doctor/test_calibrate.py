"""Thresholds of relaxed verification from a target and its draft, and the file that targets read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from starspec.config import Calibration, ModelConfig, SpeculativeConfig, TargetConfig, read_calibration
from starspec.doctor.calibrate import calibrate, choose_thresholds
from starspec.engine.checks import why_unsuited
from starspec.errors import ConfigError
from starspec.harness.datasets import own_prompts
from starspec.harness.report import write_report
from starspec.ids import LinkId
from starspec.speculation.relaxed import Evidence
from starspec.wire.messages import PROTOCOL_VERSION, Welcome


def config(**options: object) -> ModelConfig:
    spec = ",".join(f"{name}={value}" for name, value in {"vocab": 128, "step_ms": 0, **options}.items())
    return ModelConfig(model=f"synthetic:{spec}", max_model_len=256, num_rows=2)


def test_each_test_marks_a_third_of_the_share() -> None:
    tens = [
        Evidence(torch.tensor([1.0 + index, 99.0]), torch.tensor([index / 100, 0.9]), index / 10) for index in range(11)
    ]
    found = choose_thresholds(tens, key_share=0.6)  # a fifth each; the first token of a position counts
    assert (found.lambda_1, found.lambda_2, found.lambda_3) == pytest.approx((9.0, 0.08, 0.2))
    are_key = [bool(each.is_key(found)[0]) for each in tens]
    assert are_key == [index < 2 or index > 8 for index in range(11)]  # two of three tests agree: less than the share


def test_what_a_pair_is_calibrated_to_is_what_a_target_reads(tmp_path: Path) -> None:
    speculative = SpeculativeConfig(model=config(alpha=0.7, role="draft").model)
    found = calibrate(config(alpha=0.7), speculative, own_prompts()[:3], max_tokens=24, key_share=0.3)
    assert found.num_positions == 3 * 24
    assert 0.0 < found.measured_key_share <= 0.3
    file = tmp_path / "thresholds.json"
    write_report(found, file)
    assert read_calibration(str(file)) == Calibration(found.thresholds, str(file), found.target, found.draft)
    assert '"provenance"' in file.read_text()


def test_thresholds_of_another_pair_are_noticed_if_the_file_says_whose_they_are(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.json"
    content = {"thresholds": {"lambda_1": 2.5, "lambda_2": 0.3, "lambda_3": 0.1}}
    file.write_text(json.dumps({"target": "big", "draft": "small", **content}))
    found = read_calibration(str(file))
    assert found.why_of_others(target="big", draft="small") == found.why_of_others() == ""
    said = f"--relaxed-thresholds: '{file}' was calibrated for the draft 'small', and not for 'tiny'"
    assert said in found.why_of_others(target="big", draft="tiny")
    welcome = Welcome(PROTOCOL_VERSION, LinkId("0" * 32), 1, "tiny", 8, 1.0)
    config = TargetConfig(allow_relaxed=True, relaxed_thresholds=str(file))
    assert said in why_unsuited(config, SpeculativeConfig(), found, welcome)
    file.write_text(json.dumps(content))  # of an earlier starspec
    assert read_calibration(str(file)).why_of_others(target="big", draft="tiny") == ""


def test_a_draft_that_does_not_fit_is_refused() -> None:
    speculative = SpeculativeConfig(model=config(vocab=256, role="draft").model)
    with pytest.raises(ConfigError, match=r"does not fit this target: .*128 tokens against 256"):
        calibrate(config(), speculative, own_prompts()[:1], max_tokens=4, key_share=0.3)
    with pytest.raises(ConfigError, match="give --draft"):
        calibrate(config(), SpeculativeConfig(), own_prompts()[:1], max_tokens=4, key_share=0.3)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not a file of `starspec calibrate`"),
        ('{"a": ' + "[" * 20000, "is not a file of `starspec calibrate`"),
        ('{"thresholds": {}}', "its thresholds are '', and not 'lambda_1, lambda_2, lambda_3'"),
        (
            '{"thresholds": {"lambda1": 2.5, "lambda_2": 0.3, "lambda_3": 0.1}}',
            "its thresholds are 'lambda1, lambda_2, lambda_3', and not 'lambda_1,",
        ),
        ('{"rows": []}', "missing required field 'thresholds'"),
        (
            '{"thresholds": {"lambda_1": 2, "lambda_2": 7, "lambda_3": 0.1}}',
            r"thresholds.json' is not a file of `starspec calibrate`: lambda_2 must be in \[0, 1\], got 7",
        ),
        ('{"thresholds": {"lambda_1": "x", "lambda_2": 0.3, "lambda_3": 0.1}}', "got 'str' - at .*lambda_1"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    file = tmp_path / "thresholds.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        read_calibration(str(file))


def test_a_file_that_is_not_there_is_refused_and_none_means_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_calibration(str(tmp_path / "none.json"))
    assert read_calibration(None) == Calibration()
