"""What one layer of a model takes on this machine: memory and time, for a plan of stages."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

import torch

from starspec.config import ModelConfig
from starspec.errors import ConfigError
from starspec.models.loading.load import load_info, load_stage
from starspec.models.runner import Segment, Stage
from starspec.policy.stage_cut import ModelSize

WINDOW: Final = 5  # tokens of a window with a usual draft
CONTEXT: Final = 64  # committed tokens before it
REPEATS: Final = 7
LEAST_LAYERS: Final = 3  # of which one is neither the first nor the last


class MeasuredLayer(NamedTuple):
    """A model as a plan of stages sees it."""

    model: ModelSize
    layer_s: float  # seconds of a layer over a usual window, on this machine


def measure_layer(config: ModelConfig, clock: Callable[[], float] = time.perf_counter) -> MeasuredLayer:
    """Load one layer from the middle of a model, and run it.

    Raises: as load_stage; ConfigError also if the model has too few layers to plan for.
    """
    info = load_info(config)
    if info.num_layers < LEAST_LAYERS:
        raise ConfigError(f"a model of {info.num_layers} layers needs no plan: give each of its stages one")
    middle = info.num_layers // 2
    stage = load_stage(config, f"{middle}:{middle + 1}")
    table = info.vocab_size * info.hidden_size * stage.cache.keys[0].element_size()
    size = ModelSize(info.num_layers, stage.info.num_weight_bytes + stage.cache.num_bytes, table, table)
    return MeasuredLayer(size, _seconds(stage, clock))


def _seconds(stage: Stage, clock: Callable[[], float]) -> float:
    """The median time of a window."""
    row, like = stage.cache.lease(), stage.cache.keys[0]
    times = []
    for num_tokens in (CONTEXT, *[WINDOW] * REPEATS):
        hidden = torch.ones(num_tokens, stage.info.hidden_size, dtype=like.dtype, device=like.device)
        started_s = clock()
        output = stage.forward([Segment(row, [0] * num_tokens, num_logits=0)], hidden=hidden)
        assert output.hidden is not None
        output.hidden.cpu()  # waits for a GPU
        times.append(clock() - started_s)
        if num_tokens == CONTEXT:
            stage.cache.append(row, CONTEXT)
    return median(times[1:])
