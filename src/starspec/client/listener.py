"""What a target does when its hub says something: the interface between a connection and its target."""

from __future__ import annotations

from typing import Protocol

from starspec.client.tag import HubTag
from starspec.wire.messages import Proposal, Reopen


class HubListener(Protocol):
    """What the target does when messages of its hub arrive, or when the hub is found."""

    def proposed(self, tag: HubTag, proposal: Proposal) -> None:
        """The hub has answered the tag's last message."""
        ...

    def declined(self, tag: HubTag, answer: Proposal) -> None:
        """The hub has no room for the tag, and does not hold it any more. `retry_after_s` says when to ask again."""
        ...

    def reopened(self, tag: HubTag, answer: Reopen) -> None:
        """The hub has dropped the tag, and asks to open it again."""
        ...

    def dropped(self, tag: HubTag | None) -> None:
        """A message of the hub was dropped.

        Args:
            tag: the tag that waited for this message, if the message was its answer and broke the protocol; else None.
        """
        ...

    def found(self) -> None:
        """The hub was found, for the first time or again. It holds no tag: it needs an `Open` for each."""
        ...
