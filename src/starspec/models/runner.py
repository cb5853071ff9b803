"""The interface of every model runner: real or synthetic, target or draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from starspec.cache.kv_cache import KVCache
from starspec.cache.ragged import RaggedCache
from starspec.models.layers import LayerRange


class Segment(NamedTuple):
    """New tokens of one cache row in one forward.

    They lie behind the row's committed positions, from `cache.lengths[row]` on. Token i attends to the committed
    positions, its ancestors and itself. `parents[i] < i` is an index into the segment; -1 means that the token follows
    the committed prefix; None means a chain. A token's position is the row's length plus its depth below the prefix (0
    for the first token).

    The first `num_forwarded` tokens are not new: earlier forwards wrote their keys and values into these slots, and
    they are listed only as ancestors.
    """

    row: int
    token_ids: Sequence[int]  # T >= 1
    num_logits: int  # logits are returned for the last `num_logits` tokens, 0..num_new
    parents: Sequence[int] | None = None  # T entries
    num_forwarded: int = 0  # 0..T - 1
    is_scored: bool = False  # a chunk of a prompt with logits, computed like one without

    @property
    def num_new(self) -> int:
        return len(self.token_ids) - self.num_forwarded


class ForwardOutput(NamedTuple):
    """The result of a forward."""

    logits: Tensor  # [sum of num_logits, V] in the model's dtype, in segment order; only the last stage has any
    features: Tensor | None = None  # [sum of num_new, F]: the wanted layers of every new token, side by side
    hidden: Tensor | None = None  # [sum of num_new, C] for the next stage; None = this was the last one


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a loaded model."""

    name: str
    vocab_size: int  # rows of the embedding
    max_model_len: int  # longest sequence in tokens, prompt and output
    num_parameters: int
    num_weight_bytes: int  # bytes that one decoding step reads
    eos_token_ids: tuple[int, ...]
    num_layers: int = 0  # L; features exist for 0..L, and 0 is the embeddings
    hidden_size: int = 0  # C: numbers in one layer's features; 0 = the model has none
    fingerprint: str = ""  # of config and weights; stages of one target have the same


class BatchRunner(Protocol):
    """A causal LM over rows of a cache: the interface between a target's engine and its model.

    `forward` writes the keys and values of the new tokens behind each row's committed length and commits nothing. The
    caller commits with `cache.commit`; doing nothing is a rollback. Behind `max_model_len` tokens a row has room for a
    whole proposal (MAX_DRAFT_TOKENS).
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def cache(self) -> KVCache: ...

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        """Run the model over the new tokens of several rows.

        Args:
            segments: of different rows. Those of a target have `num_forwarded` 0, because a target forwards whole
                proposals.
            feature_layers: the hidden states that are wanted, numbered as in Hugging Face: i is the input of layer i,
                and L is the output of the final norm. They are copies of values that are computed anyway.
        Raises: CacheRangeError if a segment does not fit into its row; ValueError if the model has no such features.
        Effects: the slots behind each row's length; never `cache.lengths`.
        """
        ...


class ModelRunner(BatchRunner, Protocol):
    """A causal LM over the ragged cache, with what a draft needs in addition."""

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
            is_obsolete: called repeatedly while the forward runs; once it returns True, the forward stops.
        Raises: ForwardAborted if it stopped.
        """
        ...


class Stage(Protocol):
    """A runner of some layers of a model, over a cache of their keys and values."""

    @property
    def info(self) -> ModelInfo:
        """Of the whole model, but for the parameters and weight bytes, which are the stage's."""
        ...

    @property
    def layers(self) -> LayerRange: ...

    @property
    def cache(self) -> RaggedCache: ...

    def forward(
        self, segments: Sequence[Segment], feature_layers: Sequence[int] = (), *, hidden: Tensor | None = None
    ) -> ForwardOutput:
        """As `BatchRunner.forward`, for the layers of the stage.

        Args:
            segments: the same at every stage, and in the same order, `num_logits` included: they decide how tokens are
                computed together. Only the first stage reads the token ids.
            feature_layers: some of those that the stage has: inputs of its layers, and of the last stage the output of
                the final norm.
            hidden: [sum of num_new, C], what the stage before gave for these segments; None at the first stage.
        Returns: logits at the last stage, hidden states at the others.
        Raises: also ValueError if the hidden states do not fit.
        """
        ...


class LoadedRunner(ModelRunner, Protocol):
    """A runner as `load_runner` returns it, with what the numerics probe found."""

    @property
    def numerics_report(self) -> str:
        """A text that says whether a token's bits depend on what it is batched with."""
        ...

    @property
    def is_invariant(self) -> bool:
        """Whether the probe showed that they do not."""
        ...
