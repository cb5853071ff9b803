"""The sampling parameters of one request: everything but the logits that decides the target's next token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log
from typing import Final

from starspec.ids import BadWords

MAX_BAD_WORDS: Final = 2048  # sequences of tokens
MAX_BAD_WORD_LEN: Final = 64  # tokens of one
MAX_LOGIT_BIAS: Final = 1024  # token ids; each draw, of target and hub, goes through them
MAX_END_TOKENS: Final = 2048


class BadWordTable(tuple[tuple[int, ...], ...]):
    """Bad words, found by what is in front of their last tokens: thousands of them cost hardly more than one."""

    @cached_property
    def _by_length(self) -> dict[int, dict[tuple[int, ...], list[int]]]:
        """Number of tokens in front -> these tokens -> the last tokens."""
        table = defaultdict[int, dict[tuple[int, ...], list[int]]](dict)
        for *front, last in self:
            table[len(front)].setdefault(tuple(front), []).append(last)
        return table

    def last_tokens(self, output: Sequence[int]) -> list[int]:
        """The last tokens of those words whose other tokens the output ends with."""
        found: list[int] = []
        for length, words in self._by_length.items():
            if length <= len(output):
                found += words.get(tuple(output[len(output) - length :]), ())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """Sampling parameters as the target's draw uses them.

    The wire carries them to the hub, which drafts with the same parameters.

    Raises: ValueError if a value is out of range.
    """

    temperature: float = 1.0  # >= 0; 0 is greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1]
    repetition_penalty: float = 1.0  # > 0, over prompt and output
    presence_penalty: float = 0.0  # [-2, 2], over output
    frequency_penalty: float = 0.0  # [-2, 2], over output
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added logit, [-100, 100]
    seed: int = 0  # 0 .. 2**63 - 1
    min_tokens: int = 0  # `end_token_ids` cannot be drawn before this many output tokens
    end_token_ids: tuple[int, ...] = ()  # eos and stop token ids
    bad_words: BadWords = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0 and finite, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 = off), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be positive and finite, got {self.repetition_penalty}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name} must be in [-2, 2], got {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in [0, 2**63), got {self.seed}")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens must be at least 0, got {self.min_tokens}")
        self._check_token_ids()
        if self.bad_words:
            self._check_bad_words()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def _check_token_ids(self) -> None:
        for name, most in (("logit_bias", MAX_LOGIT_BIAS), ("end_token_ids", MAX_END_TOKENS)):
            if len(getattr(self, name)) > most:
                raise ValueError(f"{name} must be at most {most} token ids, got {len(getattr(self, name))}")
        if any(not -100.0 <= bias <= 100.0 for bias in self.logit_bias.values()):
            raise ValueError("logit_bias values must be in [-100, 100]")

    def _check_bad_words(self) -> None:
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ValueError(
                f"bad_words must be at most {MAX_BAD_WORDS} sequences of tokens, got {len(self.bad_words)}"
            )
        if not all(1 <= len(word) <= MAX_BAD_WORD_LEN for word in self.bad_words):
            raise ValueError(f"bad_words must each have 1 to {MAX_BAD_WORD_LEN} tokens")
        if not isinstance(self.bad_words, BadWordTable):
            object.__setattr__(self, "bad_words", BadWordTable(self.bad_words))

    def ends_of_bad_words(self, output: Sequence[int]) -> list[int]:
        """The tokens that would complete a bad word behind this output."""
        return self.bad_words.last_tokens(output) if isinstance(self.bad_words, BadWordTable) else []

    @property
    def needs_counts(self) -> bool:
        """Whether earlier tokens change the distribution of the next one."""
        return bool(self.has_penalties or self.min_tokens or self.bad_words)

    @property
    def adjusts_logits(self) -> bool:
        """Whether tokens are drawn from logits that differ from the model's."""
        return bool(self.needs_counts or self.logit_bias)

    @property
    def has_filters(self) -> bool:
        """Whether top-k, top-p or min-p may exclude tokens."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def floor(self) -> float:
        """The scaled logit below which min-p excludes a token; -inf if min-p is off."""
        return log(self.min_p) if self.min_p > 0.0 else -inf

    @property
    def is_plain_argmax(self) -> bool:
        """Whether the next token is the argmax of the model's own logits, whatever the earlier tokens are."""
        return self.is_greedy and not self.adjusts_logits
