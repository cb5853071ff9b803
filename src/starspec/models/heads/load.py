"""From a head's folder and its target's to a running head. What the checkpoint leaves out is read from the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
import torch
from safetensors import safe_open
from torch import Tensor

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.errors import ConfigError, ModelError
from starspec.models.heads.checkpoint import read_head
from starspec.models.heads.head import EagleHead, max_len_of
from starspec.models.heads.spec import HeadSpec, HeadWeights, TargetShape
from starspec.models.linear.packer import make_packer
from starspec.models.linear.switching import RowLimit
from starspec.models.loading.config_json import read_config
from starspec.models.loading.locate import folder_name, is_synthetic, locate
from starspec.models.loading.progress import report
from starspec.models.loading.tensors import UNREADABLE, tensor_files
from starspec.models.loading.transformers_calls import as_model_error, first_line
from starspec.models.packed import check_cache

log = structlog.get_logger()

EMBEDDINGS: Final = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")
LM_HEADS: Final = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True, slots=True)
class TargetTensors:
    """What a head borrows: the target's embedding and LM head, [V, C] each, without loading its other weights."""

    shape: TargetShape
    folder: Path
    is_tied: bool  # the LM head is the embedding

    @classmethod
    def of(cls, target: str) -> TargetTensors:
        """The tensors of a target.

        Raises: ModelError if there is no such model, or if it has no features.
        """
        if is_synthetic(target):
            raise ModelError(f"'{target}' has no hidden states, so no EAGLE head can draft for it")
        folder = locate(target)
        with as_model_error(f"the config.json of '{target}' cannot be used"):
            config = read_config(target, folder).get_text_config(decoder=True)
        shape = TargetShape(
            num_layers=config.num_hidden_layers, hidden_size=config.hidden_size, vocab_size=config.vocab_size
        )
        return cls(shape, folder, bool(config.tie_word_embeddings))

    def embedding(self) -> Tensor:
        return self._read(EMBEDDINGS)

    def lm_head(self) -> Tensor:
        return self._read(EMBEDDINGS if self.is_tied else LM_HEADS)

    def _read(self, names: tuple[str, ...]) -> Tensor:
        try:
            for name in names:
                file = tensor_files(self.folder).get(name)
                if file is not None:
                    with safe_open(self.folder / file, framework="pt") as tensors:
                        found: Tensor = tensors.get_tensor(name)
                    return found
        except UNREADABLE as error:
            raise ModelError(f"the weights in '{self.folder}' cannot be read: {first_line(error)}") from error
        raise ModelError(f"the weights in '{self.folder}' have no {' or '.join(names)}, which the EAGLE head needs")


def load_head(config: ModelConfig, target: str, feature_layers: tuple[int, ...] | None = None) -> EagleHead:
    """Load an EAGLE head for a target.

    Args:
        config: the head's folder and how it runs; its cache holds `num_rows` sequences.
        target: Hugging Face folder, Hub id or .gguf of the model that it drafts for.
        feature_layers: hidden states that replace those of the head's config.
    Raises: ModelError if either is missing, corrupt or not supported, or if they do not fit; ConfigError if the cache
        does not fit into memory.
    Effects: sets torch's number of threads if the config gives it.
    """
    # hidden states can overflow it, and a NaN would stay in the cache row for the next tag
    if config.dtype == "float16":
        config = replace(config, dtype="bfloat16")
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    report(f"reading {folder_name(config.model)}")
    tensors = TargetTensors.of(target)
    own = read_head(config.model, target=tensors.shape, feature_layers=feature_layers)
    _check_cache(config, own.spec)
    weights = with_borrowed(own, tensors)
    # Two packers, because a layer may have as many outputs as the draft vocabulary has tokens. Inputs are not rounded:
    # they are embeddings and hidden states side by side, and one scale would round the smaller ones to 0.
    limit = RowLimit()
    pack = make_packer(config, None, limit, rounds_inputs=False)
    pack_logits = make_packer(config, weights.spec.draft_vocab_size, limit, rounds_inputs=False)
    return EagleHead(weights, config, folder_name(config.model), pack, pack_logits)


def check_head(config: ModelConfig, target: str, speculative: SpeculativeConfig) -> int:
    """Check a head against its target and the config that names it, without the target's weights.

    Args:
        config: as for `load_head`.
    Returns: the bytes that the rows of its cache can come to use.
    Raises: as `load_head`; ConfigError if it is a head of another method.
    """
    shape = TargetTensors.of(target).shape
    spec = read_head(config.model, target=shape, feature_layers=speculative.feature_layers).spec
    check_method(config.model, spec, speculative)
    return _check_cache(config, spec)


def _check_cache(config: ModelConfig, spec: HeadSpec) -> int:
    return check_cache(config, max_len_of(spec, config), 1, spec.num_key_value_heads, spec.head_dim)


def check_method(head: str, spec: HeadSpec, speculative: SpeculativeConfig) -> None:
    """Raises: ConfigError if the config names another method than the head is of."""
    if speculative.traits.reads_features and speculative.method != spec.method:
        raise ConfigError(f"'{head}' is a head of method '{spec.method}', not '{speculative.method}'")


def with_borrowed(weights: HeadWeights, target: TargetTensors) -> HeadWeights:
    """The head with embedding and LM head: its own, or the target's if its checkpoint has none.

    Effects: a warning in the log if the LM head is borrowed, because most heads are trained with one of their own.
    """
    own = dict(weights.tensors)
    if "embed_tokens.weight" not in own:
        own["embed_tokens.weight"] = target.embedding()
    if "lm_head.weight" not in own:
        log.warning("the EAGLE head has no LM head of its own and drafts with its target's", target=str(target.folder))
        lm_head = target.lm_head()
        own["lm_head.weight"] = lm_head if weights.draft_token_ids is None else lm_head[weights.draft_token_ids]
    return replace(weights, tensors=own)
