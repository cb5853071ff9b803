"""Targets that serve the same model, and which of them gets a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from starspec.errors import CapacityError
from starspec.gateway.routed_target import RoutedTarget
from starspec.ids import TargetId
from starspec.log_limit import LogLimit
from starspec.policy.retry_after import NO_TARGET_S
from starspec.policy.routing import pick
from starspec.wire.messages import TargetStatus


@dataclass(slots=True)
class Assignments:
    """How many requests were sent to targets, and the log of what requests cause. All sets of a gateway share it."""

    log_limit: LogLimit
    num: int = 0


class TargetSet:
    """Some of a gateway's targets.

    Args:
        list_targets: gives them. A target may become one of a model when it announces the model.
    """

    def __init__(self, list_targets: Callable[[], Sequence[RoutedTarget]], assignments: Assignments) -> None:
        self._list = list_targets
        self._assignments = assignments

    @property
    def targets(self) -> Sequence[RoutedTarget]:
        return self._list()

    @property
    def log_limit(self) -> LogLimit:
        return self._assignments.log_limit

    @property
    def statuses(self) -> tuple[TargetStatus, ...]:
        """The statuses of the live targets, with the names that `names` gives them."""
        return tuple(
            msgspec.structs.replace(routed.status, target_id=TargetId(name))
            for routed, name in zip(self.targets, self.names, strict=True)
            if routed.is_live and routed.status is not None
        )

    @property
    def names(self) -> list[str]:
        """What people read of each target: the name that it told, with its endpoint if another one told the same.

        No two targets share a name: a told name that ends with an endpoint also gets the target's own endpoint.
        """
        num_of = Counter(each.name for each in self.targets)
        endpoints = tuple(each.endpoint for each in self.targets)
        return [_name_among(num_of[each.name], endpoints, each) for each in self.targets]

    @property
    def is_ready(self) -> bool:
        """Whether a target can answer now."""
        return any(routed.can_answer for routed in self.targets)

    @property
    def max_model_len(self) -> int | None:
        """The longest context of a live target; None if there is none."""
        return max((status.max_model_len for status in self.statuses), default=None)

    @property
    def has_grammars(self) -> bool:
        """Whether all live targets can hold answers to grammars. An old one would ignore them."""
        return all(status.has_grammars for status in self.statuses)

    @property
    def has_bad_words(self) -> bool:
        """Whether all live targets keep bad words out. An old one would ignore them."""
        return all(status.has_bad_words for status in self.statuses)

    @property
    def max_num_requests(self) -> int | None:
        """Requests that all targets together hold at most; None while one of them is not live or does not report it."""
        statuses = [routed.status for routed in self.targets if routed.is_live]
        known = [each.max_num_requests for each in statuses if each and each.max_num_requests is not None]
        return sum(known) if known and len(known) == len(self.targets) else None

    def pick(self, num_positions: int, but_not: RoutedTarget | None = None) -> RoutedTarget:
        """The target for a request, as `policy/routing.py` says. Effects: it counts as picked last.

        Args:
            num_positions: that the request can need.
            but_not: a target that shall not be picked.
        Raises: CapacityError if no target is ready and has a context that is long enough.
        """
        others = [each for each in self.targets if each is not but_not]
        index = pick([each.snapshot() for each in others], num_positions)
        if index is None:
            raise CapacityError("no target can take this request now", NO_TARGET_S)
        routed = others[index]
        self._assignments.num += 1
        routed.note_assigned(self._assignments.num)
        return routed


def _name_among(num_namesakes: int, endpoints: tuple[str, ...], routed: RoutedTarget) -> str:
    """Its name.

    Args:
        num_namesakes: targets of its name, with itself.
        endpoints: of all targets.
    """
    if routed.name is None:
        return routed.endpoint
    is_its_own = num_namesakes == 1 and not routed.name.endswith(endpoints)
    return str(routed.name) if is_its_own else f"{routed.name} at {routed.endpoint}"
