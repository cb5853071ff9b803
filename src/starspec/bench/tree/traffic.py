"""What a draft link carries for each accepted token."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.wire.codec import encode
from starspec.wire.messages import Features, HubToTarget, Proposal, TargetToHub, Verdict, Welcome
from starspec.wire.transports.base import TargetTransport


class CountedTransport:
    """A target's transport that adds up the bytes of verdicts, features and proposals.

    What a prompt costs once is left out: its `Open`, and the features of its positions, which go alone.
    """

    def __init__(self, transport: TargetTransport) -> None:
        self._transport = transport
        self.num_bytes = 0

    @property
    def is_connected(self) -> bool:
        return self._transport.is_connected

    @property
    def num_connects(self) -> int:
        return self._transport.num_connects

    @property
    def welcome(self) -> Welcome | None:
        return self._transport.welcome

    def send(self, messages: Sequence[TargetToHub]) -> None:
        told = {message.tag for message in messages if isinstance(message, Verdict)}
        for message in messages:
            if isinstance(message, Verdict | Features) and message.tag in told:
                self.num_bytes += len(encode(message))
        self._transport.send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        messages = self._transport.receive(timeout_s)
        self.num_bytes += sum(len(encode(message)) for message in messages if isinstance(message, Proposal))
        return messages

    def close(self) -> None:
        self._transport.close()
