"""The doctor's checks and measurements, on pairs that are good, bad and unfit."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import CausalScorer
from starspec.doctor.checks import check_lengths, check_sizes, check_tokenizers
from starspec.doctor.examine import examine
from starspec.doctor.rounding import answer_logits, load_stages
from starspec.doctor.text import blocks
from starspec.errors import ConfigError
from starspec.harness.datasets import own_prompts
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelInfo, Segment
from starspec.models.synthetic.tokenizer import synthetic_tokenizer


def config(**options: object) -> ModelConfig:
    spec = ",".join(f"{name}={value}" for name, value in {"vocab": 128, "step_ms": 0, **options}.items())
    return ModelConfig(model=f"synthetic:{spec}", max_model_len=256, num_rows=2)


def diagnose(target: ModelConfig, draft: ModelConfig):
    speculative = SpeculativeConfig(model=draft.model)
    return examine(target, speculative, own_prompts()[:3], max_tokens=24, max_draft_tokens=4, link_s=0.0)


@pytest.mark.usefixtures("modelled_time")
def test_a_good_draft_is_recommended_with_a_length() -> None:
    found = diagnose(config(step_ms=6, alpha=0.9), config(step_ms=0.5, alpha=0.9, role="draft"))
    assert found.is_usable
    assert [prospect.sampling for prospect in found.prospects] == ["greedy", "T=0.7"]
    for prospect in found.prospects:
        assert prospect.best is not None
        assert prospect.best.speed_up > 1.5
        assert 0.8 < prospect.first_choice_rate <= prospect.first_four_rate
        assert prospect.sayable_rate == 1.0
        assert [each.num_draft_tokens for each in prospect.forecasts] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("modelled_time")
def test_a_draft_as_slow_as_its_target_is_not() -> None:
    found = diagnose(config(step_ms=2), config(step_ms=2, role="draft"))
    assert found.is_usable
    assert all(prospect.best is None for prospect in found.prospects)


def test_caches_that_fit_alone_and_not_together_are_told_before_anything_is_measured(monkeypatch) -> None:
    target, draft = config(), config(role="draft")
    one = load_runner(target).cache.num_bytes
    assert diagnose(target, draft).checks[2].sentence.startswith("the caches of 2 sequences take at most ")
    monkeypatch.setattr("starspec.cache.ragged.machine_bytes", lambda: one + 1)
    monkeypatch.setattr("starspec.local_star.machine_bytes", lambda: one + 1)
    found = diagnose(target, draft)
    assert (found.is_usable, found.times) == (False, None)
    assert found.checks[-1].what == "memory"
    assert f"take {one} and {one} bytes, together more than this machine's memory" in found.checks[-1].sentence


def test_a_draft_of_another_vocabulary_is_not_even_run() -> None:
    found = diagnose(config(), config(vocab=256, role="draft"))
    assert not found.is_usable
    assert found.times is None
    assert found.prospects == []
    assert found.checks[0].severity == "fatal"
    assert "128 tokens against 256" in found.checks[0].sentence


@pytest.mark.parametrize(("theirs", "severity"), [("same", "ok"), ("other", "warning"), (None, "warning")])
def test_chat_templates_are_compared(theirs: str | None, severity: str) -> None:
    target, draft = (synthetic_tokenizer("synthetic:vocab=128") for _ in range(2))
    target.chat_template, draft.chat_template = "same", theirs
    assert check_tokenizers(target, draft)[1].severity == severity


def test_a_target_without_a_chat_template_is_told_so() -> None:
    tokenizer = SimpleNamespace(get_vocab=dict, chat_template=None)
    assert "/v1/chat/completions" in check_tokenizers(tokenizer, tokenizer)[1].sentence


def info(max_model_len: int, num_weight_bytes: int) -> ModelInfo:
    return ModelInfo("model", 128, max_model_len, 0, num_weight_bytes, ())


def test_a_draft_that_is_shorter_or_no_smaller_is_noted() -> None:
    large, small = info(4096, 2**30), info(1024, 2**28)
    assert check_lengths(large, small).severity == "warning"
    assert check_lengths(small, large).severity == "ok"
    assert check_sizes(large, small).severity == "ok"
    assert check_sizes(small, large).severity == "warning"
    assert "1024 MiB of the target, 256 MiB of the draft" in check_sizes(large, small).sentence


def test_without_a_draft_there_is_nothing_to_examine() -> None:
    with pytest.raises(ConfigError, match="give --draft"):
        examine(config(), SpeculativeConfig(), [], max_tokens=2, max_draft_tokens=1, link_s=0.0)


def test_an_answer_is_read_as_the_model_would_have_said_it() -> None:
    prompt, answer = [5] * 300, [9, 8, 7]  # longer than a chunk of the prompt
    runner = load_runner(ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=512, num_rows=1))
    logits = CausalScorer(runner).answer_logits(prompt, answer)
    row = runner.cache.lease()
    expected = runner.forward([Segment(row, [*prompt, *answer[:-1]], num_logits=3)]).logits
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("prompt_len", [10, 40, 47, 48, 49, 60])
def test_beyond_its_length_a_draft_guesses_nothing(prompt_len: int) -> None:
    prompt, answer = [5] * prompt_len, [9, 8, 7, 6, 5, 4, 3, 2] * 2
    long, short = (
        load_runner(ModelConfig(model="synthetic:vocab=128,step_ms=0", max_model_len=length, num_rows=1))
        for length in (512, 48)
    )
    max_nodes = min(len(answer), max(0, 48 + 1 - prompt_len))
    expected, logits = (CausalScorer(each).answer_logits(prompt, answer) for each in (long, short))
    assert torch.equal(logits[:max_nodes], expected[:max_nodes])
    assert bool((logits[max_nodes:] == float("-inf")).all())
    assert short.cache.num_free_rows == 1


def test_a_draft_that_holds_less_than_an_answer_is_examined_as_far_as_it_goes(
    target_folder: Path, tmp_path: Path
) -> None:
    draft = shutil.copytree(target_folder, tmp_path / "short")
    settings = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 48}))
    target = ModelConfig(model=str(target_folder), dtype="float32", num_rows=2)
    speculative, plan = SpeculativeConfig(model=str(draft)), {"max_tokens": 40, "max_draft_tokens": 2, "link_s": 0.0}
    found = examine(target, speculative, own_prompts()[:3], **plan)
    greedy = found.prospects[0]
    assert 0.0 < greedy.sayable_rate < 1.0
    assert greedy.first_choice_rate == greedy.sayable_rate  # it is the target itself, as far as it goes


@pytest.fixture(scope="module")
def wavering(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """A target whose every token tells whether hidden states were passed on right."""
    from predictable import write_target

    folder = write_target(tmp_path_factory.mktemp("models") / "wavering", wavers=True)
    return ModelConfig(model=str(folder), dtype="float32", num_rows=2)


def test_stages_score_an_answer_as_the_whole_model_does_unless_hidden_states_are_rounded(wavering: ModelConfig) -> None:
    prompt, answer = [3, 8, 5] * 100, [9, 8, 7, 3]  # longer than a chunk
    stages = load_stages(wavering, 2)
    exact, rounded = (answer_logits(stages, each, prompt, answer) for each in ("model", "int8"))
    torch.testing.assert_close(exact, CausalScorer(load_runner(wavering)).answer_logits(prompt, answer))
    assert 0.0 < float((exact - rounded).abs().max()) < 1.0
    assert [each.cache.num_free_rows for each in stages] == [2, 2]


def test_what_eight_bits_between_stages_change_is_told_if_stages_are_given(wavering: ModelConfig) -> None:
    plan = {"max_tokens": 12, "max_draft_tokens": 2, "link_s": 0.0}
    draft = SpeculativeConfig(model=wavering.model)
    found = examine(wavering, draft, own_prompts()[:3], num_stages=2, **plan)
    assert found.rounding is not None
    assert (found.rounding.num_stages, found.rounding.num_positions) == (2, found.prospects[0].num_positions)
    assert 0 < found.rounding.num_same <= found.rounding.num_positions
    assert 0.0 < found.rounding.mean_kl < 0.1
    said = blocks(found, "--spec-tokens")[-1]
    assert f"the same at {found.rounding.num_same} of {found.rounding.num_positions} positions" in said
    assert examine(wavering, draft, own_prompts()[:3], **plan).rounding is None
    with pytest.raises(ConfigError, match="layers 0:0 do not exist"):
        examine(wavering, draft, own_prompts()[:3], num_stages=3, **plan)
