"""One request's tag at the hub: what the hub was told of it, and what of its last proposal may still be drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starspec.integrations.vllm.rows import KnownRequest
from starspec.policy.waiting import Waiting
from starspec.wire.messages import Proposal
from starspec.wire.session import TagSession

MAX_UNTOLD: Final = 16  # tokens, or those of two rounds: for fewer a hub takes about as long as for a round's
MAX_CATCH_UPS: Final = 3  # in a row, before it is waited for


@dataclass(slots=True, eq=False)
class HubTag(Waiting):
    """As this side has it."""

    request: KnownRequest
    session: TagSession
    proposal: Proposal | None = None
    num_told: int = 0  # tokens that the hub has to read for its last `Open`, or to catch up
    is_catching_up: bool = False  # it was told what it had missed, and has not answered; nobody waits for that
    num_catch_ups: int = 0  # in a row
    open_at_s: float = 0.0  # a full hub asked not to be told of it before

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing more is told before the hub has answered."""
        may_be_of_use = self._num_untold < self.session.wanted.num_steps
        return self.is_catching_up or self.has_to_be_answered(may_be_of_use=may_be_of_use)

    @property
    def is_told_first(self) -> bool:
        """Whether the hub is told now and asked a step later: nothing was asked of it for so long that it has to read.

        Not again and again, nor where it was late: it is to be waited for then, so that its delays count.
        """
        is_far_behind = self._num_untold > max(MAX_UNTOLD, 2 * (self.session.wanted.num_steps + 1))
        may_catch_up = self.num_catch_ups < MAX_CATCH_UPS and not self.patience.has_missed
        return self.session.is_held and is_far_behind and may_catch_up

    @property
    def _num_untold(self) -> int:
        return len(self.request) - self.session.prefix_len

    @property
    def has_tokens(self) -> bool:
        """Whether there is a proposal for which the hub drafted."""
        return self.proposal is not None and bool(self.proposal.token_ids)

    @property
    def num_layers(self) -> int:
        """That the hub drafted, as far as is known: it may have ended before it had all that were wanted."""
        return len(self.proposal.token_ids) if self.proposal and self.has_tokens else self.session.wanted.num_steps

    def draft(self) -> list[int]:
        """Returns: the rest of the last proposal behind the request's tokens; empty if they are not what it says."""
        if self.proposal is None or not self.proposal.tree.is_chain:  # vLLM verifies chains
            return []
        return list(self.proposal.tree.after(self.request.token_ids(self.proposal.prefix_len)).token_ids)

    def begin_catching_up(self, now: float) -> None:
        """A `Verdict` goes out with more than a round commits. It asks for a token, or the hub would not read it."""
        self.is_catching_up = True
        self.num_catch_ups += 1
        self.reading.begin_catching_up(now)

    def give_up(self) -> None:
        """The hub does not hold the tag, as far as anybody can know: the next message is an `Open`."""
        self.session.lose()
        self.is_catching_up = False
        self.settle()
