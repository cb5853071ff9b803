"""What a hub may send to one target: valid answers to what it was asked, and little else. No I/O and no clock.

A target reads its hub's frames on the thread that decodes, so each of them costs its clients time. An honest hub sends
one answer for each request, of a size that the request bounds. The inbox counts on both. A hub that sends more than
that, or nonsense again and again, gets its link broken, which ends the cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from starspec.errors import PeerProtocolError
from starspec.policy.peer_limits import NONSENSE_BURST, NONSENSE_PER_S, UNASKED_BURST, UNASKED_PER_S, Allowance
from starspec.speculation.acceptance import RULES
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.wire.codec import MAX_MESSAGES, Decoder, max_answer_bytes
from starspec.wire.messages import HubToTarget, Open, Ping, TargetToHub, Verdict


class HubInbox:
    """The frames of one link, from the handshake to its end.

    Args:
        vocab_size: token ids of proposals are below it.
    """

    def __init__(self, vocab_size: int) -> None:
        self._decoder: Decoder[HubToTarget] = Decoder(HubToTarget, vocab_size)
        self._answers = Allowance(UNASKED_PER_S, UNASKED_BURST)
        self._nonsense = Allowance(NONSENSE_PER_S, NONSENSE_BURST)
        self._is_drawn = False  # for any tag of this link, so far
        self._decoder.max_frame_bytes = max_answer_bytes(NO_DRAFT, is_drawn=False)
        self.breach = ""  # why the link has to end, for people; "" = it goes on

    def note_sent(self, message: TargetToHub) -> None:
        """The target has sent this message, which may have one answer."""
        match message:
            case Verdict():
                self._expect(message.budget)
            case Open(method=method):
                self._is_drawn |= RULES[method].needs_drawn
                self._expect(message.budget)
            case Ping():
                self._answers.owe(1.0)

    def decode(self, frames: Sequence[bytes], now: float) -> tuple[list[HubToTarget], list[PeerProtocolError]]:
        """Decode the valid frames of one multipart. The sizes are checked before anything is decoded.

        Returns: the messages, and one error for each bad frame.
        Effects: sets `breach` if the hub sends too much, or too much nonsense; then the rest is not decoded.
        """
        messages: list[HubToTarget] = []
        errors: list[PeerProtocolError] = []
        if not self._answers.take(len(frames), now) or len(frames) > MAX_MESSAGES:
            self.breach = "the hub sends more than it was asked for"
            return messages, errors
        for frame in frames:
            try:
                messages.append(self._decoder.decode(frame))
            except PeerProtocolError as error:
                errors.append(error)
                self.note_nonsense(error, now)
                if self.breach:
                    break
        return messages, errors

    def note_nonsense(self, error: PeerProtocolError, now: float) -> None:
        """The hub has sent something that the protocol forbids. Effects: sets `breach` if that happens too often."""
        if not self._nonsense.take(1.0, now):
            self.breach = f"the hub breaks the protocol again and again: {error}"

    def _expect(self, budget: DraftBudget) -> None:
        self._answers.owe(1.0)
        longest = max_answer_bytes(budget, is_drawn=self._is_drawn)
        self._decoder.max_frame_bytes = max(self._decoder.max_frame_bytes, longest)
