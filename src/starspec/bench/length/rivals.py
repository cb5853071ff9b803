"""What is compared on a real pair: plain decoding, fixed lengths, and every length policy as a server would run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starspec.config import FIXED_LENGTH, LengthConfig, SpeculativeConfig
from starspec.config.speculative import DEPTHS, Policy

PLAIN: Final = "plain"
STATIC_LENGTHS: Final = (2, 4, 6, 8, 10)  # those of the paper (DSDE, section IV-C)
POLICIES: Final[tuple[Policy, ...]] = ("confidence", "adaedl", "dsde", "goodput")


@dataclass(frozen=True, slots=True)
class Rival:
    """One way of choosing lengths.

    Args:
        settings: fields of its speculative config; None = plain decoding.
        static_length: the length that it always drafts; None = it chooses, or it is plain.
    """

    name: str
    settings: Mapping[str, Any] | None = field(default=None, hash=False)
    static_length: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.settings is None


def static_rival(length: int) -> Rival:
    return Rival(f"static {length}", {"length": FIXED_LENGTH, "num_speculative_tokens": length}, length)


def policy_rival(policy: Policy) -> Rival:
    """A policy with the length that a server would give it."""
    if policy == "fixed":
        return static_rival(DEPTHS[policy])
    return Rival(policy, {"length": LengthConfig(policy=policy)})


def default_rival() -> Rival:
    """What a server does that is told nothing about lengths."""
    return policy_rival(SpeculativeConfig().length.policy)


def all_rivals(policies: Sequence[Policy] = POLICIES) -> list[Rival]:
    """Plain decoding first, then the fixed lengths, then these policies and the default one."""
    fixed = [static_rival(length) for length in STATIC_LENGTHS]
    return list(dict.fromkeys([Rival(PLAIN), *fixed, *map(policy_rival, policies), default_rival()]))
