"""The seam between a target's engine and its model: windows are launched, and verdicts land."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NewType, Protocol

from torch import Tensor

from starspec.cache.kv_cache import KVCache
from starspec.models.runner import ModelInfo
from starspec.policy.pipe_depth import Traversed
from starspec.sampling.logprobs import Score
from starspec.stats import PipeStats
from starspec.windows.window import Verdict, Window

Ticket = NewType("Ticket", int)
"""Names one launch."""


class Landed(NamedTuple):
    """The answer to one launch."""

    ticket: Ticket
    verdicts: list[Verdict]  # one for each judge
    features: Tensor | None  # [tokens, F], of a chunk; None = none are wanted. Those of other windows are in verdicts
    scores: Sequence[Score] = ()  # of the tokens after a chunk's, if they are wanted
    took: Traversed | None = None  # its traversal; None = nothing travels, or the depth is given


class Lost(NamedTuple):
    """No launch before this lands any more, and all rows are empty. They stay leased."""

    reason: str  # one sentence
    can_go_on: bool  # whether launches are possible again; otherwise end all requests


class Verifier(Protocol):
    """Verifies windows, here or elsewhere. It knows no requests, only cache rows.

    A launch forwards its windows behind the rows' lengths and commits nothing: the engine commits once it has landed,
    with `cache.commit`. Until then it launches no other window of these rows, unless `num_windows` allows it: it then
    commits a chain before its verdict has landed, and takes back what was refused with `cache.truncate`. What stood on
    that is to be ignored when it lands. Chunks of prompts are committed as soon as they are launched. A row may be
    freed meanwhile, and leased again: launches take effect in their order.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def cache(self) -> KVCache: ...

    @property
    def max_tokens(self) -> int | None:
        """Of all windows of one launch; None = any number."""
        ...

    @property
    def depth(self) -> int:
        """How many rounds are worth having in flight; beside them there may be a few chunks of prompts.

        0: launch nothing now, and poll.
        """
        ...

    def num_windows(self, num_running: int, num_wanted: int) -> int:
        """How many windows of one sequence may be in flight, each standing on the one before; 1 = only one.

        Args:
            num_running: sequences that share what may be in flight.
            num_wanted: as many as pay, as far as is known.
        """
        ...

    @property
    def refusal(self) -> str | None:
        """Why no request should be taken now; None = they are welcome."""
        ...

    @property
    def pipe(self) -> PipeStats | None:
        """Its stages now; None = the model is in this process."""
        ...

    def launch(self, windows: Sequence[Window], feature_layers: Sequence[int] = ()) -> Ticket:
        """Send windows off together.

        Args:
            windows: of different rows. Either all have judges, or there is one, and it is a chunk of a prompt. All
                together have at most `max_tokens`.
            feature_layers: as for `BatchRunner.forward`.
        Raises: as `BatchRunner.forward`; then nothing is in flight.
        """
        ...

    def poll(self, timeout_s: float) -> Sequence[Landed | Lost]:
        """What has landed, in the order of the launches, or that all is lost. Waits at most so long for the first.

        To be called often, also while nothing is in flight: it keeps the connections.
        """
        ...

    def close(self) -> None:
        """Nothing more is launched."""
        ...
