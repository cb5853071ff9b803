"""Sampling parameters of a request, with vLLM's names and meanings."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeGuard

from starspec.config import MAX_STOP_LEN, MAX_TOP_LOGPROBS
from starspec.errors import RequestError
from starspec.ids import BadWords
from starspec.quoting import is_unicode
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import MAX_BAD_WORDS, MAX_END_TOKENS, SamplingSpec
from starspec.structured_outputs import StructuredOutputsParams, structured_outputs_of

MAX_CHOICES = 8  # n
MAX_STOP_STRINGS = 16
MAX_BAD_TEXT = 2**16  # characters of all bad words: each is tokenized twice
DEFAULT_MAX_TOKENS = 16
INTEGERS = ("n", "top_k", "min_tokens", "max_tokens", "seed", "logprobs", "prompt_logprobs")
REALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
OPTIONAL = ("max_tokens", "seed", "logprobs", "prompt_logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    Raises: RequestError that names the parameter, if a value is out of range.
    """

    n: int = 1  # independent answers, 1..8
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0 or -1 = off
    min_p: float = 0.0  # [0, 1]
    repetition_penalty: float = 1.0  # > 0, over prompt and output
    presence_penalty: float = 0.0  # [-2, 2], over output
    frequency_penalty: float = 0.0  # [-2, 2], over output
    logit_bias: Mapping[int, float] | None = None  # token id -> [-100, 100]
    seed: int | None = None  # None = drawn once per request
    max_tokens: int | None = DEFAULT_MAX_TOKENS  # None = as many as the context holds
    min_tokens: int = 0  # no end token before this many output tokens
    stop: Sequence[str] | str | None = ()  # the text ends before the first of these
    stop_token_ids: Sequence[int] | None = ()  # the output ends with the first of these
    bad_words: Sequence[str] | None = ()  # texts that the output does not contain as tokens
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # log-probabilities of this many most likely tokens, 0..20
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None  # the form of the answer; None = any
    prompt_logprobs: int | None = None  # the same for the prompt's tokens

    def __post_init__(self) -> None:
        self._check_numbers(INTEGERS, Integral, "an integer")
        self._check_numbers(REALS, Real, "a number")
        for name in FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {value!r}", name)
        object.__setattr__(self, "structured_outputs", structured_outputs_of(self.structured_outputs))
        self._check_stop()
        self._check_bad_words()
        self._check_token_ids()
        if not 1 <= self.n <= MAX_CHOICES:
            raise RequestError(f"n must be 1 to {MAX_CHOICES}, got {self.n}", "n")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            if (number := getattr(self, name)) is not None and not 0 <= number <= MAX_TOP_LOGPROBS:
                raise RequestError(f"{name} must be 0 to {MAX_TOP_LOGPROBS}, got {number}", name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens must not exceed max_tokens", "min_tokens")
        self.sampling_spec(())

    def _check_stop(self) -> None:
        stop = () if self.stop is None else self.stop
        is_several = isinstance(stop, Collection) and not isinstance(stop, Mapping)
        if not is_several or not all(isinstance(text, str) for text in stop):
            raise RequestError("stop must be a string or several", "stop")
        if len(self.stop_strings) > MAX_STOP_STRINGS or not all(self.stop_strings):
            raise RequestError(f"stop must be at most {MAX_STOP_STRINGS} non-empty strings", "stop")
        if any(len(text) > MAX_STOP_LEN for text in self.stop_strings):
            raise RequestError(f"a stop string has at most {MAX_STOP_LEN} characters", "stop")
        if not all(map(is_unicode, self.stop_strings)):
            raise RequestError("stop must be valid Unicode text", "stop")

    def _check_bad_words(self) -> None:
        words = () if self.bad_words is None else self.bad_words
        is_several = isinstance(words, Collection) and not isinstance(words, str | Mapping)
        if not is_several or not all(isinstance(word, str) and word and is_unicode(word) for word in words):
            raise RequestError("bad_words must be non-empty texts", "bad_words")
        if len(words) > MAX_BAD_WORDS // 2 or any(len(word) > MAX_STOP_LEN for word in words):
            most = f"at most {MAX_BAD_WORDS // 2} texts of at most {MAX_STOP_LEN} characters"
            raise RequestError(f"bad_words must be {most}", "bad_words")
        if sum(map(len, words)) > MAX_BAD_TEXT:
            raise RequestError(f"bad_words must have at most {MAX_BAD_TEXT} characters together", "bad_words")

    def _check_token_ids(self) -> None:
        ids, bias = () if self.stop_token_ids is None else self.stop_token_ids, self.logit_bias or {}
        if not isinstance(ids, Collection) or not all(_is_token_id(each) for each in ids):
            raise RequestError("stop_token_ids must be token ids", "stop_token_ids")
        if len(ids) > MAX_END_TOKENS // 2:  # those of the model come besides
            raise RequestError(f"stop_token_ids must be at most {MAX_END_TOKENS // 2} token ids", "stop_token_ids")
        if not isinstance(bias, Mapping) or not all(_is_integer(_token_id(each)) for each in bias):
            raise RequestError("the keys of logit_bias must be token ids", "logit_bias")
        if not all(isinstance(each, Real) and not isinstance(each, bool) for each in bias.values()):
            raise RequestError("the values of logit_bias must be numbers", "logit_bias")

    def _check_numbers(self, names: Sequence[str], kind: type, word: str) -> None:
        for name in names:
            value = getattr(self, name)
            is_absent = value is None and name in OPTIONAL
            if not is_absent and (isinstance(value, bool) or not isinstance(value, kind)):
                raise RequestError(f"{name} must be {word}, got {value!r}", name)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop`, which may be one string, as several."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """`stop_token_ids`; none if it is None."""
        return () if self.stop_token_ids is None else tuple(map(int, self.stop_token_ids))

    @property
    def bias(self) -> dict[int, float]:
        """`logit_bias`; empty if it is None. Keys may be written as strings, as in JSON."""
        return {int(_token_id(key)): float(value) for key, value in (self.logit_bias or {}).items()}

    @property
    def grammar(self) -> GrammarSpec | None:
        """The grammar of the answer; None if it may have any form."""
        form = structured_outputs_of(self.structured_outputs)
        return None if form is None else form.spec()

    def sampling_specs(self, eos_token_ids: tuple[int, ...], bad_words: BadWords = ()) -> list[SamplingSpec]:
        """One sampling spec for each of the `n` answers.

        Their seeds are consecutive. The first one is `seed`, or is drawn here if `seed` is None.

        Args:
            bad_words: the parameters' own, as tokens of the model.
        """
        seed = secrets.randbits(62) if self.seed is None else int(self.seed)  # a NumPy integer would overflow below
        return [self.sampling_spec(eos_token_ids, (seed + choice) % 2**63, bad_words) for choice in range(self.n)]

    def sampling_spec(
        self, eos_token_ids: tuple[int, ...], seed: int | None = None, bad_words: BadWords = ()
    ) -> SamplingSpec:
        """The sampling spec of one answer.

        Args:
            seed: None = the parameters' own.
            bad_words: as tokens.

        Raises: RequestError, naming the parameter, if a value is out of range.
        """
        end_token_ids = self.stop_ids if self.ignore_eos else (*eos_token_ids, *self.stop_ids)
        try:
            return SamplingSpec(
                temperature=float(self.temperature),  # NumPy's number types cannot be encoded
                top_k=0 if self.top_k == -1 else int(self.top_k),  # vLLM writes -1 for off
                top_p=float(self.top_p),
                min_p=float(self.min_p),
                repetition_penalty=float(self.repetition_penalty),
                presence_penalty=float(self.presence_penalty),
                frequency_penalty=float(self.frequency_penalty),
                logit_bias=self.bias,
                seed=int(self.seed or 0) if seed is None else seed,
                min_tokens=int(self.min_tokens),
                end_token_ids=end_token_ids,
                bad_words=bad_words,
            )
        except ValueError as error:
            raise RequestError(str(error), str(error).split()[0]) from error
        except OverflowError as error:  # an integer of hundreds of digits
            name = next((each for each in REALS if abs(getattr(self, each)) > sys.float_info.max), "logit_bias")
            raise RequestError(f"{name} is too large for a number", name) from error


def _is_token_id(value: object) -> bool:
    return _is_integer(value) and int(value) >= 0


def _is_integer(value: object) -> TypeGuard[Integral]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _token_id(key: Any) -> Any:
    """A key of `logit_bias`, which may be written as a string."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key
