"""The config.json of an EAGLE head, in any of its dialects.

    speculators   {"speculators_model_type": "eagle3", "transformer_layer_config": {...}, ...}
    SpecForge     a flat Llama config of a "LlamaForCausalLMEagle3"; SGLang runs these
    vLLM          a flat Llama config of an "Eagle3LlamaForCausalLM", or {"model_type": "eagle", "model": {...}}
    SafeAILab     a flat config of the target's class with one layer; the tensors distinguish EAGLE-1 and EAGLE-3

Values that a config leaves out are those of transformers' LlamaConfig: these files contain only the differences to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from starspec.config import nearest
from starspec.errors import ModelError
from starspec.models.loading.config_json import check_rope, is_positive

Method = Literal["eagle", "eagle3"]
Dialect = Literal["speculators", "SpecForge", "vLLM", "SafeAILab"]

SPECULATORS_TYPES: Final[dict[str, Method]] = {"eagle": "eagle", "eagle3": "eagle3"}
ARCHITECTURES: Final[dict[str, tuple[Dialect, Method | None]]] = {
    "LlamaForCausalLMEagle3": ("SpecForge", "eagle3"),
    "Qwen2ForCausalLMEagle3": ("SpecForge", "eagle3"),
    "Qwen3ForCausalLMEagle3": ("SpecForge", "eagle3"),
    "LlamaForCausalLMEagle": ("SpecForge", "eagle"),
    "Eagle3LlamaForCausalLM": ("vLLM", "eagle3"),
    "Eagle3Qwen2ForCausalLM": ("vLLM", "eagle3"),
    "Eagle3Qwen3ForCausalLM": ("vLLM", "eagle3"),
    "EagleLlamaForCausalLM": ("vLLM", "eagle"),
    "EAGLEModel": ("vLLM", "eagle"),
    "LlamaForCausalLM": ("SafeAILab", None),
    "Qwen2ForCausalLM": ("SafeAILab", None),
    "Qwen3ForCausalLM": ("SafeAILab", None),
    "MistralForCausalLM": ("SafeAILab", None),
    "MixtralForCausalLM": ("SafeAILab", None),
}
OTHER_METHODS: Final = ("peagle", "dflash", "dspark", "mtp", "medusa", "hydra", "mlp_speculator", "domino", "dflare")
UNSUPPORTED_FLAGS: Final = {
    "norm_output": "it hands on its feature after the last norm (EAGLE 3.1)",
    "fc_norm": "it norms the features before fc (EAGLE 3.1)",
    "norm_before_fc": "it norms the features before fc",
    "layernorms": "it has norms around fc (HASS)",
    "attention_bias": "its attention has biases",
    "qkv_bias": "its attention has biases",
    "mlp_bias": "its MLP has biases",
    "quantization_config": "its weights are stored quantized",
}
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")  # types whose frequencies do not depend on the batch


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head's config.json with its dialect determined. Whatever is not supported has been refused.

    Raises: ModelError if the head has something that is not supported.
    """

    head: str  # for error messages
    dialect: Dialect
    method: Method
    top: Mapping[str, Any]
    layer: Mapping[str, Any]  # the part that is the config of its layer

    def __post_init__(self) -> None:
        for flag, why in UNSUPPORTED_FLAGS.items():
            if self.get(flag):
                raise ModelError(f"'{self.head}' is not supported: {why} ({flag})")
        if self.get("use_aux_hidden_state") is False:
            raise ModelError(f"'{self.head}' is not supported: it takes no layers of its target (use_aux_hidden_state)")
        if (act := self.layer.get("hidden_act", "silu")) not in ("silu", "swish"):
            raise ModelError(f"'{self.head}' is not supported: its hidden_act is {act}, not silu")
        if (num_layers := self.integer("num_hidden_layers", 1)) != 1:
            raise ModelError(f"'{self.head}' is not supported: it has {num_layers} layers, and only one is supported")

    @property
    def is_eagle3(self) -> bool:
        """Whether it is an EAGLE-3 head. Otherwise it is an EAGLE-1 head."""
        return self.method == "eagle3"

    def get(self, key: str) -> Any:
        """The value of a key: at the top of the config, in its `eagle_config`, or in its layer's config.

        Returns: None if the key is in none of them.
        """
        places = (self.top, self.top.get("eagle_config"), self.layer)
        return next((each[key] for each in places if isinstance(each, Mapping) and each.get(key) is not None), None)

    def integer(self, key: str, default: int | None = None) -> int:
        """A count. Raises: ModelError if it is not positive, or if it is missing and there is no default."""
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"the config.json of '{self.head}' has {key} {value!r} where a positive number should be")
        return value

    def number(self, key: str, default: float, within: Mapping[str, Any] | None = None) -> float:
        """A number from the part `within` of the config. Raises: ModelError if it is not a positive number."""
        value = (self.layer if within is None else within).get(key)
        value = default if value is None else value
        if not is_positive(value):
            raise ModelError(f"the config.json of '{self.head}' has {key} {value!r} where a positive number should be")
        return float(value)

    @property
    def hidden_size(self) -> int:
        """C of its layer."""
        return self.integer("hidden_size", 4096)

    @property
    def target_hidden_size(self) -> int:
        """Of one feature layer of its target."""
        return self.integer("target_hidden_size", self.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of its target's embedding."""
        return self.integer("vocab_size", 32000)

    @property
    def target_name(self) -> str | None:
        """The model that the head was trained for, if its dialect names it."""
        speculators = self.top.get("speculators_config")
        verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
        name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
        return name if isinstance(name, str) and name else None

    def rope(self) -> tuple[float, dict[str, object] | None]:
        """The theta, and the scaling as Hugging Face's rope parameters; None = no scaling.

        Raises: ModelError if the settings are of a type that is not supported, incomplete, or not numbers.
        """
        settings = [self.layer.get(key) or {} for key in ("rope_parameters", "rope_scaling")]
        if not all(isinstance(each, Mapping) for each in settings):
            raise ModelError(f"the config.json of '{self.head}' has rotary settings that are not a JSON object")
        parameters, scaling = map(dict, settings)
        theta = self.number("rope_theta", 10000.0, {**self.layer, **parameters})
        parameters.pop("rope_theta", None)
        scaling = parameters or scaling
        if "type" in scaling:  # the key in older files
            scaling.setdefault("rope_type", scaling.pop("type"))
        kind = str(scaling.get("rope_type", "default"))
        if kind not in ROPE_TYPES:
            raise ModelError(f"'{self.head}' is not supported: rotary type '{kind}'{nearest(kind, list(ROPE_TYPES))}")
        check_rope(self.head, scaling)
        shares = [scaling.pop("partial_rotary_factor", None), self.layer.get("partial_rotary_factor")]
        share = next((each for each in shares if each is not None), 1.0)
        if share != 1.0:
            raise ModelError(f"'{self.head}' is not supported: it rotates only a part of each head ({share!r} of it)")
        return theta, None if kind == "default" else scaling


def names_a_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is a head's.

    A SafeAILab EAGLE-1 config cannot be told from a small Llama's, so the answer for it is no.
    """
    if "speculators_model_type" in config or "draft_vocab_size" in config or config.get("model_type") == "eagle":
        return True
    return ARCHITECTURES.get(_architecture(config), (None, None))[1] is not None


def head_config(head: str, config: Mapping[str, Any], tensor_names: Collection[str]) -> HeadConfig:
    """Determine a head's dialect and method.

    Args:
        head: name for error messages.
        config: its config.json.
        tensor_names: its tensors, under the names of `HeadWeights`.
    Raises: ModelError if it is not an EAGLE head, or is of a kind that is not supported.
    """
    if "speculators_model_type" in config:
        return _speculators_config(head, config)
    wrapped = config.get("model") if config.get("model_type") == "eagle" else None
    flat: Mapping[str, Any] = wrapped if isinstance(wrapped, Mapping) else config
    dialect, method = _dialect(head, flat)
    if "fc.weight" not in tensor_names and method is None:
        raise ModelError(f"'{head}' is not an EAGLE head: it has no tensor fc.weight")
    if method is None:
        method = "eagle3" if "layers.0.hidden_norm.weight" in tensor_names else "eagle"
    return HeadConfig(head, dialect, method, flat, flat)


def check_sizes(head: HeadConfig, hidden_size: int | None, vocab_size: int | None) -> None:
    """Compare a head with the sizes of its target; None = not known.

    Raises: ModelError if it is another model's.
    """
    if hidden_size is not None and head.target_hidden_size != hidden_size:
        raise ModelError(
            f"'{head.head}' does not fit its target: it takes features of size {head.target_hidden_size}, and the "
            f"target's are of size {hidden_size}"
        )
    if vocab_size is not None and head.vocab_size != vocab_size:
        raise ModelError(
            f"'{head.head}' does not fit its target: it was made for {head.vocab_size} tokens, and the target has "
            f"{vocab_size}"
        )


def _speculators_config(head: str, config: Mapping[str, Any]) -> HeadConfig:
    kind, layer = str(config["speculators_model_type"]), config.get("transformer_layer_config", {})
    if kind in OTHER_METHODS:
        raise ModelError(f"'{head}' is not supported: it is a head of '{kind}', and only EAGLE-1 to 3 are supported")
    if kind not in SPECULATORS_TYPES:
        raise ModelError(f"'{head}' is of the unknown kind '{kind}'{nearest(kind, list(SPECULATORS_TYPES))}")
    if not isinstance(layer, Mapping):
        raise ModelError(f"the config.json of '{head}' has a transformer_layer_config that is not a JSON object")
    return HeadConfig(head, "speculators", SPECULATORS_TYPES[kind], config, layer)


def _dialect(head: str, flat: Mapping[str, Any]) -> tuple[Dialect, Method | None]:
    name = _architecture(flat)
    method = next((each for each in OTHER_METHODS if each in name.lower()), None)
    if method is not None:
        raise ModelError(f"'{head}' is not supported: it is a {name} ({method}), and only EAGLE-1 to 3 are supported")
    if name not in ARCHITECTURES:
        raise ModelError(f"'{head}' is of the unknown architecture '{name}'{nearest(name, list(ARCHITECTURES))}")
    return ARCHITECTURES[name]


def _architecture(flat: Mapping[str, Any]) -> str:
    named = flat.get("architectures") or ["LlamaForCausalLM"]
    return str(named[0]) if isinstance(named, list) else str(named)
