"""Compiles grammars for the vocabulary of one model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from llguidance import LLTokenizer

from starspec.errors import RequestError
from starspec.grammars.matcher import GrammarMatcher
from starspec.grammars.source import refusal, source_of, start
from starspec.grammars.vocabulary import make_vocabulary, special_tokens_of
from starspec.sampling.grammar import GrammarSpec


class Grammars:
    """Compiles grammars, on any thread.

    Args:
        tokenizer: a transformers tokenizer.
        vocab_size: V of the model's logits.
        eos_token_ids: tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.special_tokens = special_tokens_of(tokenizer)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._ends = torch.zeros(vocab_size, dtype=torch.bool)
        self._ends[list(eos_token_ids)] = True
        if not eos_token_ids:
            self._ends[:] = True

    def prepare(self) -> None:
        """Read the vocabulary, which takes about a second and holds Python's lock. Else the first grammar does it."""
        _ = self._vocabulary

    def compile(self, spec: GrammarSpec) -> GrammarMatcher:
        """A matcher before the first token of an answer. Releases Python's lock.

        Raises: RequestError if the grammar is wrong or exceeds a limit, or if the bytes of tokens are not known.
        """
        if isinstance(self._vocabulary, str):
            raise RequestError(self._vocabulary, "structured_outputs")
        matcher = GrammarMatcher(partial(start, source_of(spec), self._vocabulary), self._ends)
        if matcher.complaint:
            raise refusal(spec, matcher.complaint)
        return matcher

    @cached_property
    def _vocabulary(self) -> LLTokenizer | str:
        """The bytes of each token; a sentence if they cannot be known."""
        try:
            return make_vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        except Exception as error:  # whatever its files may hold: this costs grammars only, not the target
            return f"this model's tokenizer does not say what bytes its tokens are, which a grammar needs: {error}"
