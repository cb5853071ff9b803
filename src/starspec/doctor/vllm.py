"""What a running vLLM server says of its drafts: version, models, and vLLM's own counters."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import httpx

from starspec.doctor.checks import Check
from starspec.errors import ConfigError
from starspec.integrations.vllm.versions import check_version

TIMEOUT_S: Final = 10.0
WORTHWHILE: Final = 1.2  # tokens of a verifying step, below which drafts hardly pay for being verified


@dataclass(frozen=True, slots=True)
class VllmReading:
    """A server at one moment; counts since its start."""

    version: str
    models: tuple[str, ...]
    is_speculating: bool  # it counts drafts at all
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_length(self) -> float:
        """Tokens of a step that verified a draft, the target's own last one included."""
        return 1.0 + (self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0)

    def since(self, before: VllmReading) -> VllmReading:
        """What was counted after an earlier reading of the same server."""
        return replace(
            self,
            num_drafts=self.num_drafts - before.num_drafts,
            num_draft_tokens=self.num_draft_tokens - before.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens - before.num_accepted_tokens,
        )


def read_vllm(url: str) -> VllmReading:
    """Ask a server. Raises: ConfigError if none answers there, or something else than vLLM does."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(base_url=base, timeout=TIMEOUT_S) as http:
            version, metrics = _get(http, "/version"), _get(http, "/metrics")
            listed = http.get("/v1/models")  # an api key guards this one alone
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no vLLM server answers at {url}: {error}") from error
    try:
        models = tuple(str(each["id"]) for each in listed.json()["data"]) if listed.is_success else ()
        return reading_of(str(version.json()["version"]), models, metrics.text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"what answers at {url} is no vLLM server") from error


def reading_of(version: str, models: tuple[str, ...], metrics: str) -> VllmReading:
    """Args: metrics: Prometheus text."""
    drafts = _sum(metrics, "num_drafts")
    return VllmReading(
        version,
        models,
        drafts is not None,
        drafts or 0,
        _sum(metrics, "num_draft_tokens") or 0,
        _sum(metrics, "num_accepted_tokens") or 0,
    )


def check_vllm(reading: VllmReading) -> list[Check]:
    """The findings."""
    return [_check_version(reading.version), _check_models(reading.models), _check_drafts(reading)]


def _check_version(version: str) -> Check:
    try:
        check_version(version)
    except ConfigError as error:
        return Check("version", "fatal", str(error))
    return Check("version", "ok", f"vLLM {version}")


def _check_models(models: tuple[str, ...]) -> Check:
    if not models:
        return Check("model", "warning", "it does not tell its models without an api key")
    return Check("model", "ok", ", ".join(models))


def _check_drafts(reading: VllmReading) -> Check:
    if not reading.is_speculating:
        return Check(
            "drafts", "warning", "this server does not speculate; docs/vllm.md says how one is started that does"
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


def _get(http: httpx.Client, path: str) -> httpx.Response:
    return http.get(path).raise_for_status()


def _sum(metrics: str, name: str) -> int | None:
    """A counter over all engines; None if there is none."""
    found = re.findall(rf"^vllm:spec_decode_{name}_total(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return round(sum(float(each) for each in found)) if found else None
