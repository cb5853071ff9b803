"""The models that a gateway serves, and what its routes use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from starspec.config import GatewayConfig
from starspec.errors import RequestError
from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.drain import Drain
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.router import Router
from starspec.gateway.served_model import ModelIdentity
from starspec.gateway.target_set import TargetSet
from starspec.gateway.translate import Translator
from starspec.observe.metrics import StatusSnapshot
from starspec.quoting import quoted, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One model that is served."""

    identity: ModelIdentity
    targets: TargetSet
    codec: PromptCodec
    translator: Translator

    def card(self) -> dict[str, Any]:
        return {
            "id": self.identity.model,
            "object": "model",
            "created": self.identity.created_s,
            "owned_by": "starspec",
            "max_model_len": self.targets.max_model_len,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes use."""

    config: GatewayConfig
    served: Mapping[str, Served]  # by its name in the API; the first one answers requests that name none
    router: Router
    drain: Drain
    feed: StarFeed
    clock: Callable[[], float] = time.monotonic
    hub: HubStatusPoller | None = None

    def of(self, asked: str | None) -> Served:
        """The model that a request asks for. Raises: RequestError with the names there are."""
        found = next(iter(self.served.values())) if asked is None else self.served.get(asked)
        if found is None:
            near = get_close_matches(shortened(asked or ""), self.served, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            names = ", ".join(map(repr, self.served))
            sentence = f"the model {quoted(asked or '')} does not exist; this server has {names}{hint}"
            raise RequestError(sentence, "model", 404)
        return found

    def snapshot(self) -> StatusSnapshot:
        return StatusSnapshot(self.router.statuses, self.hub.status if self.hub else None)

    def num_waiting(self) -> int:
        """Requests in the queues of the targets."""
        return sum(each.num_waiting for each in self.router.targets)

    def num_rows(self) -> int:
        """Cache rows of the targets."""
        return sum(status.num_rows for status in self.router.statuses)
