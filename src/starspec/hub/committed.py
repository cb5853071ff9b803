"""What a hub knows of one sequence without drafting: its committed tokens, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixName, PrefixNames
from starspec.sampling.counts import TokenCounts
from starspec.speculation.propose_rejection import seed_after
from starspec.wire.messages import Open


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a drafter can take. Sequences beyond it get fewer draft tokens, and finally none."""

    max_len: int  # tokens of a sequence, drafts included
    vocab_size: int  # the drafter has embeddings for token ids below this
    max_draft_tokens: int  # of one proposal
    target_vocab_size: int  # token ids below this are the target's
    feature_window: int = 0  # positions whose features are kept
    prefix_salt: bytes | None = None  # sequences with the same salt share prefixes; None = no sharing


class CommittedTokens:
    """The tokens that one target has committed of a sequence.

    Args:
        opened: the prompt, and the tokens that followed it.
        is_drawn: whether draft tokens are drawn at random; only then there are seeds for them.
    """

    def __init__(self, opened: Open, limits: DraftLimits, *, is_drawn: bool) -> None:
        self.token_ids = list(opened.token_ids)  # to be changed by `append` only
        self._limits = limits
        self._prefixes = PrefixNames(limits.prefix_salt)
        self._has_embeddings = max(opened.token_ids) < limits.vocab_size
        output = self.token_ids[opened.prompt_len :]
        self._draw_seed = seed_after(opened.sampling.seed, output) if is_drawn else None
        self._counts: TokenCounts | None = None
        if opened.sampling.needs_counts:
            self._counts = TokenCounts(self.token_ids[: opened.prompt_len], output)

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """The target has committed these tokens, at least one."""
        self.token_ids += token_ids
        if self._draw_seed is not None:
            self._draw_seed = seed_after(self._draw_seed, token_ids)
        self._has_embeddings = self._has_embeddings and max(token_ids) < self._limits.vocab_size
        if self._counts:
            self._counts.append(token_ids)

    @property
    def room(self) -> int:
        """Draft tokens that may follow on one path, at most."""
        if not self._has_embeddings:
            return 0
        return max(0, min(self._limits.max_len - len(self.token_ids), self._limits.max_draft_tokens))

    @property
    def prefix_names(self) -> Sequence[PrefixName]:
        """Names of the shareable prefixes, shortest first; none if nothing is shared."""
        return self._prefixes.of(self.token_ids)

    @property
    def num_prefix_blocks(self) -> int:
        """Blocks that may be taken over from other rows. The last token must be prefilled, so its block may not."""
        return min(len(self.prefix_names), (len(self.token_ids) - 1) // PREFIX_BLOCK)

    def next_block(self, num_prefilled: int) -> PrefixName | None:
        """The first block after so many prefilled tokens, if others may take it over once it is prefilled."""
        num_blocks = num_prefilled // PREFIX_BLOCK
        return self.prefix_names[num_blocks] if num_blocks < self.num_prefix_blocks else None

    def counts_after(self, path: Sequence[int]) -> TokenCounts | None:
        """Counts of all tokens and of a path behind them; None if the sampling spec does not need them."""
        return self._counts.with_path(path) if self._counts else None

    def seed_after(self, path: Sequence[int]) -> int:
        """The random seed that draws the tokens behind this path."""
        return seed_after(self._draw_seed or 0, path)

    def copied(self) -> CommittedTokens:
        """A copy to which tokens may be appended. It has no counts: only drafting needs them."""
        after = copy(self)
        after.token_ids, after._counts = [*self.token_ids], None
        return after
