"""What is wrong with the models of a command, as far as names and small files show it without torch."""

from __future__ import annotations

from typing import Final

from starspec.cache.memory import check_budget, check_rows, check_together, machine_bytes
from starspec.config import MAX_DRAFT_TOKENS
from starspec.config.model import DEFAULT_MAX_MODEL_LEN, ModelConfig, check_there
from starspec.config.option import A_MODEL
from starspec.errors import ConfigError, ModelError
from starspec.models.heads.detect import check_head_files, looks_like_a_head
from starspec.models.layers import LayerRange
from starspec.models.loading.config_json import (
    check_config_json,
    check_context_length,
    declared_cache_numbers,
    declared_layers,
    declared_length,
)
from starspec.models.loading.locate import is_synthetic, locate, names_a_file
from starspec.models.loading.tokenizer import check_vocabulary_files
from starspec.models.loading.tokenizer_files import check_has_tokenizer, check_tokenizer_files
from starspec.models.loading.weight_files import check_weights, check_whole, declared_weights
from starspec.models.synthetic.spec import check_weightless, parse_synthetic

NUMBER_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_LAYERS: Final = 10**6  # of a model whose config.json does not say how many it has


def find_models(*models: str | None) -> None:
    """Find models before anything slow is imported, and before several processes look for them.

    Args:
        models: targets, drafts and heads; None and "" = not given.
    Raises: ModelError if one is missing, its config.json is not a config, or the files of its tokenizer or, of a head,
        of its weights are not whole; ConfigError for a synthetic model with an unknown parameter.
    Effects: downloads a hub id and converts a .gguf file, with a progress bar, unless that has been done.
    """
    for model in sorted(dict.fromkeys(each for each in models if each), key=_is_slow_to_find):
        if is_synthetic(model):
            parse_synthetic(model)
        else:
            check_config_json(model, locate(model))
            check_tokenizer_files(model, locate(model))
            if looks_like_a_head(model):
                check_whole(model, sorted(locate(model).glob("model*.safetensors")))


def _is_slow_to_find(model: str) -> bool:
    """Whether a name is that of a .gguf file, which is converted; whatever is wrong with other names is said before."""
    return names_a_file(model) and model.endswith(".gguf")


def check_settings(*configs: ModelConfig | None, are_read: bool = True) -> None:
    """Check how models that were found are to run, as far as their small files and the system's show it.

    Args:
        configs: of targets and drafts; None = there is none. A head fits itself to the length of its target.
        are_read: this process reads their weights; a target in stages does not.
    Raises: ConfigError.
    """
    for config in filter(None, configs):
        if is_synthetic(config.model):
            check_weightless(config)
            continue
        check_there(config.device)
        if not _is_head(config):
            check_context_length(config.model, config.max_model_len, _own_length(config))
            if are_read:
                check_weights(config.model, locate(config.model))
            check_has_tokenizer(config.model, locate(config.model))


def _is_head(config: ModelConfig) -> bool:
    return config.is_head or looks_like_a_head(config.model)


def check_declared_caches(target: ModelConfig, num_targets: int, draft: ModelConfig | None) -> None:
    """Check the caches of models that were found, as far as config.json shows their sizes. Loading checks each of them.

    Args:
        num_targets: that share this machine, each with a cache of its own. If a target is cut, its stages share it.
        draft: of all targets; None = there is none.
    Raises: ConfigError if this machine's memory does not hold one of them, or all of them together.
    """
    target_bytes, draft_bytes = _declared_bytes(target), 0 if draft is None else _declared_bytes(draft)
    check_together(target_bytes, draft_bytes, machine_bytes(), num_targets)


def _declared_bytes(config: ModelConfig) -> int:
    """Bytes of a model's cache in this machine's memory; 0 if it is elsewhere, or if config.json does not show them.

    Raises: ConfigError if the memory does not hold that cache alone.
    """
    if is_synthetic(config.model) or config.device != "cpu" or _is_head(config):
        return 0  # a head's cache has one layer
    num_numbers = declared_cache_numbers(locate(config.model))
    if not num_numbers:
        return 0
    max_len = context_length(config) + MAX_DRAFT_TOKENS
    num_row_bytes = num_numbers * max_len * NUMBER_BYTES[config.dtype]
    if config.kv_budget_bytes is not None:
        check_budget(config.kv_budget_bytes, max_len, num_row_bytes, machine_bytes())
        return config.kv_budget_bytes
    check_rows(config.num_rows, max_len, num_row_bytes, machine_bytes())
    return config.num_rows * num_row_bytes


def check_holds(config: ModelConfig, memory_bytes: int) -> None:
    """Check that the machines of a plan can hold a model that was found, as far as its files show its size.

    Args:
        memory_bytes: of all machines together.
    Raises: ConfigError, also for a synthetic model, which has no layers. Machines that hold a model together may still
        hold too few whole layers each.
    """
    if is_synthetic(config.model):
        raise ConfigError(f"'{config.model}' has no layers, so it cannot be cut into stages")
    folder, num_bytes = locate(config.model), NUMBER_BYTES[config.dtype]
    num_row_bytes = (declared_cache_numbers(folder) or 0) * context_length(config) * num_bytes
    needed = declared_weights(folder) * num_bytes + config.num_rows * num_row_bytes
    if needed > memory_bytes:
        raise ConfigError(
            f"the nodes cannot hold the model: its weights and its cache take at least {needed} bytes, and the nodes "
            f"have {memory_bytes}; add a node, or lower --max-model-len or --max-num-seqs"
        )


def check_cut(model: str, num_stages: int) -> None:
    """Check that a model that was found has a layer for each stage, as far as its config.json shows it.

    Raises: ConfigError.
    """
    if num_stages == 1:
        return
    if is_synthetic(model):
        raise ConfigError(f"'{model}' has no layers, so it cannot be cut into {num_stages} stages")
    num_layers = declared_layers(locate(model))
    if num_layers is not None and num_stages > num_layers:
        raise ConfigError(f"'{model}' has {num_layers} layers, so it cannot be cut into {num_stages} stages")


def check_layers(model: str, layers: str) -> None:
    """Check the layers of a stage, of a model that was found, as far as its config.json shows them.

    Raises: ConfigError if they are not a range, or if the model has no such layers.
    """
    if is_synthetic(model):
        raise ConfigError(f"'{model}' has no layers, so no stage can have some of them")
    LayerRange.parse(layers, declared_layers(locate(model)) or MAX_LAYERS)


def check_room(config: ModelConfig, max_tokens: int) -> None:
    """Check that answers of a model that was found leave room for a prompt. Whether for a certain one is seen later.

    Raises: ConfigError that names --max-tokens.
    """
    length = context_length(config)
    if max_tokens >= length:
        raise ConfigError(
            f"--max-tokens {max_tokens} leaves no room for a prompt in this model's context of {length} tokens"
        )


def context_length(config: ModelConfig) -> int:
    """Tokens of the longest sequence of a model that was found, at most, as far as its config.json shows it."""
    return config.max_model_len or min(_own_length(config) or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)


def _own_length(config: ModelConfig) -> int | None:
    return None if is_synthetic(config.model) else declared_length(locate(config.model))


def find_pair(target: str | None, draft: str | None = None) -> None:
    """Find a target and what drafts for it, and compare their small files. None = not given.

    Raises: as find_models; ConfigError if a name is empty; ModelError if the target is a head, or if the draft is the
        head of another model; VocabularyMismatch.
    Effects: as find_models.
    """
    if "" in (target, draft):
        raise ConfigError(f"the name of a model is empty: give a {A_MODEL}")
    find_models(target, draft)
    if target is None:
        return
    if looks_like_a_head(target):
        raise ModelError(f"'{target}' is an EAGLE head, which drafts for a model: give it as the draft")
    if draft is not None:
        check_vocabulary_files(target, draft)
        check_head_files(target, draft)


def check_models(target: ModelConfig, draft: ModelConfig | None = None) -> None:
    """Find a target and what drafts for it, and check how both are to run, before weights are read.

    Raises: as find_pair and check_settings. Effects: as find_models.
    """
    find_pair(target.model, None if draft is None else draft.model)
    check_settings(target, draft)
