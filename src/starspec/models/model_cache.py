"""The cache that a model needs."""

from __future__ import annotations

from typing import Any

from starspec.cache.ragged import RaggedCache
from starspec.config import MAX_DRAFT_TOKENS, ModelConfig
from starspec.models.runner import ModelInfo


def make_cache(model: Any, config: ModelConfig, info: ModelInfo) -> RaggedCache:
    """The cache that fits a model: rows hold the longest sequence and the longest proposal behind it."""
    text = model.config.get_text_config(decoder=True)
    num_heads = text.num_attention_heads
    return RaggedCache.within(
        config.kv_budget_bytes,
        num_layers=text.num_hidden_layers,
        num_rows=config.num_rows,
        max_len=info.max_model_len + MAX_DRAFT_TOKENS,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
        dtype=model.dtype,
        device=model.device,
    )
