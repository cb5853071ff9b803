"""Folders of tiny random models with four layers, and stages of one model chained within a process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import families
import tiny
import torch
import transformers as hf
from torch import Tensor

from starspec.config import ModelConfig
from starspec.models.loading.load import load_runner, load_stage
from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment

NUM_LAYERS = 4
NUM_ROWS = 3
MAX_LEN = 100
OTHERS = {  # with learned positions, another place for the layers, or experts
    "GPT-2": (hf.GPT2Config, {"n_positions": 256, "n_embd": 32, "scale_attn_by_inverse_layer_idx": True}),
    "GPT-NeoX": (hf.GPTNeoXConfig, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "OPT": (hf.OPTConfig, {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "OPT with projections": (hf.OPTConfig, {"ffn_dim": 40, "word_embed_proj_dim": 16}),
    "Mixtral": (hf.MixtralConfig, {"num_local_experts": 4}),
}
WITH_CODE_OF_THEIR_OWN = (*families.FAMILIES, *OTHERS)


def make_deep(name: str) -> hf.PreTrainedModel:
    """A tiny random model with four layers."""
    if name in tiny.FAMILIES:
        return tiny.make_model(name, num_hidden_layers=NUM_LAYERS)
    config_class, own = OTHERS.get(name) or families.FAMILIES[name]
    changes = {**families.COMMON, **own, "num_hidden_layers": NUM_LAYERS}
    if "layer_types" in own:
        changes["layer_types"] = own["layer_types"] * 2
    torch.manual_seed(7)
    model = hf.AutoModelForCausalLM.from_config(config_class(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or parameter.std() == 0:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def saved(name: str, folder: Path) -> Path:
    return tiny.save_with_tokenizer(make_deep(name), folder)


def config_of(folder: Path, **changes: object) -> ModelConfig:
    options = {"dtype": "float32", "numerics": "fast", "num_rows": NUM_ROWS, "max_model_len": MAX_LEN, **changes}
    return ModelConfig(model=str(folder), **options)  # type: ignore[arg-type]


class Whole:
    """A model that is not cut."""

    def __init__(self, runner: PackedRunner) -> None:
        self.runners = [runner]

    @classmethod
    def load(cls, config: ModelConfig) -> Whole:
        runner = load_runner(config)
        assert isinstance(runner, PackedRunner)
        return cls(runner)

    def lease(self, row: int) -> None:
        for each in self.runners:
            each.cache.lease(row)

    def free(self, row: int) -> None:
        for each in self.runners:
            each.cache.free(row)

    def empty(self) -> None:
        """Free all rows. An example that failed may have left some."""
        for each in self.runners:
            each.cache.check_integrity()
            for row in set(each.cache.rows.leased):
                each.cache.free(row)

    def commit(self, row: int, path: Sequence[int]) -> None:
        for each in self.runners:
            each.cache.commit(row, path)

    def truncate(self, row: int, length: int) -> None:
        for each in self.runners:
            each.cache.truncate(row, length)

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        hidden = None
        for each in self.runners:
            output = each.forward(segments, hidden=hidden)
            hidden = output.hidden
            segments = [segment._replace(token_ids=[0] * len(segment.token_ids)) for segment in segments]
        assert hidden is None
        return output.logits


class Chain(Whole):
    """Stages, one behind the other. Only the first one is shown token ids."""

    def __init__(self, runners: Sequence[PackedRunner]) -> None:
        self.runners = list(runners)

    @classmethod
    def cut(cls, config: ModelConfig, *borders: int) -> Chain:
        """Load a model in stages that end before these layers and behind the last."""
        ranges = pairwise((0, *borders, NUM_LAYERS))
        return cls([load_stage(config, f"{start}:{end}") for start, end in ranges])
