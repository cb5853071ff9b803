"""Converting .gguf files: once, through transformers, to a Hugging Face folder in the local cache.

transformers ignores much in a .gguf file: that it is one of several parts, its rotary scaling, windows and softcaps of
some families, the tokens that end a turn, and parts of its tokenizer. They are read here (`GgufFacts`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from starspec.models.loading.cached_folder import Advance, cache_folder, made_once, progress_steps
from starspec.models.loading.gguf_tokenizer import (
    GgufVocabulary,
    byte_level_tokenizer,
    check_tokenizer,
    read_vocabulary,
)
from starspec.models.loading.transformers_calls import as_model_error, first_line
from starspec.models.loading.weight_files import check_weight_files

CONVERSION: Final = 4  # its version: a change that makes other folders of the same files raises it
TURN_ENDS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
ROPE_READ: Final = ("dimension_count", "freq_base", "freq_base_swa")  # `apply` sets bases, and compares dimensions
ORIGINAL_LENGTH: Final = "scaling.original_context_length"  # has no effect alone; what scales is refused itself
ROPE_WITHOUT_EFFECT: Final[dict[str, tuple[object, ...]]] = {  # llama.cpp reads a factor of 0 as absent
    "scaling.type": ("none",),
    "scaling.factor": (0, 1),
    "scaling.attn_factor": (1,),
    "scaling.finetuned": (False,),
    "scale_linear": (0, 1),
}
ATTENTION_READ: Final = {  # key -> its name in a config of transformers; 0 stands for none
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# layers of the models whose attention scores are scaled in another way than those of other sizes
GEMMA_27B: Final = {"gemma2": 46, "gemma3_text": 62}
LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def converted_folder(gguf: Path) -> Path:
    """The Hugging Face folder of a .gguf file. The first call converts the file.

    The file is identified by path, size and modification time, because hashing gigabytes at each start would cost
    seconds.

    Effects: a folder in the cache; a progress bar on stderr while it converts.
    Raises: ModelError if the file cannot be read, or if transformers cannot convert its architecture.
    """
    path = gguf.resolve()
    check_weight_files(gguf.name, [path])
    stat = path.stat()
    key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{CONVERSION}".encode()).hexdigest()[:16]
    folder = cache_folder() / "gguf" / f"{path.stem}-{key}"

    def make(partial: Path) -> None:
        with progress_steps(f"converting {path.name}", 3) as advance:
            convert(path, partial, advance)

    return made_once(folder, make)


def convert(gguf: Path, folder: Path, advance: Advance) -> None:
    """Write a .gguf file's tokenizer and weights, dequantized to bfloat16, as a Hugging Face folder.

    Args:
        gguf: the file.
        folder: an existing folder.
        advance: called at the beginning of each of the three steps.
    Raises: ModelError if the file cannot be read, if only a part of it would be, or if the result differs from it.
    """
    source = str(gguf.parent)
    # transformers draws its bars on whatever sys.stderr is; our bar keeps the real one
    with as_model_error(f"'{gguf.name}' cannot be converted"), contextlib.redirect_stderr(io.StringIO()):
        facts = read_facts(gguf)
        import torch  # noqa: PLC0415 (slow to import, and a converted model needs none of this)
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

        advance("reading the tokenizer")
        if facts.vocabulary.kind == "gpt2":
            tokenizer = byte_level_tokenizer(facts.vocabulary, gguf.name)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
        advance("dequantizing the weights")
        model, loaded = AutoModelForCausalLM.from_pretrained(
            source,
            config=_config(gguf, facts),
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            ignore_mismatched_sizes=True,  # they are refused below, in one sentence
            output_loading_info=True,
        )
        if loaded["mismatched_keys"]:
            name, found, wanted = min(loaded["mismatched_keys"])
            raise ValueError(f"{name} is {list(found)}, but its header asks for {list(wanted)}")
        if loaded["missing_keys"]:  # transformers would use random numbers instead
            name = min(loaded["missing_keys"])
            raise ValueError(f"it is incomplete, or transformers does not read all of this family: {name} is missing")
        advance("writing the folder")
        apply(facts, model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        saved = AutoTokenizer.from_pretrained(str(folder))  # which may be another class than was saved
        check_tokenizer(facts.vocabulary, saved, model.get_input_embeddings().num_embeddings)


def _config(gguf: Path, facts: GgufFacts) -> Any:
    """transformers' config of a file, with the size of a head, which it does not read of some families."""
    from transformers import AutoConfig  # noqa: PLC0415 (slow to import, and a converted model needs none of this)

    config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    has_one_size = "head_dim" in vars(config) and not hasattr(config, "global_head_dim")  # of some it is a property
    if facts.head_dim is not None and has_one_size:
        config.head_dim = facts.head_dim
    return config


@dataclass(frozen=True, slots=True)
class GgufFacts:
    """What a .gguf file says and transformers ignores."""

    vocabulary: GgufVocabulary
    turn_ends: tuple[int, ...]
    rope: dict[str, Any]  # those of ROPE_READ that the file has
    attention: dict[str, Any]  # those of ATTENTION_READ that the file has, by their names in a config
    freq_factors: NDArray[np.float32] | None  # [D / 2]: Llama 3.1 and later divide the rotary frequencies by these
    head_dim: int | None = None  # size of a head of queries and keys


def read_facts(gguf: Path) -> GgufFacts:
    """Read what transformers ignores.

    Raises: ValueError if the file is not whole, if it is one of several parts, has no tokenizer, names an end of turn
        that is not a token, or has rotary settings that are not supported.
    """
    from gguf import GGUFReader  # noqa: PLC0415 (a converted model needs none of this)

    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeError) as error:  # NumPy's, where the file ends
        raise ValueError(f"it is not a .gguf file, or cut short ({first_line(error)}); get it again") from error

    def value(name: str) -> Any:
        field = reader.get_field(name)
        return None if field is None else field.contents()

    if (num_parts := value("split.count") or 1) > 1:
        raise ValueError(f"it is one of {num_parts} parts: merge them first (llama-gguf-split --merge)")
    vocabulary = read_vocabulary(value)
    architecture = value("general.architecture")
    rope = _rope(f"{architecture}.rope.", reader, value)
    found = {name: value(f"{architecture}.{key}") for key, name in ATTENTION_READ.items()}
    attention = {name: each for name, each in found.items() if each is not None}
    factors = next((np.array(each.data) for each in reader.tensors if each.name == "rope_freqs.weight"), None)
    turn_ends = sorted({each for name in TURN_ENDS if (each := value(name)) is not None})
    if turn_ends and turn_ends[-1] >= len(vocabulary.tokens):
        raise ValueError(f"token {turn_ends[-1]} ends a turn, but the last token is {len(vocabulary.tokens) - 1}")
    has_factors = factors is not None and (factors != 1.0).any()
    head_dim = value(f"{architecture}.attention.key_length")
    return GgufFacts(vocabulary, tuple(turn_ends), rope, attention, factors if has_factors else None, head_dim)


def _rope(prefix: str, reader: Any, value: Callable[[str], Any]) -> dict[str, Any]:
    """The rotary settings of ROPE_READ. Raises: ValueError that names any other, unless it has no effect."""
    read = {}
    for key in reader.fields:
        if not key.startswith(prefix):
            continue
        name, found = key.removeprefix(prefix), value(key)
        if name in ROPE_READ:
            read[name] = found
        elif name != ORIGINAL_LENGTH and found not in ROPE_WITHOUT_EFFECT.get(name, ()):
            raise ValueError(f"its rotary setting {key} = {found!r} is not supported; give the original checkpoint")
    for tensor in reader.tensors:
        if "rope" in tensor.name and tensor.name != "rope_freqs.weight":
            raise ValueError(f"its rotary tensor {tensor.name} is not supported; give the original checkpoint")
    return read


def apply(facts: GgufFacts, model: Any) -> None:
    """Add the facts to a transformers model before it is saved.

    Raises: ValueError if the frequencies are not scaled by Llama 3's rule, or if the model rotates another part of a
        head than the file says, or has no such window or softcap.
    """
    if facts.turn_ends:
        model.generation_config.eos_token_id = list(facts.turn_ends)
    if facts.rope:
        _apply_rope(facts.rope, model.config)
    _apply_attention(facts.attention, model.config)
    if facts.freq_factors is not None:
        rope = dict(model.config.rope_parameters)
        factor = round(float(facts.freq_factors.max()), 3)
        if not np.allclose(llama3_factors(rope["rope_theta"], len(facts.freq_factors), factor), facts.freq_factors):
            raise ValueError("its rotary scaling is not that of Llama 3; give the original checkpoint")
        model.config.rope_parameters = rope | {"rope_type": "llama3", "factor": factor, **LLAMA3}


def _apply_rope(rope: dict[str, Any], config: Any) -> None:
    """transformers reads the settings of some architectures only, and leaves the rest at the config's defaults."""
    of_model = getattr(config, "rope_parameters", None) or {}
    by_kind = "full_attention" in of_model  # layers with a window have settings of their own
    settings = of_model["full_attention"] if by_kind else of_model
    if "rope_theta" not in settings:
        raise ValueError(f"its rotary settings do not fit a {config.model_type}; give the original checkpoint")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = int(head_dim * settings.get("partial_rotary_factor", 1.0))
    if (given := rope.get("dimension_count", rotated)) != rotated:
        raise ValueError(
            f"it rotates {given} dimensions of a head, where a {config.model_type} of transformers rotates {rotated}; "
            "give the original checkpoint"
        )
    if by_kind:
        bases = {"full_attention": rope.get("freq_base"), "sliding_attention": rope.get("freq_base_swa")}
        config.rope_parameters = {kind: _rebased(each, bases.get(kind)) for kind, each in of_model.items()}
    elif (base := rope.get("freq_base_swa")) is not None:
        raise ValueError(f"its rotary setting freq_base_swa = {base!r} is not supported; give the original checkpoint")
    else:
        config.rope_parameters = _rebased(of_model, rope.get("freq_base"))


def _rebased(settings: dict[str, Any], base: float | None) -> dict[str, Any]:
    return settings if base is None else settings | {"rope_theta": float(base)}


def _apply_attention(attention: dict[str, Any], config: Any) -> None:
    """transformers reads the window of some architectures only, and no softcap: those would be absent, or a default.

    Files do not state the scale of Gemma's scores. llama.cpp, too, goes by the number of layers.
    """
    if (num_layers := GEMMA_27B.get(config.model_type)) is not None:
        is_27b = config.num_hidden_layers == num_layers
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if is_27b else config.head_dim
    kinds = getattr(config, "layer_types", None)
    for name, given in attention.items():
        is_window = name == "sliding_window"
        has_no_effect = is_window and given >= config.max_position_embeddings
        if has_no_effect or getattr(config, name, None) == (given or None):
            continue
        if not hasattr(config, name) or (is_window and kinds and "sliding_attention" not in kinds):
            family = f"a {config.model_type} of transformers"
            raise ValueError(f"its {name} is {given}, and {family} has none; give the original checkpoint")
        setattr(config, name, given or None)


def llama3_factors(theta: float, num: int, factor: float) -> NDArray[np.float64]:
    """The numbers by which Llama 3.1 divides `num` rotary frequencies: 1 for short waves, `factor` for long ones."""
    wavelengths = 2 * pi * theta ** (np.arange(num) / num)
    low, high, length = LLAMA3.values()
    smooth = np.clip((length / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)
