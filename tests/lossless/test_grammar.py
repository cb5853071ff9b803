"""Answers held to a grammar are those of plain constrained decoding, token for token, whatever is drafted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from llguidance import LLMatcher
from transformers import AutoTokenizer, LlamaForCausalLM

from starspec.bench.grammar.schemas import SCHEMAS
from starspec.bench.random_drafts import RandomDrafts, RandomTrees
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.engine.drafts import Drafts, NoDrafts, own_drafts
from starspec.engine.sequence import TargetSequence
from starspec.grammars.source import limits, source_of
from starspec.grammars.vocabulary import make_vocabulary
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.local_star import LocalHub
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelRunner
from starspec.policy.length.make import make_policy
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.reference import next_token
from starspec.sampling.spec import SamplingSpec
from starspec.stats import TargetStats

EOS = 256
MAX_MODEL_LEN = 1024
PROMPT = (40, 3, 77, 40, 200, 5)
NUM_ROWS = 16
SPECULATIVE: dict[str, dict[str, object]] = {
    "itself": {"num_speculative_tokens": 4},
    "its int4 copy": {"quantization": "int4", "num_speculative_tokens": 4},
    "its tree": {"num_steps": 3, "eagle_topk": 3},
    "its head": {"num_speculative_tokens": 4},
    "its draws": {"num_speculative_tokens": 4, "rejection_sample_method": "rejection"},
    "its drawn tree": {"num_steps": 3, "eagle_topk": 3, "rejection_sample_method": "rejection"},
    "ngram": {"model": None, "method": "ngram", "num_speculative_tokens": 4},
}


class Bench:
    """The model of bytes, loaded once, with drafts of many kinds."""

    def __init__(self, folder: Path, head: Path) -> None:
        self.head = head
        self.config = ModelConfig(model=str(folder), dtype="float32", max_model_len=MAX_MODEL_LEN, num_rows=NUM_ROWS)
        self.runner: ModelRunner = load_runner(self.config)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.vocabulary = make_vocabulary(self.tokenizer, self.runner.info.vocab_size, (EOS,))
        self.stats = TargetStats()

    def drafts(self, kind: str, answers: dict[str, list[int]]) -> Drafts:
        def true_tokens(sequence: TargetSequence) -> list[int]:
            return answers[sequence.request_id][sequence.num_output_tokens :]

        size = self.runner.info.vocab_size
        if kind == "half-liar":
            return RandomDrafts(size, 5, seed=1, true_tokens=true_tokens)
        if kind == "lying tree":
            return RandomTrees(size, 4, width=3, seed=3, true_tokens=true_tokens)
        if kind == "off":
            return NoDrafts()
        model = str(self.head) if kind == "its head" else self.config.model
        given = {"model": model, "length": {"policy": "fixed"}, **SPECULATIVE[kind]}
        config = SpeculativeConfig.from_mapping(given)
        policy = make_policy(config, NUM_ROWS)
        own = own_drafts(config.method, config, policy, self.stats)
        return own or LocalHub(self.config, self.runner.info, config, self.tokenizer).drafts(policy, self.stats)

    def answers(self, jobs: list[Job], kind: str = "off", plain: Sequence[JobResult] = ()) -> list[JobResult]:
        self.stats = TargetStats()
        by_id = {f"job-{index}": each.token_ids for index, each in enumerate(plain)}
        engine = make_engine(self.runner, self.tokenizer, self.drafts(kind, by_id), self.stats)
        results = decode(engine, jobs, batch_size=NUM_ROWS)
        engine.check_integrity()
        engine.drafts.shutdown()
        return results

    @torch.no_grad()
    def slow_answer(self, job: Job) -> tuple[list[int], str]:
        """A loop over the logits of transformers, with a fresh matcher at each position."""
        output: list[int] = []
        prompt = list(job.prompt_token_ids)
        while True:
            allowed = None
            if job.grammar is not None:
                matcher = LLMatcher(self.vocabulary, source_of(job.grammar), limits=limits())
                matcher.consume_tokens(output)
                if matcher.is_stopped():
                    return output, "stop"
                bits = matcher.compute_bitmask()
                allowed = {each for each in range(self.runner.info.vocab_size) if bits[each // 8] >> each % 8 & 1}
            if output[-1:] == [EOS]:
                return output, "stop"
            if len(output) == job.max_tokens:
                return output, "length"
            logits = self.model(torch.tensor([prompt + output])).logits[0, -1].tolist()
            output.append(next_token(logits, job.sampling, prompt, output, allowed))


@pytest.fixture(scope="module")
def bench(byte_model: Path, byte_head: Path) -> Bench:
    return Bench(byte_model, byte_head)


def job(name: str, grammar: GrammarSpec | None, max_tokens: int = 40, **sampling: object) -> Job:
    given = SamplingSpec(**{"temperature": 0.0, "end_token_ids": (EOS,), **sampling})  # type: ignore[arg-type]
    return Job(name, PROMPT, given, max_tokens, grammar=grammar)


DATE = GrammarSpec("regex", "[0-9]{4}-[01][0-9]-[0-3][0-9]")
WORDS = GrammarSpec("regex", "([a-f]+ )*[a-f]+")
COLOUR = GrammarSpec("choice", '["red", "green", "greenish", "blüe"]')
SUM = GrammarSpec("grammar", 'start: n ("+" n)*\nn: /[0-9]{1,3}/')
POINT = GrammarSpec("json", '{"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]}')
NAME = GrammarSpec("regex", "[a-c]{0,2}</s>[a-c]")  # of a special token, spelled
FORMS = {"name": NAME, "date": DATE, "words": WORDS, "colour": COLOUR, "sum": SUM, "point": POINT, "free": None}
SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "everything": {
        "temperature": 1.2,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "logit_bias": {EOS: 4.0, 66: 2.0},
        "min_tokens": 12,
        "seed": 4,
    },
}
BAD_WORDS = ((22, 19), (64, 65), (69,), (131, 53))
SAMPLINGS["sampled without bad words"] = {**SAMPLINGS["sampled"], "bad_words": BAD_WORDS}
JOBS = [job(f"{form} {how}", FORMS[form], **SAMPLINGS[how]) for form in FORMS for how in SAMPLINGS]


@pytest.fixture(scope="module")
def plain(bench: Bench) -> list[JobResult]:
    return bench.answers(JOBS)


@pytest.mark.parametrize("place", range(len(JOBS)), ids=[each.name for each in JOBS])
def test_without_drafts_answers_are_those_of_a_slow_loop(bench: Bench, plain: list[JobResult], place: int) -> None:
    assert (plain[place].token_ids, plain[place].finish_reason) == bench.slow_answer(JOBS[place])


@pytest.mark.parametrize("form", ["date", "words", "point", "free"])
def test_bad_words_are_in_no_answer(plain: list[JobResult], form: str) -> None:
    said = {each.name: spelled(answer.token_ids) for each, answer in zip(JOBS, plain, strict=True)}
    assert any(spelled(word) in said[f"{form} sampled"] for word in BAD_WORDS)
    assert not any(spelled(word) in said[f"{form} sampled without bad words"] for word in BAD_WORDS)


def spelled(token_ids: Sequence[int]) -> str:
    return "".join(f"<{each}>" for each in token_ids)


@pytest.mark.parametrize("kind", ["itself", "its tree", "its head", "ngram", "half-liar", "lying tree"])
def test_no_drafts_change_an_answer_in_a_batch_of_many_grammars(bench, plain, kind: str) -> None:
    answers = bench.answers(JOBS, kind, plain)
    assert [(each.token_ids, each.finish_reason) for each in answers] == [
        (each.token_ids, each.finish_reason) for each in plain
    ]
    assert bench.stats.acceptance.num_draft_tokens > 0


@pytest.mark.parametrize("kind", ["its draws", "its drawn tree"])
def test_answers_of_rejection_sampling_keep_to_their_grammars(bench: Bench, kind: str) -> None:
    forms = {"[0-9]{4}-[01][0-9]-[0-3][0-9]": DATE, "red|green|greenish|blüe": COLOUR, "[a-c]{0,2}</s>[a-c]": NAME}
    jobs = [job(regex, form, temperature=1.0, seed=seed) for regex, form in forms.items() for seed in range(4)]
    for each, answer in zip(jobs, bench.answers(jobs, kind), strict=True):
        assert re.fullmatch(each.name, bench.tokenizer.decode(answer.token_ids).removesuffix("</s>")), each.name
    assert bench.stats.grammars.num_forced_tokens > 0


SURE = GrammarSpec("choice", '["exactly this"]')


@pytest.mark.parametrize("kind", ["itself", "ngram", "half-liar", "lying tree"])
@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_one_forward_verifies_all_that_a_grammar_forces(bench: Bench, kind: str, how: str) -> None:
    sure = job("sure", SURE, **SAMPLINGS[how])
    (answer,) = bench.answers([sure], kind, bench.answers([sure]))
    assert bench.tokenizer.decode(answer.token_ids) == "exactly this"
    assert (answer.stats.acceptance.num_forwards, answer.finish_reason) == (1, "stop")
    assert bench.stats.grammars.num_tokens == len("exactly this")
    assert bench.stats.grammars.num_forced_tokens >= len("exactly this") - 5  # the liar knows up to five
    assert bench.stats.grammars.spent_s > 0.0


@pytest.mark.parametrize("kind", ["itself", "ngram", "off"])
def test_where_drafting_is_off_nothing_is_forced(bench: Bench, kind: str) -> None:
    sure = replace(job("sure", SURE), num_draft_tokens=0)
    (answer,) = bench.answers([sure], kind)
    assert bench.tokenizer.decode(answer.token_ids) == "exactly this"
    assert answer.stats.acceptance.num_forwards == len("exactly this")
    assert bench.stats.grammars.num_forced_tokens == 0


RECORDS = ("object of arrays", "many parts", "names with", "anyOf of objects", "oneOf by kind", "person")
WHITESPACE = (197, 198, 201, 220)  # a model of random weights says little else if it may
BRIEF: dict[str, object] = {"logit_bias": dict.fromkeys(WHITESPACE, -8.0), "frequency_penalty": 0.2}
TABLE = [
    job(f"{name}, {how}", GrammarSpec("json", json.dumps(schema, ensure_ascii=False)), 400, **BRIEF, **SAMPLINGS[how])
    for name, schema in SCHEMAS.items()
    for how in ("greedy", "sampled")
]


@pytest.fixture(scope="module")
def table(bench: Bench) -> list[JobResult]:
    return bench.answers(TABLE)


def test_each_answer_to_a_schema_validates(bench: Bench, table: list[JobResult]) -> None:
    for each, answer in zip(TABLE, table, strict=True):
        assert answer.finish_reason == "stop", each.name
        text = bench.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        assert each.grammar is not None
        Draft202012Validator(json.loads(each.grammar.text)).validate(json.loads(text))


@pytest.mark.parametrize("kind", ["its int4 copy", "its head", "ngram", "half-liar", "lying tree"])
def test_no_drafts_change_an_answer_to_a_schema(bench: Bench, table: list[JobResult], kind: str) -> None:
    answers = bench.answers(TABLE, kind, table)
    assert [each.token_ids for each in answers] == [each.token_ids for each in table]


@pytest.fixture(scope="module")
def records(bench: Bench) -> tuple[list[Job], list[JobResult]]:
    """Jobs of eight seeds, with the plain answers. One seed's gain differs by 3% from another's."""
    jobs = [
        replace(each, sampling=replace(each.sampling, temperature=1.0, seed=seed))
        for each in TABLE
        if each.name.startswith(RECORDS) and each.name.endswith("sampled")
        for seed in range(8)
    ]
    return jobs, bench.answers(jobs)


# Half of the gains seen: 1.03x to 1.044x and 1.10x to 1.15x over eight seeds.
@pytest.mark.parametrize(("kind", "gain"), [("ngram", 1.015), ("half-liar", 1.05)])
def test_drafts_behind_what_a_grammar_forces_make_larger_blocks(
    bench: Bench,
    records: tuple[list[Job], list[JobResult]],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    gain: float,
) -> None:
    jobs, plain = records
    efficiencies = []
    for is_ahead in (True, False):
        if not is_ahead:
            monkeypatch.setattr(TargetSequence, "look_ahead", lambda sequence: None)
        answers = bench.answers(jobs, kind, plain)
        assert [each.token_ids for each in answers] == [each.token_ids for each in plain]
        efficiencies.append(bench.stats.acceptance.block_efficiency)
    assert efficiencies[0] > gain * efficiencies[1]
