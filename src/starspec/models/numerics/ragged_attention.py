"""The probe of ragged attention: does a token of a chain get the bits that it has alone, whatever shares its call?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import KEY_BLOCK, RaggedCache
from starspec.models.attention.call import MIN_QUERY_ROWS
from starspec.models.attention.plan import MAX_QUERY_ROWS, MAX_TOGETHER, AttentionMode, joined, plan_calls
from starspec.models.attention.ragged import RaggedAttention
from starspec.models.attention.scores import ScoreRule
from starspec.models.numerics.sensitive_inputs import SensitiveValues, half_uniform
from starspec.models.numerics.step_attention import steps_are_invariant

# committed slots: inside a key block, across one, across a longer one; different kernels sum them
PREFIX_LENS: Final = (3, 60, 300, 440, 505, 1500)
# And near the end of every block up to there: kernels split sums at places of their own, and only some numbers of
# blocks show it. Torch's CPU kernel takes 512 slots at a time, so longer prefixes are more of the same.
NEAR_BLOCK_ENDS: Final = range(KEY_BLOCK - 9, max(PREFIX_LENS), KEY_BLOCK)
CHAIN_LEN: Final = 5
MAX_TOKENS: Final = 64  # tried together; no forward of several sequences has more
FEW_TOKENS: Final = MAX_QUERY_ROWS // MIN_QUERY_ROWS  # by run, no more tokens share a call
WIDEST_WINDOW: Final = 200  # positions; hides whole blocks behind the longer prefixes
NUMS_TOGETHER: Final = (2, 3, MAX_TOGETHER)  # numbers of sequences in one call


@torch.inference_mode()
def attention_is_invariant(
    like: RaggedCache, num_heads: int, mode: AttentionMode, rules: Sequence[ScoreRule] = ()
) -> bool:
    """Whether each token of a chain attends with the bits that it has as a single batch entry.

    For `IN_STEPS` this is `steps_are_invariant`. Otherwise it tries every number of tokens that share a call, for
    various numbers of committed slots. For `TOGETHER` it also tries various numbers of sequences, and masked slots up
    to any block.

    Args:
        like: a cache with the model's heads, dtype and device.
        num_heads: Hq.
        mode: how the tokens attend.
        rules: of the model's layers; those that differ are tried one by one.
    """
    return all(_rule_is_invariant(like, num_heads, mode, rule) for rule in _to_try(rules, like))


def _to_try(rules: Sequence[ScoreRule], like: RaggedCache) -> list[ScoreRule]:
    """One rule of each kind, first those that hide least, which read most and so differ soonest.

    Narrow windows stand for wide ones, whose mask would hide nothing in the probe.
    """
    kinds = {}
    for rule in rules or [ScoreRule(like.keys[0].shape[3] ** -0.5)]:
        window = None if rule.window is None else min(rule.window, WIDEST_WINDOW)
        kinds[window, rule.softcap, rule.sinks is None] = replace(rule, window=window)
    return sorted(kinds.values(), key=lambda rule: -(rule.window or max(PREFIX_LENS)))


def _rule_is_invariant(like: RaggedCache, num_heads: int, mode: AttentionMode, rule: ScoreRule) -> bool:
    if mode is AttentionMode.IN_STEPS:
        return steps_are_invariant(like, num_heads, rule)
    trial = _Trial(like, num_heads, mode, rule)
    nums_for_each = (*range(1, FEW_TOKENS + 1), MAX_TOKENS // 2)
    chains = [((prefix_len,), num_tokens) for prefix_len in PREFIX_LENS for num_tokens in nums_for_each]
    # every number of tokens, each for one prefix length
    in_turns = zip(itertools.cycle(PREFIX_LENS), range(1, MAX_TOKENS + 1))
    chains += [((prefix_len,), num_tokens) for prefix_len, num_tokens in in_turns]
    chains += [((prefix_len,), num) for prefix_len in NEAR_BLOCK_ENDS for num in (1, CHAIN_LEN, FEW_TOKENS)]
    # where sequences cannot attend together, few of them mostly show it
    trials = [*_mixed(), *chains, *_longer()] if mode is AttentionMode.TOGETHER else chains
    return all(trial.is_as_alone(*each) for each in trials)


def _mixed() -> list[tuple[tuple[int, ...], int]]:
    """Prefix lengths of sequences that share a call, and how many tokens each has."""
    lengths = itertools.cycle(PREFIX_LENS)
    return [
        (tuple(itertools.islice(lengths, num)), num_tokens)
        for num in NUMS_TOGETHER
        for num_tokens in range(1, MAX_TOKENS // num + 1, 1 + MAX_TOKENS // num // 8)
    ]


def _longer() -> list[tuple[tuple[int, ...], int]]:
    """Two sequences, of which one reads masked slots up to each block."""
    return [
        ((prefix_len, longest), num_tokens)
        for prefix_len in (*PREFIX_LENS, *NEAR_BLOCK_ENDS)
        for longest in range(prefix_len, max(PREFIX_LENS), KEY_BLOCK)
        for num_tokens in (1, CHAIN_LEN)
    ]


class _Trial:
    """Chains behind prefixes, in rows that are equal except for a chain's values (`sensitive_inputs.py`)."""

    def __init__(self, like: RaggedCache, num_heads: int, mode: AttentionMode, rule: ScoreRule) -> None:
        num_kv_heads, _, head_dim = like.keys[0].shape[1:]
        self._cache = RaggedCache(
            1,
            max(NUMS_TOGETHER),
            max(PREFIX_LENS) + MAX_TOKENS,
            num_kv_heads,
            head_dim,
            dtype=like.dtype,
            device=like.device,
        )
        keys, values = self._cache.keys[0], self._cache.values[0]
        shape = (num_kv_heads, keys.shape[2], head_dim)
        generator = torch.Generator().manual_seed(0)
        keys.copy_(torch.randn(shape, generator=generator).expand_as(keys))
        self._values = SensitiveValues(shape, like.dtype, generator)
        values.copy_(self._values.of_prefix.expand_as(values))
        query = torch.randn(MAX_TOKENS, num_heads, head_dim, generator=generator)
        self._query = half_uniform(query).to(like.device, like.dtype)
        self._mode, self._rule = mode, rule
        self._alone: dict[tuple[int, int], Tensor] = {}  # by prefix and token
        self._laid: dict[int, int] = {}  # row -> the prefix behind which a chain's values are

    def is_as_alone(self, prefix_lens: Sequence[int], num_tokens: int) -> bool:
        """Whether `num_tokens` tokens behind each of the prefixes get the same bits together as each alone."""
        expected = [self._attends_alone(each, token) for each in prefix_lens for token in range(num_tokens)]
        found = self._attend(prefix_lens, 0, num_tokens, self._mode)
        return torch.equal(found, torch.cat(expected))

    def _attends_alone(self, prefix_len: int, token: int) -> Tensor:
        if (prefix_len, token) not in self._alone:
            found = self._attend((prefix_len,), token, 1, AttentionMode.BY_TOKEN)
            self._alone[prefix_len, token] = found
        return self._alone[prefix_len, token]

    def _attend(self, prefix_lens: Sequence[int], first: int, num_tokens: int, mode: AttentionMode) -> Tensor:
        """Attention of the tokens of a chain from `first` on, behind each of N prefixes: [N T, Hq D]."""
        for row, prefix_len in enumerate(prefix_lens):
            self._lay(row, prefix_len)
        query = self._query[first : first + num_tokens]
        behind = [prefix_len + first for prefix_len in prefix_lens]
        return attend_chains(self._cache, behind, query, mode, self._rule)

    def _lay(self, row: int, prefix_len: int) -> None:
        """Effects: the row's values are those of a chain behind this prefix."""
        before = self._laid.get(row)
        if before == prefix_len:
            return
        stored = self._cache.values[0][row]
        if before is not None:
            chain = slice(before, before + MAX_TOKENS)
            stored[:, chain].copy_(self._values.of_prefix[:, chain])
        stored[:, prefix_len : prefix_len + MAX_TOKENS].copy_(self._values.of_chain(prefix_len, MAX_TOKENS))
        self._laid[row] = prefix_len


def attend_chains(
    cache: RaggedCache, prefix_lens: Sequence[int], query: Tensor, mode: AttentionMode, rule: ScoreRule
) -> Tensor:
    """Attention of the same chain [T, Hq, D] in each of the first N rows: [N T, Hq D]."""
    num_tokens, num_heads, head_dim = query.shape
    calls = []
    for row, prefix_len in enumerate(prefix_lens):
        calls += plan_calls(
            row,
            row * num_tokens,
            prefix_len,
            parents=None,
            new_tokens=range(num_tokens),
            is_prompt=False,
            mode=mode,
            group=num_heads // cache.keys[0].shape[1],
            like=cache.keys[0],
        )
    if len(prefix_lens) > 1:
        calls = joined(calls, are_calls_dear=True)  # however different their lengths are
    # the cache already holds the keys and values
    attention = RaggedAttention(cache, [], calls, num_rows=len(prefix_lens) * num_tokens, num_heads=num_heads)
    nothing = query.new_empty(0, 2, cache.keys[0].shape[1], head_dim)
    return attention(0, query.repeat(len(prefix_lens), 1, 1), nothing, rule)
