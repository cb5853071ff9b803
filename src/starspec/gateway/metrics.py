"""The gateway's own metrics, and their registry, which also exports the statuses of targets and hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.audit import AuditLog
from starspec.gateway.http_errors import CLIENT_LEFT, HttpError
from starspec.observe.metrics import PREFIX, StatusCollector, StatusSnapshot

LATENCY_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
COUNTED_ROUTES: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/verify", "/v1/models", "/tokenize", "/detokenize"}
    | {"/health", "/health/ready", "/ping", "/metrics"}
    | {"/dashboard", "/dashboard/state", "/dashboard/events"}
)
UNAUDITED_ROUTES: Final = frozenset({"/health", "/health/ready", "/ping"})  # asked every second, until it is ready
REFUSED_AS: Final = "starspec.refused_as"  # in a request's scope: the status, if its connection answered it
NO_ROUTE: Final = "none"  # of a request whose head never came


def route_of(path: str) -> str:
    """A path as a metric's label: clients invent paths without end."""
    return path if path in COUNTED_ROUTES else "other"


class _BrokenAnswers(Collector):
    """A counter that something else keeps."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterator[Metric]:
        name, meaning = f"{PREFIX}gateway_broken_answers", "Answers of targets that were given up: they made no sense."
        yield CounterMetricFamily(name, meaning, value=self._count())


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own together with the status collector.

    Args:
        num_broken_answers: of all targets, so far.
    """

    def __init__(self, snapshot: Callable[[], StatusSnapshot], num_broken_answers: Callable[[], int]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(StatusCollector(snapshot))
        self.registry.register(_BrokenAnswers(num_broken_answers))
        self.requests = Counter(
            f"{PREFIX}gateway_requests", "HTTP requests answered.", ["route", "status"], registry=self.registry
        )
        self.in_flight = Gauge(
            f"{PREFIX}gateway_requests_in_flight", "HTTP requests in flight.", registry=self.registry
        )
        self.disconnects = Counter(
            f"{PREFIX}gateway_disconnects",
            "Clients that disconnected before their answer ended.",
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            f"{PREFIX}prompt_tokens", "Prompt tokens of requests that have produced a token.", registry=self.registry
        )
        self.time_to_first_token = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "Arrival at the gateway to the first token.",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.latency = Histogram(
            f"{PREFIX}e2e_request_latency_seconds",
            "Arrival at the gateway to the last token.",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def refuse(self, error: HttpError) -> None:
        """A connection answered with an error before there was a request."""
        self.requests.labels(NO_ROUTE, str(error.status)).inc()


class MetricsMiddleware:
    """ASGI middleware that counts requests by route and status, and audits those that are refused."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = "none"  # the client disconnected before a status was sent

        async def tracking_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        route = route_of(scope["path"])
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, tracking_send)
            except Exception:
                status = "500" if status == "none" else status  # an outer layer makes the response
                raise
            finally:
                status = str(scope.get(REFUSED_AS, status))
                self._metrics.requests.labels(route, status).inc()
                self._note_refusal(scope, route, status)

    def _note_refusal(self, scope: Scope, route: str, status: str) -> None:
        is_refusal = status.isdecimal() and int(status) >= 400 and int(status) != CLIENT_LEFT
        if is_refusal and route not in UNAUDITED_ROUTES:
            client = (scope.get("client") or ("",))[0]
            self._audit.note("request_refused", client=client, route=route, status=int(status))


class RequestTimer:
    """Times one generation request."""

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._started_s = clock()
        self._is_first = True

    def progress(self, num_prompt_tokens: int) -> None:
        """A token was generated. The first one counts the prompt and the time to first token."""
        if self._is_first:
            self._is_first = False
            self._metrics.prompt_tokens.inc(num_prompt_tokens)
            self._metrics.time_to_first_token.observe(self._clock() - self._started_s)

    def finish(self) -> None:
        """The last token was generated."""
        self._metrics.latency.observe(self._clock() - self._started_s)

    def disconnect(self) -> None:
        """The client disconnected."""
        self._metrics.disconnects.inc()
