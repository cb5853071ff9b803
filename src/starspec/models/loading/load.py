"""From a model's name to a runner: locate the model, refuse it if it cannot be served, read it, and pack it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog
import torch

from starspec.config import DEFAULT_MAX_MODEL_LEN, ModelConfig
from starspec.errors import ConfigError, ModelError
from starspec.models.attention.rotary import check_rotary
from starspec.models.fused import FUSED_FAMILIES, FusedRunner, why_not_fused
from starspec.models.graphs.cuda import StepGraphs
from starspec.models.layers import LayerRange
from starspec.models.linear.packer import make_packer
from starspec.models.loading.config_json import cache_shape, check_context_length, check_length, read_config
from starspec.models.loading.device import take_device
from starspec.models.loading.llama_checkpoint import read_llama_checkpoint
from starspec.models.loading.locate import announced_name, folder_name, is_synthetic, locate
from starspec.models.loading.model_fingerprint import model_fingerprint
from starspec.models.loading.part import drop_tied, leave_out
from starspec.models.loading.progress import counted, counting, report
from starspec.models.loading.supported import check_class, check_config, model_length
from starspec.models.loading.tensors import check_finite
from starspec.models.loading.tokenizer import eos_token_ids, load_tokenizer
from starspec.models.loading.transformers_calls import as_model_error, naming
from starspec.models.loading.weight_files import check_weight_files
from starspec.models.packed import PackedRunner, check_cache
from starspec.models.runner import LoadedRunner, ModelInfo

log = structlog.get_logger()

NO_WEIGHTS: Final = "'{}' has no weights, so it cannot be cut into stages"
LINEARS_OF_LAYER: Final = 4  # of the fused path: query, key and value are one, gate and up another


def load_runner(config: ModelConfig) -> LoadedRunner:
    """Load a model and give it a cache.

    Args:
        config: which model, and how it runs.
    Returns: a runner. `num_bytes` of its cache is the memory that its rows can come to use.
    Effects: sets torch's number of threads if the config gives it; may convert or download the model (see `locate`).
    Raises: ModelError in one sentence if the model is missing, corrupt or not supported; ConfigError if the device does
        not exist or the requested length is more than the model's.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if is_synthetic(config.model):
        from starspec.models.synthetic.runner import SyntheticRunner  # noqa: PLC0415 (real models do without)

        return SyntheticRunner.from_config(config)
    with naming(config.model, folder_name(config.model)):
        return _load(config, None)


def load_stage(config: ModelConfig, layers: str) -> PackedRunner:
    """Load some layers of a model and give them a cache. Other layers' weights are never read.

    Args:
        config: which model, and how it runs. Each stage of a target needs the same, but for device and threads.
        layers: as start:end.
    Returns: a `Stage`, with what the numerics probe found.
    Effects: as `load_runner`.
    Raises: as `load_runner`; ConfigError also if the model has no such layers, or no weights.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if is_synthetic(config.model):
        raise ConfigError(NO_WEIGHTS.format(config.model))
    with naming(config.model, folder_name(config.model)):
        return _load(config, layers)


def _load(config: ModelConfig, part: str | None) -> PackedRunner:
    """Args: part: a stage's layers; None = all."""
    report(_reading(config))
    found = _find(config, part)
    is_fused = config.fused and why_not_fused(found.config) is None
    model: Any = None
    if is_fused:
        model = read_llama_checkpoint(found.folder, found.config, getattr(torch, config.dtype), found.layers)
    if model is None:
        model = _read_with_transformers(config, found)
    _check_weights(model, config)
    drop_tied(model, found.layers)
    model = model.to(found.device)
    num_parameters = sum(each.numel() for each in model.parameters())
    info = _info(model.config, config, found.folder, found.max_model_len, num_parameters)
    make = _fused_runner if is_fused else _hf_runner
    return make(model, config, found, info)


def _reading(config: ModelConfig) -> str:
    return f"reading {folder_name(config.model)}"


def _check_weights(model: Any, config: ModelConfig) -> None:
    """Raises: as `check_finite`. The weights of the fused path are mapped files: only this reads them from the disk."""
    num_bytes = sum(each.nbytes for each in model.parameters())
    sized = ((named, named[1].nbytes) for named in model.named_parameters())
    check_finite(config.model, counted(_reading(config), sized, num_bytes))


@dataclass(frozen=True, slots=True)
class _Found:
    """A model before its weights are read."""

    device: torch.device
    folder: Path
    config: Any  # transformers'
    layers: LayerRange  # that are loaded
    max_model_len: int
    num_cache_bytes: int


def load_info(config: ModelConfig) -> ModelInfo:
    """Facts about a model whose stages are elsewhere. Without weights here it has no fingerprint.

    Raises: as `load_runner`; ConfigError also if the model has no weights anywhere.
    """
    if is_synthetic(config.model):
        raise ConfigError(NO_WEIGHTS.format(config.model))
    with naming(config.model, folder_name(config.model)):
        folder = locate(config.model)
        hf_config = _read_config(config.model, folder)
        return _info(hf_config, config, folder, _max_model_len(config, hf_config), 0)


def check_loadable(config: ModelConfig) -> int:
    """Check what `load_runner` checks before it reads weights.

    Returns: the bytes that the rows of its cache can come to use.
    Raises: as `load_runner`.
    """
    if is_synthetic(config.model):
        return load_runner(config).cache.num_bytes  # it has no weights
    with naming(config.model, folder_name(config.model)):
        return _find(config, None).num_cache_bytes


def _find(config: ModelConfig, part: str | None) -> _Found:
    device = take_device(config.device)
    folder = locate(config.model)
    hf_config = _read_config(config.model, folder)
    max_model_len = _max_model_len(config, hf_config)
    check_rotary(config.model, hf_config, max_model_len)
    num_layers, num_kv_heads, head_dim = cache_shape(hf_config)
    layers = LayerRange.whole(num_layers) if part is None else LayerRange.parse(part, num_layers)
    num_cache_bytes = check_cache(config, max_model_len, layers.size, num_kv_heads, head_dim)
    check_weight_files(config.model, folder.glob("*.safetensors"))
    return _Found(device, folder, hf_config, layers, max_model_len, num_cache_bytes)


def _fused_runner(model: Any, config: ModelConfig, found: _Found, info: ModelInfo) -> PackedRunner:
    num_linears = LINEARS_OF_LAYER * found.layers.size + found.layers.is_last  # the last stage has the head
    pack = counting(f"packing {folder_name(config.model)}", make_packer(config, info.vocab_size), num_linears)
    runner = FusedRunner(model, config, info, pack, found.layers)
    if runner.cache.device.type == "cuda" and not config.enforce_eager and found.layers.is_whole:
        runner.graphs = StepGraphs(runner.run, runner.cache, runner.num_heads)
    return _settled(runner, config, found.folder)


def _hf_runner(model: Any, config: ModelConfig, found: _Found, info: ModelInfo) -> PackedRunner:
    from starspec.models.hf import TransformersRunner  # noqa: PLC0415
    from starspec.models.linear.swapped import num_step_bytes, swap_linears  # noqa: PLC0415
    from starspec.models.numerics import reference_logits as reference  # noqa: PLC0415 (these import transformers)

    if config.fused or config.quantization != "none":
        num_linears = sum(isinstance(each, torch.nn.Linear) for each in model.modules())
        pack = counting(f"packing {folder_name(config.model)}", make_packer(config, info.vocab_size), num_linears)
        swap_linears(model, pack)
    info = replace(info, num_weight_bytes=num_step_bytes(model))
    report(f"checking {folder_name(config.model)}")
    with as_model_error(f"'{config.model}' cannot be run by transformers"):
        expected = reference.reference_logits(model, found.layers)
    with as_model_error(f"'{config.model}' cannot be run over starspec's cache"):
        runner = _settled(TransformersRunner(model, config, info, found.layers), config, found.folder)
        reference.check_reference_logits(config.model, runner, expected)
    return runner


def _settled(runner: PackedRunner, config: ModelConfig, folder: Path) -> PackedRunner:
    from starspec.models.numerics.probe_cache import settle_from_cache  # noqa: PLC0415 (draws in a progress bar)

    if config.numerics == "invariant":
        settle_from_cache(runner, config, folder)
    return runner


def max_len_of(model: str) -> int | None:
    """The longest sequence that a model was made for, in tokens; None if it does not say, or if it is synthetic.

    Raises: ModelError if there is no such model.
    """
    return None if is_synthetic(model) else model_length(_read_config(model, locate(model)))


def _read_config(model: str, folder: Path) -> Any:
    hf_config = read_config(model, folder)
    with as_model_error(f"the config.json of '{model}' cannot be used"):
        check_config(model, hf_config)
        if hf_config.model_type not in FUSED_FAMILIES:  # known to be supported, and the check has slow imports
            check_class(model, hf_config, _model_class(model, hf_config))
        check_length(model, model_length(hf_config))
    return hf_config


def _model_class(model: str, hf_config: Any) -> type:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: PLC0415

    if type(hf_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"'{model}' ({hf_config.model_type}) is not supported: it is not a causal language model")
    found: type = MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    return found


def _part_class(model_class: type, layers: LayerRange) -> Any:
    """A class of transformers whose models have only some layers. What they do not have, it does not read."""

    def make(self: Any, config: Any) -> None:
        model_class.__init__(self, config)  # type: ignore[misc]
        leave_out(self, layers)

    return type(model_class.__name__, (model_class,), {"__init__": make, "__module__": model_class.__module__})


def _read_with_transformers(config: ModelConfig, found: _Found) -> Any:
    with as_model_error(f"the weights of '{config.model}' cannot be read"):
        model_class = _part_class(_model_class(config.model, found.config), found.layers)
        model, loaded = model_class.from_pretrained(
            str(found.folder),
            config=found.config,
            dtype=getattr(torch, config.dtype),
            trust_remote_code=False,
            use_safetensors=True,  # a pickle can run code
            ignore_mismatched_sizes=True,  # they are refused below, in one sentence
            output_loading_info=True,
        )
        if loaded["mismatched_keys"]:
            name, stored, wanted = min(loaded["mismatched_keys"])
            raise ModelError(
                f"'{config.model}' does not fit its config.json: {name} is {list(stored)}, not {list(wanted)}"
            )
        if loaded["missing_keys"]:
            # transformers would use random numbers instead
            names = sorted(loaded["missing_keys"])
            raise ModelError(
                f"'{config.model}' is incomplete: {len(names)} weights are missing, the first is {names[0]}"
            )
        if loaded["unexpected_keys"] and found.layers.is_whole:  # of a part, most are another stage's
            names = sorted(loaded["unexpected_keys"])
            log.warning(
                "weights that are not in the config.json are ignored",
                model=config.model,
                num=len(names),
                first=names[0],
            )
        return model.eval().requires_grad_(requires_grad=False)


def _info(hf_config: Any, config: ModelConfig, folder: Path, max_model_len: int, num_parameters: int) -> ModelInfo:
    text = hf_config.get_text_config(decoder=True)
    has_weights = next(folder.glob("*.safetensors"), None) is not None
    return ModelInfo(
        name=announced_name(config.model),
        vocab_size=text.vocab_size,
        max_model_len=max_model_len,
        num_parameters=num_parameters,
        num_weight_bytes=0,  # set later: each path counts its own
        eos_token_ids=eos_token_ids(folder, load_tokenizer(str(folder))),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        fingerprint=model_fingerprint(config.model, folder) if has_weights else "",
    )


def _max_model_len(config: ModelConfig, hf_config: Any) -> int:
    own = model_length(hf_config)
    if config.max_model_len is None:
        return min(own or DEFAULT_MAX_MODEL_LEN, DEFAULT_MAX_MODEL_LEN)
    check_context_length(config.model, config.max_model_len, own)
    return config.max_model_len
