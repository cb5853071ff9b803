"""A target's end of the draft link over ZeroMQ.

All work happens inside `receive` and `send`, on the engine's thread. Connecting and reconnecting never block a round.
A hub that was killed or stopped is noticed by the connection's own events (a reset, or silence for
HEARTBEAT_TIMEOUT_MS), not by waiting for an answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import zmq

from starspec.errors import LinkError, PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.policy.peer_limits import PUBLIC_BURST, PUBLIC_PER_S, Allowance
from starspec.policy.reconnecting import (
    ATTACH_S,
    REFUSED_RETRY_S,
    RETRY_S,
    UNHEARD_S,
    Reconnecting,
    after_refusal_s,
    keep_alive_s,
)
from starspec.wire.codec import Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.link import FAULT_INTERVAL_S, LinkProtocol, LinkState
from starspec.wire.messages import (
    Fault,
    Goodbye,
    Hello,
    HubPublicReply,
    HubStatus,
    HubToTarget,
    Pong,
    Refused,
    TargetToHub,
    Welcome,
)
from starspec.wire.transports.hub_inbox import HubInbox
from starspec.wire.transports.hub_outbox import ASK, PROBE, HubOutbox
from starspec.wire.transports.sockets import GIVEN_UP_S, GOODBYE_MS, REFUSED_KEY_RETRY_S, Socket, host_of
from starspec.wire.transports.target_sockets import SocketFactory, TargetSocket, why_handshake_failed

MAX_PUBLIC_ANSWER_BYTES: Final = 16 * 1024  # of the hub's public port; a Welcome names the draft
MAX_FEATURE_WINDOW: Final = 4096  # positions, kept for every request

ENDLESS: Final = "the hub sends a message that never ends"

log = structlog.get_logger()


class ZmqTarget:
    """Implements TargetTransport. Nothing is sent before the first `receive`.

    Args:
        endpoint: the hub's public port, tcp://host:port.
        hello: the description of this target.
        keys: of role "target".
        is_insecure: allow a host that is not loopback without keys.
        clock: seconds, monotonic.
        sockets: opens the connections; None = real ones.
        why_unsuited: what the hub that sends this Welcome cannot do for this target, for people; "" = nothing.
    Raises: ConfigError if the endpoint is malformed or keys are missing.
    """

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        keys: Keys | None = None,
        is_insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sockets: SocketFactory | None = None,
        why_unsuited: Callable[[Welcome], str] = lambda _: "",
    ) -> None:
        self._host = host_of(endpoint, "the hub")
        require_keys(self._host, keys, is_insecure, "the target would connect to the hub at")
        self._endpoint = endpoint
        self._hello = hello
        self._why_unsuited = why_unsuited
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._socket_factory = SocketFactory(keys) if sockets is None else sockets
        self._public_decoder: Decoder[Welcome | Refused | HubStatus | Fault] = Decoder(
            HubPublicReply, max_frame_bytes=MAX_PUBLIC_ANSWER_BYTES
        )
        self._public_answers = Allowance(PUBLIC_PER_S, PUBLIC_BURST)
        self._inbox = HubInbox(hello.vocab_size)
        self._outbox = HubOutbox(self._inbox.note_sent)
        self._reconnecting = Reconnecting()
        self._link = LinkProtocol()
        self._public: TargetSocket | None = None
        self._own: TargetSocket | None = None
        self._terms: Welcome | None = None
        self._send_at = 0.0  # when the next Hello or keep-alive is due
        self._give_up_at = math.inf
        self._renew_at = math.inf  # when the public connection is made anew, unless an answer comes
        self._unheard_at = math.inf  # when people are told that nothing answers over the public connection
        self._fault_at = -math.inf  # when the last Fault was sent to the hub
        self._is_closed = False
        self.problem = f"no hub has answered yet at {endpoint}"  # why this target is not connected, as text
        self._logged_problem = ""
        self.num_connects = 0
        self.num_frames_rejected = 0  # frames of the hub that broke the protocol
        self.num_dropped = 0  # messages that could not be sent

    @property
    def is_connected(self) -> bool:
        return self._link.state is LinkState.CONNECTED

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for, while messages of the hub are expected."""
        return self._own.sockets if self._own is not None else ()

    @property
    def welcome(self) -> Welcome | None:
        return self._terms if self.is_connected else None

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        """As TargetTransport."""
        deadline_s = self._clock() + timeout_s
        while True:
            now = self._clock()
            messages = self._read()
            self._drive(now)
            if self.is_connected:
                self._push()
            if messages or not self.is_connected or now >= deadline_s:
                return messages
            assert self._own is not None
            self._own.wait(min(deadline_s, self._send_at) - now)

    def send(self, messages: Sequence[TargetToHub]) -> None:
        """As TargetTransport. A message that is too large for a frame is dropped and counted."""
        if not self.is_connected:
            self.num_dropped += len(messages)
            return
        frames: list[bytes] = []
        for message in messages:
            try:
                frame = encode(message)
                self._link.send(message)
            except LinkError:
                self.num_dropped += 1
            else:
                frames.append(frame)
                self._inbox.note_sent(message)
        self._outbox.put(frames)
        self._push()

    def _push(self) -> None:
        """Send what may be sent now. Effects: breaks the link to a hub that does not read."""
        assert self._own is not None
        has_left = all(self._own.send(multipart) for multipart in self._outbox.take())
        if not has_left or self._outbox.has_too_much:
            self._lose("the hub does not read", self._clock())

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self.is_connected:
            self.send([Goodbye("the target is closing")])
        self._close_sockets(GOODBYE_MS)
        self._link.lose()
        self._socket_factory.close()

    # ---------------------------------------------------------------- the connection

    def _drive(self, now: float) -> None:
        """Do the next step of connecting, or of keeping the connection."""
        match self._link.state:
            case LinkState.DISCONNECTED | LinkState.GREETING if not self._is_closed:
                self._greet(now)
            case LinkState.ATTACHING:
                self._attach(now)
            case LinkState.CONNECTED:
                self._keep_alive(now)

    def _greet(self, now: float) -> None:
        """Send Hello to the public port until it is answered."""
        if self._public is None:
            if now < self._send_at:
                return
            self._public = self._socket_factory.connect_public(self._endpoint)
            self._unheard_at = self._renew_at = math.inf
        if self._public.has_cut:
            self._break(ENDLESS, now)
            return
        if self._has_failed(self._public, now):
            return
        for frames in self._public.read():
            if not self._public_answers.take(len(frames), now):
                self._break("the hub floods its public port", now)
                return
            self._take_answer(frames, now)
            if self._link.state is LinkState.ATTACHING or self._public is None:
                return
        if not self.num_connects:
            self._note_start(now)
        if now < self._send_at:
            return
        if self._public.send([encode(self._hello)]):  # fails until the connection is made
            self._link.send(self._hello)
            self._public_answers.owe(1.0)
            self._send_at = now + RETRY_S
            self._unheard_at = min(self._unheard_at, now + UNHEARD_S)
            if now >= self._unheard_at:
                self._complain(f"{self._endpoint} is there and does not answer: does the hub hang, or is it not a hub?")

    def _has_failed(self, public: TargetSocket, now: float) -> bool:
        """Note what has failed. Returns: whether the connection is to be made anew: ZeroMQ does not try all again."""
        for event, value in list(public.events()):
            self._renew_at = now + GIVEN_UP_S
            if event == zmq.EVENT_DISCONNECTED:
                continue
            problem = why_handshake_failed(event, value, self._endpoint)
            is_refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH  # the key may be added
            if is_refused or self._socket_factory.has_new_key():
                self._drop(problem, now + (REFUSED_KEY_RETRY_S if is_refused else 0.0))
                return True
            self._complain(problem)
        if now >= self._renew_at:
            self._close_sockets(0)
        return self._public is None

    def _note_start(self, now: float) -> None:
        """The first hub has not answered yet."""
        news = self._reconnecting.note_unanswered(now, has_warned=bool(self._logged_problem))
        if news == "warning":
            self._complain(self.problem)
        elif news == "hint":
            log.info("no hub yet: decoding goes on without it", hub=self._endpoint)

    def _take_answer(self, frames: list[bytes], now: float) -> None:
        try:
            [answer] = self._public_decoder.decode_all(frames)
            self._link.receive(answer)
        except (PeerProtocolError, ValueError):
            self.num_frames_rejected += 1
            return
        match answer:
            case Welcome() if problem := _why_unmet(self._hello, answer):
                self._drop(problem, now + REFUSED_RETRY_S)
            case Welcome():
                self._terms, self._inbox = answer, HubInbox(self._hello.vocab_size)
                self._outbox = HubOutbox(self._inbox.note_sent)
                self._give_up_at, self._send_at = now + ATTACH_S, now
                self._connect_own(answer, now)
            case Refused():
                self._drop(f"the hub refused: {answer.reason}", now + after_refusal_s(answer.retry_after_s))
            case Fault():
                self._drop(f"the hub did not understand: {answer.reason}", now + REFUSED_RETRY_S)

    def _connect_own(self, terms: Welcome, now: float) -> None:
        try:
            self._own = self._socket_factory.connect_own(f"tcp://{self._host}:{terms.port}", terms.link_id.encode())
        except zmq.ZMQError as error:  # an address from the hub must not stop this target
            self._lose(f"the hub's port {terms.port} for this target cannot be reached: {error}", now, REFUSED_RETRY_S)

    def _attach(self, now: float) -> None:
        """Ping this target's own port until the hub answers. `_read` sees the answer."""
        assert self._own is not None
        if self._own.has_cut:
            self._break(ENDLESS, now)
        elif any(True for _ in self._own.events()) or now > self._give_up_at:
            port = self._terms.port if self._terms is not None else 0
            self._lose(
                f"the hub's port {port} for this target cannot be reached: does a firewall close it?", now, RETRY_S
            )
        elif now >= self._send_at:
            self._send_at = now + RETRY_S
            self._link.send(ASK)
            self._outbox.ask()
            self._push()

    def _keep_alive(self, now: float) -> None:
        """Notice that the hub is gone; renew the lease."""
        assert self._own is not None
        assert self._terms is not None
        if self._own.has_cut:
            self._break(ENDLESS, now)
        elif any(True for _ in self._own.events()):
            self._lose("the hub is gone", now)
        elif now >= self._send_at:
            self._send_at = now + keep_alive_s(self._terms.lease_s)
            self._outbox.ask()
            self._push()

    def _read(self) -> list[HubToTarget]:
        messages: list[HubToTarget] = []
        for frames in self._own.read() if self._own is not None else ():
            now = self._clock()
            valid, errors = self._inbox.decode(frames, now)
            for message in valid:
                try:
                    self._take(self._link.receive(message), messages)
                except PeerProtocolError as error:
                    self._inbox.note_nonsense(error, now)
                    errors.append(error)
                if self._own is None:
                    return messages
            for each in errors:
                self._reject(each, now)
            if self._inbox.breach:
                self._break(self._inbox.breach, now)
            if self._own is None:
                return messages
        return messages

    def _reject(self, error: PeerProtocolError, now: float) -> None:
        """Count a bad frame of the hub, and send it a Fault now and then."""
        self.num_frames_rejected += 1
        if self.is_connected and now - self._fault_at >= FAULT_INTERVAL_S:
            self._fault_at = now
            self.send([Fault(str(error))])

    def _take(self, message: HubToTarget, messages: list[HubToTarget]) -> None:
        match message:
            case Pong(sequence=0):
                self._outbox.note_answered()
                self._finish_attaching()
            case Pong(sequence=PROBE.sequence):
                pass
            case Goodbye(reason=reason):
                self._lose(reason or "the hub said goodbye", self._clock(), RETRY_S)
            case _:
                messages.append(message)

    def _finish_attaching(self) -> None:
        """The hub has answered on this target's own port: close the connection to the public one."""
        if self._public is not None:
            self._public.close(0)
            self._public = None
            self.problem = self._logged_problem = ""
            self.num_connects += 1
            self._reconnecting.note_connected(self._clock())
            draft = self._terms.draft_name if self._terms else None
            self._log_limit.log(log.info, "hub found", hub=self._endpoint, draft=draft)
            if self._terms and (problem := self._why_unsuited(self._terms)):
                event = "the hub cannot do all that this target is told to ask for; it drafts as it can"
                self._log_limit.log(log.warning, event, hub=self._endpoint, problem=problem)

    def _lose(self, problem: str, now: float, wait_s: float = 0.0) -> None:
        """Drop the link and start again with Hello, `wait_s` from now; later if links fail again and again."""
        self._drop(problem, now + self._reconnecting.after_loss_s(now, wait_s))

    def _break(self, problem: str, now: float) -> None:
        """The hub broke the rules: as `_lose`, with longer pauses."""
        self._drop(problem, now + self._reconnecting.after_breach_s(now))

    def _drop(self, problem: str, again_at: float) -> None:
        self._close_sockets(0)
        self._link.lose()
        self._terms, self._outbox = None, HubOutbox(self._inbox.note_sent)  # what waits for a hub that is gone is freed
        self._complain(problem)
        self._send_at = again_at

    def _complain(self, problem: str) -> None:
        """Log a problem once, and remember it as the reason why there is no hub."""
        if problem != self._logged_problem:
            event = "no hub: decoding goes on without it"
            self._log_limit.log(log.warning, event, hub=self._endpoint, problem=problem)
        self.problem = self._logged_problem = problem

    def _close_sockets(self, linger_ms: int) -> None:
        for each in (self._public, self._own):
            if each is not None:
                each.close(linger_ms)
        self._public = self._own = None


def _why_unmet(hello: Hello, terms: Welcome) -> str:
    """Why this target cannot send the features that the hub asks for; "" if it can."""
    last = hello.num_layers if hello.hidden_size else -1
    if any(layer > last for layer in terms.feature_layers):
        here = "has none to send" if last < 0 else f"has 0 to {last}"
        return f"the hub's draft needs hidden states {list(terms.feature_layers)}, and this target {here}"
    if terms.feature_window > MAX_FEATURE_WINDOW:
        return f"the hub wants features of {terms.feature_window} positions, more than {MAX_FEATURE_WINDOW}"
    return ""
