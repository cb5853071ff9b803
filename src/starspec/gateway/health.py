"""What load balancers and operators ask: can this gateway answer, and how are its targets and its hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from starspec.errors import CapacityError
from starspec.gateway.http_errors import HttpError
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.recent import Recent
from starspec.gateway.routed_target import RoutedTarget
from starspec.gateway.router import Router
from starspec.gateway.target_set import TargetSet
from starspec.policy.retry_after import NO_TARGET_S

NOT_READY: Final = HttpError(503, "no target can answer", retry_after_s=NO_TARGET_S)


def check_ready(targets: TargetSet) -> None:
    """Raises: CapacityError while none of the targets can answer."""
    if not targets.is_ready:
        raise CapacityError(NOT_READY.message, NO_TARGET_S)


class HealthRoutes:
    """One method for each route. None of them waits for a target: each tells what is known now."""

    def __init__(
        self,
        router: Router,
        models: Mapping[str, TargetSet],
        hub: HubStatusPoller | None,
        clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._models = models
        self._hub = hub
        self._recent = Recent(self._body, clock)

    async def health(self) -> Response:
        """The state of everything, up to RECENT_S ago; 503 while no target can answer."""
        body = self._recent.get(of=self._num_ready())
        if self._router.is_ready:
            return Response(body, media_type="application/json")
        return Response(body, NOT_READY.status, NOT_READY.headers(), media_type="application/json")

    async def ready(self) -> Response:
        """Whether a request would find a target."""
        return JSONResponse({"status": "ready"}) if self._router.is_ready else NOT_READY.response()

    async def ping(self) -> Response:
        """As `ready`, without a body, as SageMaker asks."""
        return Response(status_code=200 if self._router.is_ready else NOT_READY.status)

    def _num_ready(self) -> int:
        return sum(routed.can_answer for routed in self._router.targets)

    def _body(self) -> bytes:
        error = {} if self._router.is_ready else json.loads(NOT_READY.body())
        return bytes(JSONResponse(error | self._report()).body)

    def _report(self) -> dict[str, Any]:
        targets = [_target_report(routed) for routed in self._router.targets]
        hub = None if self._hub is None else _state(self._hub.state, self._hub.state_s)
        states = [each["state"] for each in targets] + [each["hub"]["state"] for each in targets if each["hub"]]
        models = {name: sum(routed.can_answer for routed in each.targets) for name, each in self._models.items()}
        is_whole = set(states) <= {"ready", "connected"} and (hub is None or hub["state"] == "connected")
        is_whole &= all(models.values())
        num_ready = self._num_ready()
        status = "unavailable" if not num_ready else "ok" if is_whole else "degraded"
        return {"status": status, "num_targets": num_ready, "models": models, "targets": targets, "hub": hub}


def _target_report(routed: RoutedTarget) -> dict[str, Any]:
    """Without its address: /health needs no key."""
    status = routed.status
    return {
        "name": routed.name,
        "model": routed.model,
        **_state(routed.state, routed.state_s),
        "hub": None if status is None or status.hub_state is None else _state(status.hub_state, status.hub_state_s),
    }


def _state(state: str | None, seconds: float) -> dict[str, Any]:
    return {"state": state, "for_s": round(seconds, 1)}
