"""A stage of a target, and a target's view of its stages."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from starspec.config.checks import check_ranges, check_words, options_of
from starspec.config.network import AuditLogFile, Insecure, Keys, check_host
from starspec.config.option import LIMITS, MODELS, NETWORK, NONE_GIVEN, Option
from starspec.config.speculative import SpeculativeConfig
from starspec.errors import ConfigError

ENDPOINT: Final = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")
MIN_SILENCE_S: Final = 0.2
Silence = Annotated[
    float,
    Option(
        "Seconds without any answer after which a connected stage is gone. Its computing does not count.",
        LIMITS,
        ("--stage-silence",),
        least=MIN_SILENCE_S,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """A stage: some layers of a target's model."""

    layers: Annotated[
        str,
        Option(
            "Layers START:END of the model, END exclusive, as 0:14; or a share of them, as 1/2 and 2/2.",
            MODELS,
        ),
    ]
    listen: Annotated[str, Option("Endpoint to listen on, tcp://HOST:PORT; port 0 = any free one.", NETWORK)] = (
        "tcp://127.0.0.1:7900"
    )
    next: Annotated[
        str | None,
        Option(
            "Endpoint of the stage behind this one, if it is not as the target knows it.", NETWORK, shown=NONE_GIVEN
        ),
    ] = None
    keys: Keys = None
    insecure: Insecure = False
    audit_log: AuditLogFile = None
    silence_s: Silence = 2.0  # of the next stage

    def __post_init__(self) -> None:
        check_ranges(self)
        _address_of(self.listen, "--listen", least_port=0)
        if self.next is not None:
            _address_of(self.next, "--next")

    @property
    def host(self) -> str:
        return _address_of(self.listen, "--listen", least_port=0)[0]

    @property
    def port(self) -> int:
        return _address_of(self.listen, "--listen", least_port=0)[1]


InFlight = Literal["auto"] | int
"""How many rounds travel at once: as many as keep the slowest stage busy; or a number."""


HiddenDtype = Literal["model", "int8"]
"""How hidden states travel: as they are computed; or in 8 bits with a scale for each token, which is not exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeConfig:
    """The stages of a target, if its model is cut."""

    stages: Annotated[
        tuple[str, ...],
        Option(
            "Endpoints of the stages that hold the model, in the order of their layers, tcp://HOST:PORT,... The target "
            "itself then loads no weights.",
            MODELS,
            shown="the model runs here",
            form="list",
        ),
    ] = ()
    in_flight: Annotated[
        InFlight,
        Option(
            "Rounds that travel through the stages at once, each with its share of the sequences: auto = as many as "
            "keep the slowest stage busy, by measured times, and several of one sequence where drafts are good; or a "
            "number, which the sequences share.",
            LIMITS,
            least=1,
            form="word_or_number",
            words=("auto",),
            unit="rounds",
        ),
    ] = "auto"
    spares: Annotated[
        tuple[str, ...],
        Option(
            "Endpoints of stages that wait to take the place of a lost one with the same layers, tcp://HOST:PORT,...",
            MODELS,
            shown=NONE_GIVEN,
            form="list",
        ),
    ] = ()
    start_timeout_s: Annotated[
        float, Option("Seconds that all stages have to become ready.", LIMITS, ("--start-timeout",), least=0.0)
    ] = 600.0
    wait_s: Annotated[
        float,
        Option(
            "Seconds in which a lost stage, or a spare, must take its place; then requests end.",
            LIMITS,
            ("--stage-wait",),
            least=0.0,
        ),
    ] = 30.0
    silence_s: Silence = 2.0
    hidden_dtype: Annotated[
        HiddenDtype,
        Option(
            "How hidden states travel from stage to stage: model = as they are computed; int8 = in 8 bits with a scale "
            "for each token, which saves bytes and changes tokens.",
            MODELS,
            words=("model", "int8"),
        ),
    ] = "model"

    def __post_init__(self) -> None:
        check_words(self)
        check_ranges(self)
        endpoints = [*self.stages, *self.spares]
        for endpoint in endpoints:
            _address_of(endpoint, "--stages" if endpoint in self.stages else "--spares")
        twice = next((each for each in endpoints if endpoints.count(each) > 1), None)
        if twice is not None:
            raise ConfigError(f"stage {twice} is listed twice in --stages and --spares: each holds its layers once")
        if not self.stages:
            self._check_unused()

    def _check_unused(self) -> None:
        """Raises: ConfigError that names the options that were given: none has an effect without stages."""
        defaults, options = {each.name: each.default for each in fields(self)}, options_of(PipeConfig)
        given = [option.names(name)[0] for name, option in options.items() if getattr(self, name) != defaults[name]]
        if given:
            raise ConfigError(f"{', '.join(given)}: about stages, and the model runs here; give --stages too")

    @property
    def is_exact(self) -> bool:
        """Whether tokens are those of the model that is not cut."""
        return self.hidden_dtype == "model"

    @property
    def depth(self) -> int | None:
        """Rounds in flight; None = as measured."""
        return None if isinstance(self.in_flight, str) else self.in_flight


def stage_name(target: str, index: int) -> str:
    """The name of a stage's process beside its target's."""
    return f"{target}-stage-{index}"


def check_drafts_of_stages(speculative: SpeculativeConfig | None) -> None:
    """Raises: ConfigError if drafts need hidden states."""
    if speculative is not None and speculative.traits.reads_features:
        raise ConfigError(
            f"method '{speculative.method}' needs the target's hidden states, and with --stages they stay at the "
            "stages: draft with a model"
        )


def _address_of(endpoint: str, option: str, least_port: int = 1) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT. Raises: ConfigError that names the option."""
    match = ENDPOINT.fullmatch(endpoint)
    if match is None:
        raise ConfigError(f"{option} must be of the form tcp://HOST:PORT, as in tcp://127.0.0.1:7900, not '{endpoint}'")
    host, port = match[1], int(match[2])
    if not least_port <= port < 65536:
        raise ConfigError(f"{option}: a port must be {least_port} to 65535, not {port}")
    check_host(host, option)
    return host, port
