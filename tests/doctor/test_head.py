"""The doctor and EAGLE heads: what is read off answers, which layers fit, and what real chains give."""

from pathlib import Path

import pytest
import torch
from predictable import SIZE, TELLING_LAYERS, write_random, write_reader

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import HeadScorer, Sample, measure_agreement
from starspec.doctor.examine import Examination, examine
from starspec.engine.drafts import NoDrafts
from starspec.harness.datasets import own_prompts
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.workbench import GREEDY, Workbench
from starspec.local_star import LocalHub
from starspec.models.heads.load import load_head
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats

MAX_TOKENS = 12
NUM_PROMPTS = 3


def target(folder: Path) -> ModelConfig:
    return ModelConfig(model=str(folder), dtype="float32", num_rows=2, max_model_len=256)


def diagnose(target_folder: Path, head: Path, **options: object) -> Examination:
    return examine(
        target(target_folder),
        SpeculativeConfig(model=str(head), **options),
        own_prompts()[:NUM_PROMPTS],
        max_tokens=MAX_TOKENS,
        max_draft_tokens=3,
        link_s=0.0,
    )


@pytest.fixture(scope="module")
def found(target_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Examination:
    """Of a head that lists the layer before the one that it was made for, as SGLang's list read by vLLM."""
    return diagnose(target_folder, write_reader(tmp_path_factory.mktemp("heads") / "head", feature_layers=(0,)))


def test_a_head_is_checked_against_its_target(found: Examination) -> None:
    assert found.is_usable
    sentences = {check.what: check.sentence for check in found.checks}
    assert "method eagle3; it takes as input the hidden states 0 of 0 to 2, 128 numbers each" in sentences["fit"]
    assert "says 128 of its 128 tokens" in sentences["vocabulary"]
    assert sentences.keys() == {"fit", "vocabulary", "chat template", "memory", "length", "size"}


def test_the_reading_of_the_layers_that_fits_is_found_and_used(found: Examination) -> None:
    assert found.layers is not None
    assert found.layers.is_settled
    best, own = found.layers.used, found.layers.other
    assert (best.feature_layers, best.is_default) == (TELLING_LAYERS, False)
    assert (own.feature_layers, own.is_default) == ((0,), True)
    assert own.first_choice_rate < 0.1
    assert best.first_choice_rate > 0.9
    assert found.prospects[0].first_choice_rate == best.first_choice_rate


def test_of_two_readings_that_fit_as_well_the_heads_own_is_used_and_nothing_claimed(
    target_folder: Path, tmp_path: Path
) -> None:
    choice = diagnose(target_folder, write_reader(tmp_path / "head")).layers
    assert choice is not None
    assert not choice.is_settled
    own, other = choice.used, choice.other
    assert (own.feature_layers, own.is_default) == (TELLING_LAYERS, True)
    assert (other.feature_layers, other.first_choice_rate) == ((2,), own.first_choice_rate)


def test_layers_that_were_given_are_not_doubted(target_folder: Path, tmp_path: Path) -> None:
    head = write_reader(tmp_path / "head", feature_layers=(0,))
    found = diagnose(target_folder, head, feature_layers=TELLING_LAYERS)
    assert found.layers is None
    assert found.prospects[0].first_choice_rate > 0.9


def test_a_forecast_is_made_from_chains_and_not_from_the_first_token_alone(found: Examination) -> None:
    """The head is right once a round: all depths but the first are wrong, and eq. 3 does not know."""
    for prospect in found.prospects:
        rounds = {each.num_draft_tokens: each for each in prospect.forecasts}
        assert rounds[0].tokens_per_round == 1.0
        assert 1.7 < rounds[1].tokens_per_round <= 2.0
        assert rounds[3].tokens_per_round == rounds[1].tokens_per_round < rounds[3].tokens_per_round_eq3


def test_the_share_of_tokens_that_a_reduced_vocabulary_holds_is_told(target_folder: Path, tmp_path: Path) -> None:
    token_ids = tuple(each for each in range(SIZE) if each % 4 != 3)
    found = diagnose(target_folder, write_reader(tmp_path / "head", token_ids=token_ids))
    held = found.prospects[0]
    assert 0.6 < held.sayable_rate < 0.9  # the target's tokens go through all residues in turn
    assert held.sayable_rate - 0.1 < held.first_choice_rate <= held.first_four_rate <= held.sayable_rate


def test_a_head_of_another_target_is_not_even_loaded(tmp_path: Path, narrow_target: Path) -> None:
    found = diagnose(narrow_target, write_reader(tmp_path / "head"))
    assert not found.is_usable
    assert found.checks[0].what == "fit"
    assert (
        "does not fit its target: it takes features of size 128, and the target's are of size 64"
        in found.checks[0].sentence
    )


def test_a_head_of_a_float16_target_runs_in_bfloat16(target_folder: Path, tmp_path: Path) -> None:
    folder = str(write_random(tmp_path / "head"))
    head = load_head(ModelConfig(model=folder, dtype="float16", num_rows=1, numerics="fast"), str(target_folder))
    assert head.cache.dtype == torch.bfloat16


def test_a_head_in_the_present_folder_has_the_folders_name(target_folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(write_random(tmp_path / "head"))
    head = load_head(ModelConfig(model=".", dtype="float32", num_rows=1, numerics="fast"), str(target_folder))
    assert head.info.name == "head"


@pytest.mark.parametrize("prompt_len", [1, 2, 200])
def test_a_head_reads_an_answer_as_it_drafts_it(target_folder: Path, tmp_path: Path, prompt_len: int) -> None:
    """At each position of an answer: the first choice on reading is the chain of one token that the hub proposes."""
    config = ModelConfig(model=str(target_folder), dtype="float32", num_rows=1, max_model_len=256)
    bench = Workbench(config)
    head_folder = str(write_random(tmp_path / "head"))
    prompt = tuple(torch.randint(1, SIZE, (prompt_len,), generator=torch.Generator().manual_seed(1)).tolist())
    job = Job("job", prompt, bench.sampling_spec(GREEDY, seed=1), MAX_TOKENS)
    answers = decode(make_engine(bench.runner, bench.tokenizer, NoDrafts()), [job], batch_size=1)
    head = load_head(ModelConfig(model=head_folder, dtype="float32", num_rows=1, numerics="fast"), str(target_folder))
    logits = HeadScorer(head, bench.runner).answer_logits(prompt, answers[0].token_ids)
    read = {len(prompt) + index: int(row.argmax()) for index, row in enumerate(logits) if row.isfinite().any()}

    drafts = LocalHub(config, bench.runner.info, SpeculativeConfig(model=head_folder), bench.tokenizer).drafts(
        FixedLength(DraftBudget.chain(1)), TargetStats()
    )
    proposed: dict[int, int] = {}
    collect = drafts.collect

    def watch(batch):
        (tree,) = collect(batch)
        if tree.token_ids:
            proposed[len(batch[0].token_ids)] = tree.token_ids[0]
        return [tree]

    drafts.collect = watch
    (answer,) = decode(make_engine(bench.runner, bench.tokenizer, drafts), [job], batch_size=1)
    assert answer.token_ids == answers[0].token_ids
    assert proposed == {position: token_id for position, token_id in read.items() if position in proposed}
    assert len(proposed) >= MAX_TOKENS - 2
    assert (len(prompt) in read) == (prompt_len > 1) == (len(prompt) in proposed)
    agreement = measure_agreement(HeadScorer(head, bench.runner), Sample("greedy", [job], answers))
    assert agreement.num_positions == MAX_TOKENS


@pytest.mark.parametrize("prompt_len", [1, 40, 48, 49, 60])
def test_beyond_its_length_a_head_guesses_nothing(target_folder: Path, tmp_path: Path, prompt_len: int) -> None:
    folder, runner = write_random(tmp_path / "head"), Workbench(target(target_folder)).runner
    prompt, answer = [3] * prompt_len, list(range(20, 36))
    expected, logits = (
        HeadScorer(
            load_head(
                ModelConfig(model=str(folder), dtype="float32", num_rows=1, numerics="fast", max_model_len=length),
                str(target_folder),
            ),
            runner,
        ).answer_logits(prompt, answer)
        for length in (256, 48)
    )
    max_nodes = min(len(answer), max(0, 48 + 1 - prompt_len))
    assert torch.allclose(logits[:max_nodes], expected[:max_nodes], atol=1e-4)
    assert bool((logits[max_nodes:] == float("-inf")).all())
