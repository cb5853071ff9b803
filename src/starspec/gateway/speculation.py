"""What `"speculative"` of a request says about its drafts."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, get_args

from starspec.config import MAX_DRAFT_TOKENS, Policy, nearest
from starspec.errors import RequestError
from starspec.quoting import quoted

SPECULATIVE_KEYS: Final = ["num_speculative_tokens", "length", "relaxed"]
LENGTH_KEYS: Final = ["policy"]
RELAXED_KEYS: Final = ["tau"]


class Speculation(NamedTuple):
    """As `request_specs` takes it."""

    num_draft_tokens: int | None = None  # draft tokens a round: None = the target's own choice, 0 = off
    length_policy: Policy | None = None  # None = the target's own
    relaxed_tau: float = 0.0  # of relaxed verification; 0 = strict

    @classmethod
    def of(cls, given: bool | dict[str, Any] | None) -> Speculation:
        """Raises: RequestError for unknown keys, naming the nearest one, and for values out of range."""
        if given is None or given is True:
            return cls()
        if given is False:
            return cls(num_draft_tokens=0)
        _check_keys("speculative", given, SPECULATIVE_KEYS)
        depth, policy = _depth_of(given.get("num_speculative_tokens")), _policy_of(given.get("length"))
        return cls(depth, policy, _tau_of(given.get("relaxed")))


def _depth_of(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_DRAFT_TOKENS:
        name = "speculative.num_speculative_tokens"
        raise RequestError(f"{name} must be an integer, 0 to {MAX_DRAFT_TOKENS}", name)
    return given


def _policy_of(given: Any) -> Policy | None:
    """Of `{"policy": "dsde"}`, as in a speculative config."""
    name = "speculative.length"
    if given is None:
        return None
    if not isinstance(given, dict):
        raise RequestError(f'{name} must be an object, as {{"policy": "goodput"}}', name)
    _check_keys(name, given, LENGTH_KEYS)
    policy: Policy | None = given.get("policy")
    if policy not in get_args(Policy):
        word = policy if isinstance(policy, str) else ""
        unknown = f"{quoted(policy)} is unknown" if word else "must be a string"
        raise RequestError(f"{name}.policy {unknown}{nearest(word, [*get_args(Policy)])}", f"{name}.policy")
    return policy


def _tau_of(given: Any) -> float:
    """Of `{"tau": 0.2}`. There is no default: whoever gives exactness up says how far."""
    name = "speculative.relaxed"
    if given is None:
        return 0.0
    if not isinstance(given, dict):
        raise RequestError(f'{name} must be an object, as {{"tau": 0.2}}', name)
    _check_keys(name, given, RELAXED_KEYS)
    tau = given.get("tau")
    if isinstance(tau, bool) or not isinstance(tau, int | float) or not 0.0 <= tau <= 1.0:
        raise RequestError(f"{name}.tau must be a number, 0 (strict) to 1", f"{name}.tau")
    return float(tau)


def _check_keys(name: str, given: dict[str, Any], known: list[str]) -> None:
    for key in given:
        if key not in known:
            raise RequestError(f"{name}: unknown key {quoted(key)}{nearest(key, known)}", name)
