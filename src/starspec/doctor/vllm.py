"""A running vLLM server: whether it drafts well, and what a draft would give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import CausalScorer, Sample, measure_agreement
from starspec.doctor.checks import Check
from starspec.doctor.drafts import draft_config
from starspec.doctor.examine import SAMPLINGS, Examination, forecast_all
from starspec.doctor.outlook import Replayed, StepTimes
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, prompt_token_ids
from starspec.harness.decode import Job, JobResult
from starspec.harness.provenance import collect_provenance
from starspec.harness.step_times import time_draft_steps
from starspec.harness.vllm_client import Streamed, VllmClient, VllmStatus, median_step, vllm_status
from starspec.hub.causal import CausalDrafter
from starspec.integrations.vllm.hub_client import LIKELIEST
from starspec.integrations.vllm.versions import check_version
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.resolve import resolve_draft

WORTHWHILE: Final = 1.2  # tokens of a verifying step below which drafts are hardly worth their verification


def check_vllm(status: VllmStatus) -> list[Check]:
    """All checks of a server that drafts."""
    return [*check_server(status), _check_drafts(status)]


def check_server(status: VllmStatus) -> list[Check]:
    """The checks of any server, with or without drafts."""
    return [_check_version(status.version), _check_models(status.models)]


def _check_version(version: str) -> Check:
    try:
        check_version(version)
    except ConfigError as error:
        return Check("version", "fatal", str(error))
    return Check("version", "ok", f"vLLM {version}")


def _check_models(models: tuple[str, ...]) -> Check:
    if not models:
        return Check(
            "model", "warning", "it does not tell its models without its api key: put that into OPENAI_API_KEY"
        )
    return Check("model", "ok", ", ".join(models))


def _check_drafts(status: VllmStatus) -> Check:
    if not status.is_speculating:
        return Check(
            "drafts",
            "warning",
            "this server does not speculate: --draft tells what a draft would give; docs/vllm.md, how it gets one",
        )
    if not status.num_drafts:
        return Check("drafts", "warning", "it speculates, and has verified no draft: no request yet, or no hub found")
    rate = status.num_accepted_tokens / status.num_draft_tokens if status.num_draft_tokens else 0.0
    sentence = (
        f"{status.num_drafts} drafts verified, {rate:.0%} of their tokens accepted: {status.acceptance_length:.2f}"
        " tokens a step instead of 1"
    )
    if status.acceptance_length < WORTHWHILE:
        return Check("drafts", "warning", f"{sentence}, which hardly pays for verifying them: try another draft")
    return Check("drafts", "ok", sentence)


NUM_STEPS = 16  # timed steps for each number of requests


def examine_vllm(
    url: str,
    model: ModelConfig,
    draft: SpeculativeConfig,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    max_draft_tokens: int,
    link_s: float,
) -> Examination:
    """Get answers of a server, score them with a draft on this machine, and forecast the speed-up.

    Verifying K + 1 tokens of a request is assumed to take as long as a step of K + 1 requests, because the linears,
    which dominate, have as many rows. The draft is timed on this machine: run the command where the hub will run.

    The hub proposes its most likely tokens to vLLM, which accepts each with the target's probability of it. So a
    position counts as right if the draft's first choice is the token of the answer.

    Args:
        model: how the draft runs.
        draft: a causal LM.
        prompts: answered once greedily, one at a time, and once at T = 0.7.
        max_tokens, max_draft_tokens, link_s: as `examine`.
    Raises: ConfigError if the server does not answer or drafts already, or if the draft cannot be used with vLLM;
        ModelError if it cannot be loaded.
    """
    if draft.model is None or resolve_draft(draft).head is not None:
        raise ConfigError("vLLM gives no hidden states: its draft must be a causal LM, not an EAGLE head")
    status = vllm_status(url)
    provenance, checks = collect_provenance({"draft": draft.model}), check_server(status)
    if status.is_speculating:
        raise ConfigError(f"vLLM at {url} drafts already, so its plain steps cannot be timed: start one that does not")
    if not status.models:
        raise ConfigError(f"vLLM at {url}: {checks[-1].sentence}")
    server, tokenizer = VllmClient(url, status.models[0]), load_tokenizer(draft.model)
    checks.append(_check_tokenizer(server, tokenizer, prompts))
    if any(check.severity == "fatal" for check in checks):
        return Examination(provenance=provenance, checks=checks)
    asked = [prompt_token_ids(tokenizer, prompt) for prompt in prompts]
    greedy = server.answer_all(asked, max_tokens=max_tokens, at_once=1, temperature=0.0, to_the_end=True)
    verify_s = verify_seconds(server, asked, median_step(greedy), max_draft_tokens + 1)
    warm = SAMPLINGS[1].temperature
    sampled = server.answer_all(asked, max_tokens=max_tokens, at_once=len(asked), temperature=warm, to_the_end=True)
    runner = load_runner(draft_config(model, draft))
    checks.append(_check_said([*greedy, *sampled], runner.info.vocab_size))
    if checks[-1].severity == "fatal":
        return Examination(provenance=provenance, checks=checks)
    times = StepTimes(time_draft_steps(CausalDrafter(runner), runner.info.vocab_size), verify_s, link_s)
    prospects = []
    for sampling, answers in zip(SAMPLINGS, (greedy, sampled), strict=True):
        sample = _sample(sampling.name, asked, [answer.token_ids for answer in answers])
        agreement = measure_agreement(CausalScorer(runner), sample)
        prospects.append(forecast_all(sampling.name, agreement, Replayed(agreement.first), times))
    return Examination(provenance=provenance, checks=checks, times=times, prospects=prospects)


def _check_tokenizer(server: VllmClient, tokenizer: Any, prompts: Sequence[Prompt]) -> Check:
    """Compare the token ids of all prompts, because the server does not show its vocabulary."""
    for prompt in prompts:
        if server.tokenize(prompt.text) != tokenizer.encode(prompt.text, add_special_tokens=False):
            sentence = f"the server and the draft make different tokens of prompt '{prompt.name}'"
            return Check("vocabulary", "fatal", sentence)
    return Check("vocabulary", "ok", f"the same tokens of {len(prompts)} prompts")


def _check_said(answers: Sequence[Streamed], vocab_size: int) -> Check:
    largest = max(token_id for answer in answers for token_id in answer.token_ids)
    if largest >= vocab_size:
        return Check("answers", "fatal", f"the server says token {largest}, and the draft has {vocab_size}")
    return Check("answers", "ok", f"all of the draft's {vocab_size} tokens")


def _sample(sampling: str, prompts: Sequence[Sequence[int]], answers: Sequence[list[int]]) -> Sample:
    jobs = [Job(f"prompt-{index}", tuple(ids), LIKELIEST, len(answers[index])) for index, ids in enumerate(prompts)]
    return Sample(sampling, jobs, [JobResult(token_ids) for token_ids in answers])


def verify_seconds(server: VllmClient, prompts: Sequence[Sequence[int]], alone_s: float, most: int) -> list[float]:
    """[tokens - 1] -> seconds of a step over so many tokens, 1 to `most`, interpolated between the timed widths."""
    seconds, width, width_s = [alone_s], 1, alone_s
    while width < most:
        next_width = min(2 * width, most)
        next_s = server.step_seconds(prompts, at_once=next_width, num_tokens=NUM_STEPS)
        slope_s = (next_s - width_s) / (next_width - width)
        seconds += [width_s + slope_s * step for step in range(1, next_width - width + 1)]
        width, width_s = next_width, next_s
    return seconds
