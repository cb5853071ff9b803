"""What a running vLLM server says of its drafts: version, models, and vLLM's own counters."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from starspec.errors import ConfigError

TIMEOUT_S: Final = 10.0


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
    try:
        with httpx.Client(**connection(url), timeout=TIMEOUT_S) as http:
            version, metrics = _get(http, "/version"), _get(http, "/metrics")
            listed = http.get("/v1/models")  # an api key guards this one alone
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no vLLM server answers at {url}: {error}") from error
    try:
        models = tuple(str(each["id"]) for each in listed.json()["data"]) if listed.is_success else ()
        return reading_of(str(version.json()["version"]), models, metrics.text)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"what answers at {url} is no vLLM server") from error


def connection(url: str) -> dict[str, Any]:
    """What an httpx client is to be made with. An api key is taken from OPENAI_API_KEY, as OpenAI's own client does.

    Raises: ConfigError if no header can carry it.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key and not key.isascii():
        raise ConfigError("OPENAI_API_KEY must be of ASCII characters: no server can be asked with it")
    return {
        "base_url": url.rstrip("/").removesuffix("/v1"),
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
    }


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


def _get(http: httpx.Client, path: str) -> httpx.Response:
    return http.get(path).raise_for_status()


def _sum(metrics: str, name: str) -> int | None:
    """A counter over all engines; None if there is none."""
    found = re.findall(rf"^vllm:spec_decode_{name}_total(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return round(sum(float(each) for each in found)) if found else None
