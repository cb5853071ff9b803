"""All settings of one server process. `starspec up` passes them to a child as one JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from starspec.config.gateway import GatewayConfig
from starspec.config.hub import HubConfig
from starspec.config.model import ModelConfig
from starspec.config.option import NONE_GIVEN, PROCESS, Option
from starspec.config.speculative import SpeculativeConfig
from starspec.config.stages import StageConfig
from starspec.config.target import TargetConfig

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """What a process logs and records."""

    trace_file: Annotated[
        str | None,
        Option(
            "Write what was done when, for Chrome or Perfetto, to this file at the end.",
            PROCESS,
            flags=("--trace",),
            shown=NONE_GIVEN,
            form="path",
        ),
    ] = None
    log_level: Annotated[LogLevel, Option("Least severe log lines to print on stderr.", PROCESS)] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProcess:
    """`starspec draft`."""

    hub: HubConfig
    speculative: SpeculativeConfig
    draft: ModelConfig | None  # None: the method has no model
    target: str | None  # the model that an EAGLE head drafts for, and whose vocabulary a draft model must share
    process: ProcessConfig

    @property
    def name(self) -> str:
        return "hub"

    @property
    def audit_log(self) -> str | None:
        return self.hub.audit_log

    @property
    def load(self) -> str:
        """What the process does before it can serve, as text for people."""
        return f"loading draft {self.speculative.model or self.speculative.method}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProcess:
    """`starspec target`."""

    target: TargetConfig
    model: ModelConfig
    speculative: SpeculativeConfig | None  # None: it decodes plainly
    process: ProcessConfig

    def __post_init__(self) -> None:
        self.target.check_drafts(self.speculative)

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def audit_log(self) -> str | None:
        return self.target.audit_log

    @property
    def load(self) -> str:
        """As HubProcess.load."""
        if self.target.pipe.stages:
            return f"connecting to the stages of {self.model.model}"
        return f"loading target {self.model.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProcess:
    """`starspec stage`."""

    stage: StageConfig
    model: ModelConfig
    process: ProcessConfig
    name: str = "stage"

    @property
    def audit_log(self) -> str | None:
        return self.stage.audit_log

    @property
    def load(self) -> str:
        """As HubProcess.load."""
        return f"loading layers {self.stage.layers} of {self.model.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProcess:
    """`starspec gateway`."""

    gateway: GatewayConfig
    process: ProcessConfig

    @property
    def name(self) -> str:
        return "gateway"

    @property
    def audit_log(self) -> str | None:
        return self.gateway.audit_log

    @property
    def load(self) -> str:
        """As HubProcess.load."""
        return f"loading the tokenizer of {self.gateway.model}"


ServerConfig = HubProcess | TargetProcess | StageProcess | GatewayProcess
SERVERS: Final[dict[str, type[ServerConfig]]] = {
    "draft": HubProcess,
    "target": TargetProcess,
    "stage": StageProcess,
    "gateway": GatewayProcess,
}
"""Command -> what its process is told."""
