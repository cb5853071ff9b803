"""One sequence's tag at a hub: what was sent, which answer is owed, and the proposal that may still be verified."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from starspec.config import SampleMethod
from starspec.policy.patience import TagWait
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.wire.codec import fits_a_frame
from starspec.wire.messages import Close, Open, Proposal, TreeShape, Verdict
from starspec.wire.session import TagSession

MAX_UNSENT: Final = 16  # tokens, or those of two rounds: a hub prefills fewer about as fast as those of one round
MAX_CATCH_UPS: Final = 3  # in a row, before a step waits for the answer


class TokenSource(Protocol):
    """The committed tokens of one sequence, wherever the target keeps them."""

    @property
    def prompt_len(self) -> int: ...

    def __len__(self) -> int: ...

    def token_ids(self, start: int = 0) -> list[int]:
        """From position `start` on."""
        ...


@dataclass(slots=True, eq=False)
class HubTag(TagWait):
    """No I/O: whoever calls `ask` or `close` sends the message that they return, in order.

    Args:
        method: how the target verifies proposals.
        vocab_size: the hub refuses a message with other token ids. None = the target has no other ones.
    """

    session: TagSession
    tokens: TokenSource
    sampling: SamplingSpec
    method: SampleMethod = "coupled"
    vocab_size: int | None = None
    proposal: Proposal | None = None
    asked_s: float = 0.0  # when the last message was made
    open_at_s: float = 0.0  # no message is sent before this time; inf = never, since no message can hold the tokens
    num_to_prefill: int = 0  # tokens that the hub has to prefill for its last `Open`, or to catch up

    @property
    def num_wanted(self) -> int:
        """Draft steps that the last message asks for."""
        return self.session.wanted.num_steps

    @property
    def num_unsent(self) -> int:
        """Committed tokens that were not sent to the hub, if it holds the tag."""
        return len(self.tokens) - self.session.prefix_len

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing more is sent before the hub has answered."""
        return self.must_be_answered(may_be_of_use=self.num_unsent < self.num_wanted)

    @property
    def is_unsendable(self) -> bool:
        """Whether no message holds the tokens. Such a sequence is decoded plainly to its end."""
        return self.open_at_s == inf

    @property
    def should_catch_up(self) -> bool:
        """Whether to tell the hub now and ask for a draft a step later, because it has many tokens to prefill first.

        False after a few times in a row, and after a miss: then a step waits for the answer, so that delays count.
        """
        is_far_behind = self.num_unsent > max(MAX_UNSENT, 2 * (self.num_wanted + 1))
        may_catch_up = self.num_catch_ups < MAX_CATCH_UPS and not self.patience.has_missed
        return self.session.is_held and is_far_behind and may_catch_up

    @property
    def num_proposed(self) -> int:
        """Tokens of the last proposal; 0 if there is none."""
        return 0 if self.proposal is None else len(self.proposal.token_ids)

    def draft(self) -> DraftTree:
        """Returns: what the last proposal says after the committed tokens; empty if it does not begin with them."""
        if self.proposal is None:
            return EMPTY_TREE
        committed = self.tokens.token_ids(self.proposal.prefix_len)
        return self.proposal.tree.after(committed) if committed else self.proposal.tree

    def limited(self, budget: DraftBudget) -> DraftBudget:
        """No more draft steps than may come in time, after the last misses."""
        return budget.limited(num_steps=self.patience.max_steps(budget.num_steps))

    def ask(self, budget: DraftBudget, now: float, *, is_catch_up: bool = False) -> Open | Verdict | None:
        """Make the message that has all committed tokens, or those that were not sent, and that asks for a draft.

        Args:
            budget: of the draft; no nodes = no draft is wanted.
            is_catch_up: no step waits for the answer.
        Returns: the message; None, and `is_unsendable`, if no message can hold the tokens.
        """
        message = self._verdict(budget) if self.session.is_held else self._open(budget)
        if not self._can_be_sent(message):
            self.open_at_s = inf
            return None
        self.session.send(message)
        self.drop_proposal()
        self.asked_s = now
        if is_catch_up:
            self.begin_catch_up(now)
        else:
            self.begin_waiting(now, is_open=isinstance(message, Open), is_draft_wanted=budget.num_draft_tokens > 0)
        return message

    def drop_proposal(self) -> None:
        """The last proposal, or what may still come of it, is of no use: the committed tokens differ."""
        self.proposal, self.is_late, self.is_excused = None, False, False

    def close(self) -> Close | None:
        """The sequence has ended. Returns: the message; None if none was ever sent.

        It is sent to a lost hub as well, since that may still hold the tag.
        """
        if self.session.epoch == 0:
            return None
        return self.session.send(Close(tag=self.session.tag, epoch=self.session.next_epoch))

    def refuse(self, now: float) -> bool:
        """The hub's answer to the last message breaks the protocol: a miss if it is owed, since no other will come.

        Returns: whether it was owed.
        """
        if not (self.is_awaited or self.is_opening or self.is_late or self.is_catching_up):
            return False
        if self.is_opening:
            self.mark_absent()
        self.clear()
        self.patience.note_miss(now)
        return True

    def mark_absent(self) -> None:
        """The hub does not hold the tag any more, and no answer will come: the next message is an `Open`."""
        self.session.lose()
        self.clear()
        self.proposal = None

    def forget_hub(self) -> None:
        """The hub is lost: what it said, and how late it was, says nothing about the next one."""
        self.mark_absent()
        self.reset_patience()
        self.num_to_prefill = 0

    def _open(self, budget: DraftBudget) -> Open:
        return Open(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            token_ids=self.tokens.token_ids(),
            prompt_len=self.tokens.prompt_len,
            sampling=self.sampling,
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
            method=self.method,
        )

    def _verdict(self, budget: DraftBudget) -> Verdict:
        base_len = self.session.prefix_len
        return Verdict(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            base_len=base_len,
            token_ids=self.tokens.token_ids(base_len),
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
        )

    def _can_be_sent(self, message: Open | Verdict) -> bool:
        is_short = isinstance(message, Verdict) and len(message.token_ids) <= MAX_UNSENT
        if not is_short and not fits_a_frame(message):
            return False
        return self.vocab_size is None or all(0 <= each < self.vocab_size for each in message.token_ids)
