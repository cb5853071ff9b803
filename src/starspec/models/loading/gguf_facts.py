"""What transformers leaves out when it reads a .gguf file: parts, rotary scaling, ends of turns."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

TURN_ENDS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """Of one file."""

    turn_ends: tuple[int, ...]
    freq_factors: NDArray[np.float32] | None  # [D / 2] by which Llama 3.1 and later divide the rotary frequencies


def read_facts(gguf: Path) -> GgufFacts:
    """Raises: ValueError if the file is one of several, or scales its rotary embedding in a way that is not read."""
    from gguf import GGUFReader  # noqa: PLC0415 (a converted model needs none of this)

    reader = GGUFReader(gguf)

    def value(name: str) -> Any:
        field = reader.get_field(name)
        return None if field is None else field.contents()

    if (num_parts := value("split.count") or 1) > 1:
        raise ValueError(f"it is one of {num_parts} parts: merge them first (llama-gguf-split --merge)")
    scaling = value(f"{value('general.architecture')}.rope.scaling.type")
    if scaling not in (None, "none"):
        raise ValueError(f"its rotary scaling '{scaling}' is not read; give the original checkpoint")
    factors = next((np.array(each.data) for each in reader.tensors if each.name == "rope_freqs.weight"), None)
    turn_ends = sorted({each for name in TURN_ENDS if (each := value(name)) is not None})
    return GgufFacts(tuple(turn_ends), None if factors is None or (factors == 1.0).all() else factors)


def apply(facts: GgufFacts, model: Any) -> None:
    """Add them to a transformers model that is to be saved.

    Raises: ValueError if the frequencies are scaled by no known rule.
    """
    if facts.turn_ends:
        model.generation_config.eos_token_id = list(facts.turn_ends)
    if facts.freq_factors is not None:
        rope = dict(model.config.rope_parameters)
        factor = round(float(facts.freq_factors.max()), 3)
        if not np.allclose(llama3_factors(rope["rope_theta"], len(facts.freq_factors), factor), facts.freq_factors):
            raise ValueError("its rotary scaling is not that of Llama 3; give the original checkpoint")
        model.config.rope_parameters = rope | {"rope_type": "llama3", "factor": factor, **LLAMA3}


def llama3_factors(theta: float, num: int, factor: float) -> NDArray[np.float64]:
    """What Llama 3.1 divides its `num` rotary frequencies by: 1 for short waves, `factor` for long ones."""
    wavelengths = 2 * pi * theta ** (np.arange(num) / num)
    low, high, length = LLAMA3.values()
    smooth = np.clip((length / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)
