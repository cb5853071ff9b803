"""Which target gets a request, and when another one does. Pure functions of what a gateway knows about its targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starspec.errors import CapacityError, PeerLost, PeerProtocolError, StarspecError

QUIET_S: Final = 2.0  # a target that has not answered for so long is in a long step: others go first
MAX_TARGETS: Final = 3  # that one answer is sent to, in turn: a request that ends its targets shall not end them all


class TargetSnapshot(NamedTuple):
    """One target at the moment when a target for a request is chosen."""

    max_model_len: int  # tokens of its context; 0 = it may get no request now
    silence_s: float  # since its last message
    load: int  # requests that it has
    last_assigned: int  # the number of the last request that it got: higher is later

    @property
    def is_quiet(self) -> bool:
        """Whether it has not answered for a while."""
        return self.silence_s > QUIET_S

    def takes(self, num_positions: int) -> bool:
        """Whether it may get a request that needs that many positions of the context."""
        return num_positions < self.max_model_len


def pick(targets: Sequence[TargetSnapshot], num_positions: int) -> int | None:
    """The least loaded target that takes the request; of equals, the one that was picked longest ago.

    A target in a long step comes after the others, whatever their loads.

    Args:
        num_positions: that the request can need (`num_positions` of `gateway/open_request.py`).
    Returns: its index in `targets`; None if no target has a context that is long enough.
    """
    fit = [index for index, each in enumerate(targets) if each.takes(num_positions)]
    return min(fit, key=lambda index: _rank(targets[index]), default=None)


def _rank(target: TargetSnapshot) -> tuple[bool, int, int]:
    return target.is_quiet, target.load, target.last_assigned


def may_move(error: StarspecError, num_targets: int, *, is_seen: bool) -> bool:
    """Whether an answer that has failed goes to another target.

    Args:
        error: why it has failed. A request that is at fault itself would fail anywhere.
        num_targets: that it was sent to so far.
        is_seen: whether its client has seen a part of it.
    """
    return isinstance(error, PeerLost | PeerProtocolError | CapacityError) and not is_seen and num_targets < MAX_TARGETS
