"""The inference loop of StarSD 4.1, over any transport: handle arrivals, run one draft step, send what is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from starspec.hub.drafter import DraftFailed
from starspec.hub.hub import DraftHub, Reply
from starspec.ids import LinkId
from starspec.log_limit import LogLimit
from starspec.wire.messages import Close, Fault, Features, HubStatus, HubToTarget, Open, Verdict
from starspec.wire.transports.base import Arrival, HubTransport, Joined, Left

log = structlog.get_logger()


class HubLoop:
    """Drives a hub, in one thread. The transport may have other threads.

    Args:
        clock: the same clock that hub and transport use.
    """

    def __init__(self, hub: DraftHub, transport: HubTransport, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._transport = transport
        self._clock = clock
        self._log_limit = LogLimit(clock)  # a target can cause every line here at will
        self._early: list[Arrival] = []  # arrived while a draft step ran ahead, and not handled yet

    def run_once(self, idle_wait_s: float = 0.0) -> bool:
        """Handle what has arrived, then run one step of the hub.

        An exception costs the tags that it hit, and nothing else. Only here and in `_answer_early` are they caught.

        Args:
            idle_wait_s: longest wait for arrivals; there is none while the hub has work.
        Returns: whether there was anything to do.
        """
        is_busy = self._hub.has_work or bool(self._early)
        arrivals, self._early = self._early + self._transport.receive(0.0 if is_busy else idle_wait_s), []
        for arrival in arrivals:
            try:
                self._handle(arrival)
            except Exception:
                self._log_failure("a message failed; its tag is dropped, and its target is asked to open it again")
                self._fail_tag(arrival)
        had_work = self._hub.has_work
        if had_work:
            try:
                replies = self._hub.step(self._clock(), self._receive_ahead)
            except DraftFailed as error:
                self._log_failure("drafts of some tags failed; they are dropped, and their targets open them again")
                self._hub.abandon_step(self._clock(), error.sequences)
            except Exception:
                self._log_failure(
                    "a draft step failed; its tags are dropped, and their targets are asked to open them again"
                )
                self._hub.abandon_step(self._clock())
            else:
                self._deliver(replies)
        return bool(arrivals) or had_work

    def status(self) -> HubStatus:
        """The hub's statistics and the transport's, up to now, as a copy."""
        status, of_link = self._hub.status(self._clock()), self._transport.stats
        status.stats.num_frames_rejected = of_link.num_frames_rejected
        status.stats.num_leases_expired = of_link.num_leases_expired
        status.stats.num_refused, status.stats.num_dropped = of_link.num_refused, of_link.num_dropped
        return status

    def _receive_ahead(self) -> bool:
        """While a draft step runs ahead: receive messages, and answer verdicts whose proposals are known already.

        Returns: whether the draft step has become useless.
        """
        arrivals = self._transport.receive_ahead()
        self._early += arrivals
        self._deliver([reply for arrival in arrivals for reply in self._answer_early(arrival)])
        messages = [(each.link_id, each.message) for each in self._early]
        return bool(arrivals) and self._hub.is_obsolete(
            (name, message) for name, message in messages if not isinstance(message, Joined | Left)
        )

    def _answer_early(self, arrival: Arrival) -> Sequence[Reply]:
        """The answer to a verdict, if it is known. A failure here must not end the draft step: others are in it."""
        if not isinstance(arrival.message, Verdict):
            return []
        try:
            return self._hub.answer_early(arrival.link_id, arrival.message, arrival.arrived_at, self._clock())
        except Exception:
            self._log_failure("a verdict could not be answered early; it is handled after the draft step")
            return []

    def _handle(self, arrival: Arrival) -> None:
        match arrival.message:
            case Joined(hello=hello):
                self._hub.join(arrival.link_id, arrival.target_id, hello.vocab_size)
            case Left():
                self._hub.leave(arrival.link_id, arrival.arrived_at)
            case Fault(reason=reason):
                event = "target dropped a message of ours"
                self._log_limit.log(log.warning, event, target=arrival.target_id, reason=reason)
            case message:
                self._hub.handle(arrival.link_id, message, arrival.arrived_at)

    def _log_failure(self, sentence: str) -> None:
        """Log the exception that is being handled."""
        self._log_limit.log(log.exception, sentence)

    def _deliver(self, replies: Sequence[Reply]) -> None:
        """Send all targets their replies in one go."""
        by_link: dict[LinkId, list[HubToTarget]] = {}
        for link_id, message in replies:
            by_link.setdefault(link_id, []).append(message)
        if by_link:
            self._transport.send(by_link)

    def _fail_tag(self, arrival: Arrival) -> None:
        if isinstance(arrival.message, Open | Features | Verdict | Close):
            self._hub.fail_tag(arrival.link_id, arrival.message.tag, self._clock())
