"""What every model runner offers, be it real or synthetic, target or draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from starspec.cache.kv_cache import KVCache
from starspec.cache.ragged import RaggedCache


class Segment(NamedTuple):
    """New tokens of one cache row in one forward.

    They sit behind the row's committed positions, `cache.lengths[row] ...`; token i attends those, its ancestors and
    itself. `parents[i] < i` indexes into the segment; -1 hangs from the committed prefix; None is a chain.
    A token's position is the row's length plus its depth below the prefix (0 for the first).

    The first `num_forwarded` tokens are not new: earlier forwards put their keys and values into those slots, and
    they are here as ancestors only.
    """

    row: int
    token_ids: Sequence[int]  # T >= 1
    num_logits: int  # logits are returned for the last `num_logits` tokens, 0..num_new
    parents: Sequence[int] | None = None  # T entries
    num_forwarded: int = 0  # 0..T - 1

    @property
    def num_new(self) -> int:
        return len(self.token_ids) - self.num_forwarded


class ForwardOutput(NamedTuple):
    """What a forward gives."""

    logits: Tensor  # [sum of num_logits, V] in the model's dtype, in segment order
    features: Tensor | None = None  # [sum of num_new, F]: the wanted layers of every new token side by side


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What others need to know of a loaded model."""

    name: str
    vocab_size: int  # rows of the embedding
    max_model_len: int  # longest sequence in tokens, prompt and output
    num_parameters: int
    num_weight_bytes: int  # bytes read by one decoding step
    eos_token_ids: tuple[int, ...]
    num_layers: int = 0  # L; features can be had of 0..L, 0 being the embeddings
    hidden_size: int = 0  # C: numbers of one layer's features; 0 = the model gives none


class BatchRunner(Protocol):
    """A causal LM over rows of a cache: the seam between a target's engine and its model.

    `forward` writes keys and values of the new tokens behind each row's committed length and commits nothing: the
    caller commits with `cache.commit` or rolls back by doing nothing. Behind `max_model_len` tokens a row has room for
    a whole proposal (MAX_DRAFT_TOKENS).
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def cache(self) -> KVCache: ...

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        """Run the model over the new tokens of several rows.

        Args:
            segments: of different rows. A target's have no `num_forwarded`: it forwards whole proposals.
            feature_layers: hidden states that are wanted, as Hugging Face counts them: i is what enters layer i, L
                what the final norm gives. They are copies of what is computed anyway.
        Raises: CacheRangeError if a segment does not fit its row; ValueError if the model has no such features.
        Effects: what lies behind each row's length; never `cache.lengths`.
        """
        ...


class ModelRunner(BatchRunner, Protocol):
    """A causal LM over the ragged cache, with what a drafter needs beyond."""

    @property
    def cache(self) -> RaggedCache: ...

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        """As `BatchRunner.forward`.

        Args:
            is_obsolete: asked again and again while the forward runs; once it says yes the forward ends there.
        Raises: ForwardAborted then.
        """
        ...


class LoadedRunner(ModelRunner, Protocol):
    """What `load_runner` returns: it says what is known of its bits."""

    @property
    def numerics_report(self) -> str:
        """What is known of whether a token's bits depend on what it is batched with, in words."""
        ...

    @property
    def is_invariant(self) -> bool:
        """Whether it was shown that they do not."""
        ...
