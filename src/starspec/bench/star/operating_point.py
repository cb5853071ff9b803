"""StarSD's operating point (arXiv 2601.21622, Table 1) as synthetic accelerators, and its equations in closed form.

The paper's rates are consistent with proposals of 8 draft steps of 1.40 ms (S = 11.2 ms), a return time of 30.5 ms and
3.4 tokens a round. Each further sequence makes a draft step a tenth longer. Plain decoding takes 21 ms a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

DEPTH: Final = 8  # d
STEP_MS: Final = 1.40  # t_s
PER_SEQUENCE: Final = 0.1  # share of a draft step that each further sequence adds
RETURN_MS: Final = 30.5  # Z = t_c + t_v
LINK_MS: Final = 1.0  # part of Z: what our real wire takes
PLAIN_MS: Final = 21.0  # a token of plain decoding
CHOICES: Final = (0.72, 0.10, 0.05, 0.03)  # the target's token is the draft's first, second, third, fourth choice
VOCAB: Final = 512


@dataclass(frozen=True, slots=True)
class PaperRow:
    """What StarSD measured with so many targets: a column of Table 1."""

    rounds_per_s: float  # R_q
    tokens_per_s: float  # O
    step_ms: float  # t_s
    wait_ms: float  # T_wait: of a request in the hub's buffer
    idle_ms: float  # T_idle: between two requests
    load: float  # of the hub


PAPER: Final = {
    1: PaperRow(20.90, 79.9, 2.24, 0.01, 30.6, 0.333),
    2: PaperRow(49.25, 167.6, 1.36, 0.50, 9.8, 0.503),
    3: PaperRow(72.26, 246.3, 1.36, 0.60, 3.4, 0.754),
    4: PaperRow(81.54, 266.6, 1.42, 3.90, 0.6, 0.914),
    5: PaperRow(85.52, 285.5, 1.46, 13.0, 0.0, 0.995),
    6: PaperRow(85.84, 288.7, 1.46, 22.3, 0.0, 0.996),
}


def draft_model(slow_motion: float = 1.0) -> str:
    """The draft's name, as `ModelConfig.model`. A forward takes `slow_motion` times its modelled time."""
    alpha, *later = CHOICES
    shape = f"vocab={VOCAB},alpha={alpha},later={'/'.join(map(str, later))}"
    return f"synthetic:role=draft,{shape},step_ms={STEP_MS * slow_motion},per_sequence={PER_SEQUENCE}"


def target_model(slow_motion: float = 1.0) -> str:
    """The target's name. A forward over one token takes as long as plain decoding, one over a whole proposal t_v.

    Both take `slow_motion` times as long.
    """
    alpha, *later = CHOICES
    shape = f"vocab={VOCAB},alpha={alpha},later={'/'.join(map(str, later))}"
    per_token = ((RETURN_MS - LINK_MS) / PLAIN_MS - 1) / DEPTH
    return f"synthetic:role=target,{shape},step_ms={PLAIN_MS * slow_motion},per_token={per_token:.6f}"


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """StarSD's equations for a hub that serves one target at a time."""

    service_ms: float  # S
    return_ms: float  # Z

    def idle_ms(self, num_targets: int) -> float:
        """T_idle of an iteration (eq. 9). Table 1 has it between two requests: divided by the number of targets."""
        return max(0.0, self.return_ms - (num_targets - 1) * self.service_ms)

    def wait_ms(self, num_targets: int) -> float:
        """T_wait: what is left of an iteration after a target's own service and return; 0 while the hub idles."""
        return max(0.0, (num_targets - 1) * self.service_ms - self.return_ms)

    def round_ms(self, num_targets: int) -> float:
        """T: all targets are served once (eqs. 8 to 10)."""
        return num_targets * self.service_ms + self.idle_ms(num_targets)

    def rounds_per_s(self, num_targets: int) -> float:
        """R_q."""
        return num_targets / self.round_ms(num_targets) * 1e3

    @property
    def num_full(self) -> int:
        """N_full: from so many targets on the hub never idles (eq. 12)."""
        return ceil(self.return_ms / self.service_ms) + 1


NOMINAL: Final = ClosedForm(DEPTH * STEP_MS, RETURN_MS)  # S(d) = d t_s (eq. 5)


def nominal(slow_motion: float) -> ClosedForm:
    """The closed form in modelled time. The wire's part of Z is real, so slow motion makes it count less."""
    return ClosedForm(NOMINAL.service_ms, RETURN_MS - LINK_MS + LINK_MS / slow_motion)
