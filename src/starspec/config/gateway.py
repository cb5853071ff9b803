"""The OpenAI-compatible gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from starspec.config.checks import check_api_key, check_name, check_words
from starspec.config.network import LOOPBACK, AuditLogFile, Insecure, Keys, ShutdownTimeout, check_host
from starspec.config.option import A_MODEL, LIMITS, MODELS, NETWORK, NONE_GIVEN, Option
from starspec.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The OpenAI-compatible gateway."""

    model: Annotated[
        str,
        Option(f"The targets' model, for its tokenizer and chat template: {A_MODEL}.", MODELS, flags=("--target",)),
    ] = ""
    also: Annotated[
        tuple[str, ...],
        Option(
            "Another model, which some of the targets serve: MODEL, or NAME=MODEL for a name of its own in the API; may"
            " be repeated. Targets are told apart by the model that they announce: its folder's name, or its id.",
            MODELS,
            shown=NONE_GIVEN,
        ),
    ] = ()
    targets: Annotated[
        tuple[str, ...],  # serving ports
        Option(
            "A target server, tcp://HOST:PORT; may be repeated. Without one, --hub's metrics are served alone.",
            NETWORK,
            flags=("--endpoint",),
            shown=NONE_GIVEN,
        ),
    ] = ("tcp://127.0.0.1:7800",)
    hub: Annotated[
        str | None,
        Option("Public port of the draft server, tcp://HOST:PORT, to show it in /metrics.", NETWORK, shown=NONE_GIVEN),
    ] = None
    host: Annotated[str, Option("Address that the HTTP API listens on.", NETWORK)] = LOOPBACK
    port: Annotated[int, Option("Port of the HTTP API; 0 = any free one.", NETWORK, least=0, most=65535)] = 8000
    served_model_name: Annotated[str | None, Option("Model name in the API.", NETWORK, shown="the folder's name")] = (
        None
    )
    api_key: Annotated[
        str | None,
        Option(
            "Key that clients must send; prefer the variable, which does not show in process lists.",
            NETWORK,
            shown=NONE_GIVEN,
            envvar="STARSPEC_API_KEY",
        ),
    ] = None
    generation_config: Annotated[
        Literal["auto", "ignore"],
        Option("auto: the model's generation_config.json gives a request's defaults; ignore: it does not.", MODELS),
    ] = "auto"
    show_text: Annotated[
        bool,
        Option(
            "Show the beginning of each answer's text on the dashboard, to whoever may open it.",
            NETWORK,
            ("--show-text",),
        ),
    ] = False
    keys: Keys = None
    insecure: Insecure = False
    audit_log: AuditLogFile = None
    max_body_bytes: Annotated[int, Option("Longest request body, in bytes.", LIMITS, least=1)] = 4 * 1024 * 1024
    keep_alive_s: Annotated[
        float, Option("Seconds after which a silent stream gets a comment.", LIMITS, ("--keep-alive",), least=0.1)
    ] = 15.0
    max_connections: Annotated[
        int, Option("HTTP connections at once; a full gateway closes the one idle for longest.", LIMITS, least=1)
    ] = 512
    max_connections_per_address: Annotated[
        int, Option("HTTP connections of one client address at once; a proxy is one address.", LIMITS, least=1)
    ] = 256
    receive_timeout_s: Annotated[
        float,
        Option(
            "Seconds for a client to send a request's head, as many for its body, and to go on reading its answer.",
            LIMITS,
            ("--receive-timeout",),
            least=0.1,
        ),
    ] = 30.0
    idle_timeout_s: Annotated[
        float, Option("Seconds until a connection without a request is closed.", LIMITS, ("--idle-timeout",), least=0.1)
    ] = 60.0
    request_timeout_s: Annotated[
        float,
        Option(
            "Seconds for one request, queueing included; one that takes longer ends with an error.",
            LIMITS,
            ("--request-timeout",),
            least=0.1,
        ),
    ] = 1800.0
    shutdown_timeout_s: ShutdownTimeout = 30.0

    def __post_init__(self) -> None:
        check_host(self.host, "--host")
        if self.served_model_name is not None:
            check_name(self.served_model_name, "--served-model-name")
        if self.api_key == "":
            raise ConfigError("the API key is empty: give one, or leave it out to ask for none")
        if self.api_key is not None:
            check_api_key(self.api_key)
        check_words(self)
        twice = [each for number, each in enumerate(self.targets) if each in self.targets[:number]]
        if twice:
            raise ConfigError(f"--endpoint {twice[0]} is given twice: give each target once")
