"""Building a config from parsed JSON, and the checks that configs share."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from starspec.config.option import Option
from starspec.errors import ConfigError
from starspec.quoting import is_unicode, quoted, shortened

T = TypeVar("T")

NAME: Final = re.compile(r"\w(?:[\w./:@+-]*[\w.+-])?")
SENDABLE: Final = re.compile("[!-~](?:[ -~]*[!-~])?")  # as a part of an HTTP header, unchanged
SURE: Final = 0.75  # likeness of two words, from which on one is meant for the other
ONE_DEVICE: Final = "each model runs on one device"
VLLM_DEFAULTS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "tensor_parallel_size": ((1,), ONE_DEVICE),
    "draft_tensor_parallel_size": ((1, None), ONE_DEVICE),
    "trust_remote_code": ((False,), "starspec never runs code of a checkpoint"),
}
"""Keys of vLLM's that are taken with these values only, and why."""


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a config dataclass from a mapping.

    Args:
        where: what the mapping is, for the error's sentence.
    Raises: ConfigError that names an unknown key or word and the nearest known one, or a value out of range.
    """
    check_keys(kind, values, where)
    for name, words in _words(kind).items():
        if isinstance(values.get(name), str):
            one_of(f"{where}: {name}", values[name], words)
    try:
        return msgspec.convert(dict(values), kind)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_kind_sentence(error)}") from error
    except UnicodeEncodeError as error:  # half of a surrogate pair, which msgspec looks into where another type belongs
        raise ConfigError(f"{where}: {quoted(error.object)} is not valid Unicode text") from error


def _kind_sentence(error: msgspec.ValidationError) -> str:
    """'key: expected int, got str' of msgspec's "Expected `int`, got `str` - at `$.key`"."""
    what, _, at = str(error).replace("`", "").partition(" - at $.")
    what = what[:1].lower() + what[1:]
    return f"{at}: {what}" if at else what


def without_vllm_defaults(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values without keys of vLLM's that starspec lacks.

    Raises: ConfigError with a sentence of the key's own if it has not the value that it has in vLLM by default.
    """
    for key, (defaults, sentence) in VLLM_DEFAULTS.items():
        if key in values and values[key] not in defaults:
            raise ConfigError(f"{where}: {key}: {sentence}; leave it out")
    return {key: value for key, value in values.items() if key not in VLLM_DEFAULTS}


def check_keys(kind: type, values: Mapping[str, Any], where: str) -> None:
    """Raises: ConfigError if a key is not a field of the dataclass; it names the nearest one."""
    names = [each.name for each in fields(kind)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names)}")


def check_words(config: Any, prefix: str = "") -> None:
    """Raises: ConfigError if a field of a few words has another one, or if a text is not Unicode.

    Args:
        prefix: comes before the field's name in the sentence.
    """
    for each in fields(config):
        value = getattr(config, each.name)
        texts = [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]
        if not all(map(is_unicode, texts)):
            raise ConfigError(f"{prefix}{each.name} is not valid Unicode text: give it in UTF-8")
    for name, words in _words(type(config)).items():
        one_of(prefix + name, getattr(config, name), words)
    for name, option in options_of(type(config)).items():
        value = getattr(config, name)
        if option.words and not isinstance(value, int) and value not in option.words:
            raise ConfigError(f"{prefix}{name} must be {option.known}, not '{value}'")


def check_ranges(config: Any) -> None:
    """Raises: ConfigError if a number is outside the bounds that its field's `Option` states. None is not a number."""
    for name, option in options_of(type(config)).items():
        value = getattr(config, name)
        if not isinstance(value, int | float):
            continue
        if (option.least, option.most) != (None, None) and not math.isfinite(value):
            raise ConfigError(f"{name} must be a finite number, got {value}")
        if option.least is not None:
            at_least(name, value, option.least)
        if option.most is not None and value > option.most:
            raise ConfigError(f"{name} must be at most {option.most}, got {value}")


def hints_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass and their annotations, evaluated."""
    return _hints(kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def options_of(kind: type) -> dict[str, Option]:
    """The fields of a dataclass that are command-line options: name -> Option, in the order of the fields."""
    hints = hints_of(kind)
    found = ((each.name, extra) for each in fields(kind) for extra in split(hints[each.name])[1])
    return {name: extra for name, extra in found if isinstance(extra, Option)}


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The type of an annotation, and what `Annotated` adds to it."""
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())


def _words(kind: type) -> dict[str, tuple[str, ...]]:
    """The fields that take one of a few words: name -> words."""
    types = {name: split(hint)[0] for name, hint in hints_of(kind).items()}
    return {name: get_args(each) for name, each in types.items() if get_origin(each) is Literal}


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, with the list of known words unless it is surely meant, or that list alone.

    A likeness below SURE says little: that of `vocab_size` to `vocab` is lower than that of `layers` to `later`.
    """
    word = shortened(word)  # a client may send one of megabytes, which would take a second
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    is_sure = bool(difflib.get_close_matches(word, known, n=1, cutoff=SURE))
    hint = f"; did you mean '{close[0]}'?" if close else ";"
    return hint if is_sure else f"{hint} known: {', '.join(sorted(known))}"


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raises: ConfigError that names the nearest known word."""
    if value not in known:
        raise ConfigError(f"{name} '{value}' is unknown{nearest(str(value), list(known))}")


def is_probability(name: str, value: float) -> None:
    """Raises: ConfigError if the value is not between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is a probability, 0 to 1, got {value}")


def check_name(name: str, what: str) -> None:
    """Check a name that goes into logs, metrics, tables and addresses.

    Args:
        what: whose name it is, for the sentence.
    Raises: ConfigError.
    """
    if not NAME.fullmatch(name) or ".." in name.split("/"):
        raise ConfigError(
            f"{what} {quoted(name)} is not a name: it must be letters, digits and any of . _ - / : @ + between them, "
            "as in org/model-7b"
        )


def check_api_key(key: str) -> None:
    """Raises: ConfigError if not every client can send the key."""
    if not SENDABLE.fullmatch(key):
        raise ConfigError(
            "the API key must be of printable ASCII characters, without spaces around it: many clients send no other"
        )


def at_least(name: str, value: float, minimum: float) -> None:
    """Raises: ConfigError if the value is below the minimum."""
    if value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, got {value}")
