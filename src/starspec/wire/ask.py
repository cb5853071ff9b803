"""Asking a hub for its status, from an asyncio loop."""

from __future__ import annotations

import asyncio
from typing import Final

import zmq
import zmq.asyncio

from starspec.errors import PeerLost, PeerProtocolError
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import PROTOCOL_VERSION, Ask, HubPublicReply, HubStatus, Refused
from starspec.wire.transports.sockets import connect, host_of, set_limits

TIMEOUT_S: Final = 1.0


class HubAsker:
    """Asks one hub, with a connection of its own for each question.

    Args:
        endpoint: the hub's public port, tcp://host:port.
        keys: of role "gateway".
        is_insecure: allow a host that is not loopback without keys.
    Raises: ConfigError if the endpoint is malformed or keys are missing.
    """

    def __init__(
        self, endpoint: str, keys: Keys | None = None, is_insecure: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        require_keys(host_of(endpoint, "the hub"), keys, is_insecure, "the gateway would speak to the hub at")
        self._endpoint = endpoint
        self._keys = keys
        self._hub_key = b"" if keys is None else keys.public_key_of("hub")
        self._timeout_s = timeout_s
        self._context = zmq.asyncio.Context()
        self._decoder: Decoder[HubStatus] = Decoder(HubPublicReply)

    async def __call__(self) -> HubStatus:
        """The hub's status now.

        Raises: PeerLost if it does not answer in time, PeerProtocolError if it answers something else.
        """
        socket = set_limits(self._context.socket(zmq.DEALER), MAX_FRAME_BYTES)
        try:
            if self._keys is not None:
                self._keys.secure_client(socket, self._hub_key)
            connect(socket, self._endpoint)
            async with asyncio.timeout(self._timeout_s):
                await socket.send(encode(Ask(PROTOCOL_VERSION)))
                answer = self._decoder.decode(await socket.recv())
        except TimeoutError:
            raise PeerLost(f"the hub at {self._endpoint} did not answer within {self._timeout_s:g} s") from None
        finally:
            socket.close(linger=0)
        if isinstance(answer, Refused):
            raise PeerProtocolError(f"the hub at {self._endpoint} refuses to answer: {answer.reason}")
        if not isinstance(answer, HubStatus):
            raise PeerProtocolError(f"the hub at {self._endpoint} answered a question with {type(answer).__name__}")
        return answer

    def close(self) -> None:
        """Break off the questions in flight and free the context: it would wait for their sockets. Idempotent."""
        self._context.destroy(linger=0)
