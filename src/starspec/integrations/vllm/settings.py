"""Settings of the proposer. vLLM's configuration has no room for them, so they come from variables and a file."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from starspec.config import build, nearest
from starspec.config.checks import is_probability
from starspec.config.limits import MAX_LOOKUP
from starspec.config.speculative import DOUBT
from starspec.errors import ConfigError

PREFIX: Final = "STARSPEC_"
FILE_VARIABLE: Final = "STARSPEC_CONFIG"
OTHERS: Final = ("STARSPEC_API_KEY", "STARSPEC_CACHE", "STARSPEC_SUPERVISOR_FD")  # of other processes of ours
KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)$")
A_PORT: Final = re.compile(r"_PORT$")  # of Kubernetes too, and then an address

Fallback = Literal["ngram", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Each setting is a key of the TOML file and an environment variable, such as STARSPEC_DEADLINE_MS.

    A variable takes precedence over the file.
    """

    hub: str = "tcp://127.0.0.1:7700"  # the hub's public port
    keys: str | None = None  # folder made by `starspec keygen`; required unless the host is loopback
    insecure: bool = False  # allow a host that is not loopback without keys
    name: str | None = None  # this server in the hub's logs and traces; None = host and process
    deadline_ms: float | None = None  # longest wait of a step for proposals; None = follows recent rounds
    draft_p_min: float = DOUBT  # `DRAFT_P_MIN` in config/option.py has its meaning
    fallback: Fallback = "ngram"  # what drafts in steps without a hub
    prompt_lookup_min: int = 2  # shortest n-gram that is looked up
    prompt_lookup_max: int = 4  # longest
    adaptive: bool = True  # lengths by measured speed; False = always num_speculative_tokens
    untested_vllm: bool = False  # allow versions of vLLM that were not tested

    def __post_init__(self) -> None:
        if self.fallback not in get_args(Fallback):
            raise ConfigError(f"fallback '{self.fallback}' is unknown{nearest(self.fallback, [*get_args(Fallback)])}")
        if self.deadline_ms is not None and not 0 < self.deadline_ms <= 60_000:
            raise ConfigError(f"deadline_ms must be above 0 and at most 60000, got {self.deadline_ms}")
        is_probability("draft_p_min", self.draft_p_min)
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= MAX_LOOKUP:
            raise ConfigError(f"need 1 <= prompt_lookup_min <= prompt_lookup_max <= {MAX_LOOKUP}")
        if self.keys == "":
            raise ConfigError("keys is empty: name the folder, or leave it out")
        # half a surrogate pair is not printable, and cannot be sent
        if self.name is not None and not self.name.isprintable():
            raise ConfigError(f"name {self.name!a} must be printable text")


def load_settings(environ: Mapping[str, str] = os.environ) -> VllmSettings:
    """Settings from the file that STARSPEC_CONFIG names, and from the variables, which take precedence.

    Raises: ConfigError. It names the wrong file or variable, and for an unknown one the nearest that exists.
    """
    path = environ.get(FILE_VARIABLE)
    in_file = {} if not path else _read(_expanded(path, FILE_VARIABLE))
    in_variables = {key: _converted(name, environ[name], key) for name, key in _set_variables(environ).items()}
    settings = build(VllmSettings, in_file | in_variables, f"{FILE_VARIABLE} {path}" if path else "starspec settings")
    if not settings.keys:
        return settings
    return replace(settings, keys=str(_expanded(settings.keys, "keys")))


def _expanded(path: str, what: str) -> Path:
    """Replace ~ by the user's home. Raises: ConfigError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{what} {path}: there is no such user's home") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{FILE_VARIABLE}: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # the last if it is nested too deeply
        raise ConfigError(f"{FILE_VARIABLE}: {path} is not a TOML file: {error}") from error


def _set_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and not empty, each with the setting that it stands for. Raises: ConfigError."""
    known = {PREFIX + each.name.upper(): each.name for each in fields(VllmSettings)}
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or variable in OTHERS or not text:
            continue
        is_kubernetes = KUBERNETES.search(variable) or (A_PORT.search(variable) and "://" in text)
        if variable not in known and is_kubernetes:
            continue  # Kubernetes sets it in every pod, if a service's name begins with "starspec"
        if variable not in known:
            raise ConfigError(f"unknown variable {variable}{nearest(variable, [*known, FILE_VARIABLE])}")
        found[variable] = known[variable]
    return found


def _converted(variable: str, text: str, key: str) -> object:
    """Convert a variable's text to the type of its setting. Raises: ConfigError."""
    kind = get_type_hints(VllmSettings)[key]
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        choices = nearest(text, [*get_args(kind)]) if get_origin(kind) is Literal else ""
        raise ConfigError(f"{variable}='{text}': {error}{choices}") from error
