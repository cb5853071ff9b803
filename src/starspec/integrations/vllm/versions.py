"""The tested versions of vLLM. Its interface for custom proposers is experimental and may change in any release."""

from __future__ import annotations

import re
from typing import Final

from starspec.errors import ConfigError

TESTED: Final = ((0, 32),)  # (major, minor)


def check_version(version: str, is_untested_allowed: bool = False) -> None:
    """Check a version of vLLM.

    Raises: ConfigError for an untested version. It says what to install or to set.
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    if is_untested_allowed or (match and (int(match[1]), int(match[2])) in TESTED):
        return
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    raise ConfigError(
        f"starspec's proposer was tested with vLLM {tested}, and this is {version}: install one of them, or set"
        " STARSPEC_UNTESTED_VLLM=true to try"
    )
