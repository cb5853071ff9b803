"""Whether a running vLLM server drafts as it should, by what it says of itself."""

from __future__ import annotations

from typing import Final

from starspec.bench.vllm.reading import VllmReading
from starspec.doctor.checks import Check
from starspec.errors import ConfigError
from starspec.integrations.vllm.versions import check_version

WORTHWHILE: Final = 1.2  # tokens of a verifying step, below which drafts hardly pay for being verified


def check_vllm(reading: VllmReading) -> list[Check]:
    """The findings."""
    return [*check_server(reading), _check_drafts(reading)]


def check_server(reading: VllmReading) -> list[Check]:
    """What concerns any server, with drafts or without."""
    return [_check_version(reading.version), _check_models(reading.models)]


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


def _check_drafts(reading: VllmReading) -> Check:
    if not reading.is_speculating:
        return Check(
            "drafts",
            "warning",
            "this server does not speculate: --draft tells what a draft would give; docs/vllm.md, how it gets one",
        )
    if not reading.num_drafts:
        return Check("drafts", "warning", "it speculates, and has verified no draft: no request yet, or no hub found")
    rate = reading.num_accepted_tokens / reading.num_draft_tokens if reading.num_draft_tokens else 0.0
    story = (
        f"{reading.num_drafts} drafts verified, {rate:.0%} of their tokens accepted: {reading.acceptance_length:.2f}"
        " tokens a step instead of 1"
    )
    if reading.acceptance_length < WORTHWHILE:
        return Check("drafts", "warning", f"{story}, which hardly pays for verifying them: try another draft")
    return Check("drafts", "ok", story)
