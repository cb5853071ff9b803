"""Level 3 of docs/lossless.md, for rejection sampling with EAGLE heads: answers are distributed as the target's own.

transformers computes the target's distribution over every answer of three tokens. One head has only two thirds of the
vocabulary, so that its token ids differ from the indices of its logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from predictable import SIZE, write_eagle1_reader, write_reader, write_target
from scipy import stats
from torch import Tensor
from transformers import AutoModelForCausalLM

from starspec.config import FIXED_LENGTH, ModelConfig, SpeculativeConfig
from starspec.draft_methods import DraftMethod
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.workbench import Workbench
from starspec.hub import children
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_rejection import DrawnChildren

FALSE_ALARM = 1e-4  # over the whole file (Bonferroni); seeds are fixed, so these tests pass always or never
NUM_ANSWERS = 1200  # of each test; 600 do not show a lie clearly
NUM_TOKENS = 3
PROMPT = (5, 17, 40, 3)
TEMPERATURE = 0.8
CHAIN = SpeculativeConfig(
    num_speculative_tokens=2, max_model_len=64, rejection_sample_method="rejection", length=FIXED_LENGTH
)
SHAPES = {"chain": CHAIN, "tree": replace(CHAIN, num_steps=2, eagle_topk=2, num_draft_tokens=5)}
SAYABLE = tuple(token_id for token_id in range(SIZE) if token_id % 3)
WRITERS: dict[DraftMethod, Callable[[Path], Path]] = {
    "eagle": write_eagle1_reader,
    "eagle3": lambda folder: write_reader(folder, token_ids=SAYABLE),
}
CASES = [("eagle3", "chain", 1), ("eagle3", "tree", 4), ("eagle3", "tree", 8), ("eagle", "tree", 4)]
FALSE_ALARM_EACH = FALSE_ALARM / len(CASES)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    folder = write_target(tmp_path_factory.mktemp("models") / "target", wavers=True)
    return Workbench(ModelConfig(model=str(folder), dtype="float32", num_rows=8, max_model_len=64, num_threads=1))


@pytest.fixture(scope="module")
def samplings(bench: Workbench) -> list[Tensor]:
    """Of the first, the second and the third token, whatever came before: [V] each."""
    model = AutoModelForCausalLM.from_pretrained(bench.config.model, dtype=torch.float32)
    every = torch.cartesian_prod(torch.arange(SIZE), torch.arange(SIZE))
    prompts = torch.tensor(PROMPT).expand(len(every), -1)
    with torch.inference_mode():
        logits = model(torch.cat([prompts, every], 1)).logits[:, -NUM_TOKENS:]
    after = (logits.double() / TEMPERATURE).softmax(-1).view(SIZE, SIZE, NUM_TOKENS, SIZE)
    first = after[0, 0, 0]
    second_given_first = after[:, 0, 1]
    second = first @ second_given_first
    both = first[:, None] * second_given_first
    return [first, second, torch.einsum("ab,abc->c", both, after[:, :, 2])]


def answers_of(bench: Workbench, head: Path, method: str, shape: str, batch_size: int) -> list[list[int]]:
    speculative = replace(SHAPES[shape], method=method, model=str(head))
    engine = make_engine(bench.runner, bench.tokenizer, bench.drafts(speculative))
    sampling = SamplingSpec(temperature=TEMPERATURE)
    jobs = [Job("", PROMPT, replace(sampling, seed=seed), NUM_TOKENS) for seed in range(NUM_ANSWERS)]
    answers = [list(answer.token_ids) for answer in decode(engine, jobs, batch_size=batch_size)]
    assert engine.stats.acceptance.num_accepted_tokens > NUM_ANSWERS / 4  # drafts were really at work
    assert engine.stats.acceptance.acceptance_rate < 0.9  # and often wrong
    return answers


def p_value(answers: list[list[int]], samplings: list[Tensor]) -> float:
    """Chi-square of each token of the answers; corrected for how many there are."""
    p_values = []
    for position, sampling in enumerate(samplings):
        found = Counter(answer[position] for answer in answers)
        cells = [(found[token_id], float(chance) * len(answers)) for token_id, chance in enumerate(sampling)]
        rare = [cell for cell in cells if cell[1] < 5]  # one cell together
        cells = [cell for cell in cells if cell[1] >= 5] + ([tuple(map(sum, zip(*rare, strict=True)))] if rare else [])
        assert len(cells) > 2
        p_values.append(float(stats.chisquare(*zip(*cells, strict=True)).pvalue))
    return min(p_values) * len(samplings)


@pytest.mark.parametrize(("method", "shape", "batch_size"), CASES)
def test_answers_are_distributed_as_the_targets_own(
    bench: Workbench, samplings: list[Tensor], tmp_path: Path, method: DraftMethod, shape: str, batch_size: int
) -> None:
    head = WRITERS[method](tmp_path / "head")
    assert p_value(answers_of(bench, head, method, shape, batch_size), samplings) > FALSE_ALARM_EACH


def test_a_head_that_lies_about_its_distribution_would_be_seen(
    bench: Workbench, samplings: list[Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(*args: object, **options: object) -> DrawnChildren:
        draft, confidences = draw_children(*args, **options)  # type: ignore[arg-type]
        return DrawnChildren(replace(draft, probs=(1 / len(draft.probs),) * len(draft.probs)), confidences)

    draw_children = children.draw_children
    monkeypatch.setattr(children, "draw_children", lie)
    head = WRITERS["eagle3"](tmp_path / "head")
    assert p_value(answers_of(bench, head, "eagle3", "tree", 4), samplings) < 1e-6
