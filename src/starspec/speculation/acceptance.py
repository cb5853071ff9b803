"""The acceptance rules: what each promises of the emitted tokens, and what it needs of a draft.

coupled       exact           the target's own draw decides: every token is that of plain decoding
rejection     distribution    accepts by draft and target probabilities: tokens are distributed as the target's own
relaxed       relaxed         one of these two, which also accepts tokens on which both models nearly agree
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

SampleMethod = Literal["coupled", "rejection"]  # how a target verifies all requests that ask for nothing else
Promise = Literal["exact", "distribution", "relaxed"]
"""What a rule promises of the emitted tokens.

exact           they are those of plain decoding
distribution    they are distributed as those of plain decoding
relaxed         neither; `speculation/relaxed.py` says how far they may be from it
"""

NUM_STATED: Final = 16  # likeliest tokens of the draft that relaxed verification compares
MIN_NATS: Final = 0.1  # smaller surprisals count as this: sure tokens differ little, and their ratio is large


@dataclass(frozen=True, slots=True)
class AcceptanceRule:
    """One rule."""

    name: str
    promise: Promise
    needs_drawn: bool = False  # the draft draws its candidates, and sends the probabilities that it drew them from
    num_stated: int = 0  # the draft states so many likeliest tokens after each node; 0 = none

    @property
    def is_lossless(self) -> bool:
        """Whether answers are the target's own, as tokens or as a distribution."""
        return self.promise != "relaxed"

    def relaxed(self) -> AcceptanceRule:
        """The relaxed rule on top of this one."""
        return AcceptanceRule(f"relaxed {self.name}", "relaxed", self.needs_drawn, NUM_STATED)


COUPLED: Final = AcceptanceRule("coupled", "exact")
REJECTION: Final = AcceptanceRule("rejection", "distribution", needs_drawn=True)
RULES: Final[Mapping[SampleMethod, AcceptanceRule]] = {"coupled": COUPLED, "rejection": REJECTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyThresholds:
    """When a token is key: lambda_1 to lambda_3 of equation 7. Raises: ValueError if one is out of range."""

    lambda_1: float = 2.0  # > 0, of the ratio of surprisals
    lambda_2: float = 0.3  # [0, 1], of the difference of probabilities
    lambda_3: float = 0.1  # [0, 1], of NormMatch

    def __post_init__(self) -> None:
        if not 0.0 < self.lambda_1 < float("inf"):
            raise ValueError(f"lambda_1 must be positive, got {self.lambda_1}")
        for name in ("lambda_2", "lambda_3"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")


DEFAULT_THRESHOLDS: Final = KeyThresholds()


@dataclass(frozen=True, slots=True)
class Relaxation:
    """How a request is relaxed."""

    tau: float  # (0, 1]
    thresholds: KeyThresholds = DEFAULT_THRESHOLDS
