"""One sequence's tag at a hub: what was sent, which answer is owed, and the proposal that may still be verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from starspec.config import SampleMethod
from starspec.policy.patience import MAX_UNSENT, TagWait
from starspec.policy.reopening import Reopening
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.wire.codec import fits_a_frame
from starspec.wire.messages import Close, Open, Proposal, Reopen, TreeShape, Verdict
from starspec.wire.session import TagSession


class TokenSource(Protocol):
    """The tokens of one sequence that the hub drafts on behind, wherever the target keeps them."""

    @property
    def prompt_len(self) -> int: ...

    def __len__(self) -> int: ...

    def token_ids(self, start: int = 0) -> list[int]:
        """From position `start` on."""
        ...


@dataclass(slots=True, eq=False)
class HubTag(TagWait):
    """A tag at the target's end. No I/O: the caller sends the messages that `ask` and `close` return, in order.

    Only the tag changes its state. Others read it, and say by the methods what has happened.

    Args:
        method: how the target verifies proposals.
        vocab_size: the hub refuses a message with a token id from this one on, so no such message is made. None = the
            target has no such ids.
    """

    session: TagSession
    tokens: TokenSource
    sampling: SamplingSpec
    method: SampleMethod = "coupled"
    vocab_size: int | None = None
    proposal: Proposal | None = None
    asked_s: float = 0.0  # when the last message was made
    num_to_prefill: int = 0  # tokens that the hub has to prefill for its last `Open`, or to catch up
    num_behind: int = 0  # tokens of the last `Verdict` beyond those that the round before could commit
    reopening: Reopening = field(default_factory=Reopening)
    is_misled: bool = False  # the hub was told tokens that are not the target's: the next message is an `Open`

    @property
    def num_wanted(self) -> int:
        """Draft steps that the last message asks for."""
        return self.session.wanted.num_steps

    @property
    def num_unsent(self) -> int:
        """Tokens that were not sent to the hub, if it holds the tag."""
        num = len(self.tokens) - self.session.prefix_len
        return max(1, num) if self.is_misled else num

    @property
    def is_unanswered(self) -> bool:
        """Whether to send nothing more until the hub has answered."""
        return self.must_be_answered(may_be_of_use=self.num_unsent < self.num_wanted)

    @property
    def should_catch_up(self) -> bool:
        """Whether to send the tokens now and to wait for a draft only a step later, as the hub has many to prefill."""
        return self.session.is_held and self.may_catch_up(self.num_unsent, self.num_wanted)

    @property
    def num_proposed(self) -> int:
        """Tokens of the last proposal; 0 if there is none."""
        return 0 if self.proposal is None else len(self.proposal.token_ids)

    @property
    def num_left(self) -> int:
        """Draft steps that the last message asked for, without those that were committed since."""
        return max(0, self.num_wanted - self.num_unsent)

    def draft(self) -> DraftTree:
        """The part of the last proposal that is still to be verified.

        Returns: the tree after the tokens that were committed since; empty if the proposal does not begin with them.
        """
        if self.proposal is None or self.is_misled:
            return EMPTY_TREE
        committed = self.tokens.token_ids(self.proposal.prefix_len)
        return self.proposal.tree.after(committed) if committed else self.proposal.tree

    def limited(self, budget: DraftBudget) -> DraftBudget:
        """The budget with fewer draft steps after misses, so that the proposal comes in time."""
        return budget.limited(num_steps=self.patience.max_steps(budget.num_steps))

    def ask(self, budget: DraftBudget, now: float, *, is_catch_up: bool = False) -> Open | Verdict | None:
        """Make the message that asks for a draft: an `Open` with all tokens, or a `Verdict` with the unsent ones.

        A hub that was misled gets an `Open`, too. It keeps what it has of the tokens, so the next step waits for it as
        for the answer to a `Verdict`.

        Args:
            budget: of the draft; no nodes = no draft is wanted.
            is_catch_up: no step waits for the answer.
        Returns: the message; None if no message can hold the tokens. The sequence is then decoded plainly to its end.
        """
        most = 1 + self.num_wanted
        is_told_more = self.session.is_held and not self.is_misled
        is_open = not self.session.is_held
        message = self._verdict(budget) if is_told_more else self._open(budget)
        if not self._can_be_sent(message):
            self.reopening.forbid()
            return None
        self.session.send(message)
        self.is_misled = False
        self.num_behind = max(0, len(message.token_ids) - most) if isinstance(message, Verdict) else 0
        self.drop_proposal()
        self.asked_s = now
        if is_catch_up:
            self.begin_catch_up(now)
        else:
            self.begin_waiting(now, is_open=is_open, is_draft_wanted=budget.num_draft_tokens > 0)
        return message

    def retract(self, num_true: int) -> None:
        """Of the tokens that the hub was told, only the first `num_true` are the target's, if it was told more."""
        if self.session.is_held and self.session.prefix_len > num_true:
            self.is_misled = True
            self.clear()
            self.drop_proposal()

    def end_step(self, now: float) -> bool:
        """A step has committed tokens. Returns: whether the hub may be sent a message about them.

        Effects: the tag is absent if its message, or the answer, seems to be lost. A pause without the tag is one step
        shorter.
        """
        self.give_up_if_overdue(now)
        if self.session.is_held:
            return not self.is_unanswered
        return not self.end_paused_step(now)

    def give_up_if_overdue(self, now: float) -> bool:
        """Mark the tag absent if its last message, or the answer to it, counts as lost. Returns: whether it does."""
        is_overdue = self.is_unanswered and self.prefill_wait.is_overdue(now)
        if is_overdue:
            self.mark_absent()
        return is_overdue

    def end_paused_step(self, now: float) -> bool:
        """A step of the target begins or ends. If the tag is in a pause, the pause is one step shorter.

        Returns: whether the step is in a pause.
        """
        if not self.patience.is_pausing:
            return False
        self.patience.note_paused_step(now)
        return True

    def take_if_sound(self, message: Proposal | Reopen, now: float) -> bool:
        """Record a message of the hub. Returns: False if it is stale or breaks the protocol; it has no effect then."""
        if not self.session.take_if_sound(message):
            return False
        if isinstance(message, Reopen):
            self.reopening.note_reopen(now)
        else:
            self.reopening.note_proposal(now)
        return True

    def note_proposal(self, proposal: Proposal, now: float) -> None:
        """The hub has answered the last message with a proposal. It is kept until `drop_proposal`."""
        self.note_answer(now, is_hopeless=proposal.is_hopeless)
        self.proposal = proposal

    def note_declined(self, now: float, retry_after_s: float) -> None:
        """The hub has no room for this tag, which it does not hold. Effects: nothing is sent for `retry_after_s`."""
        self.note_answer(now, is_hopeless=False)
        self.session.lose()
        self.reopening.note_declined(now, retry_after_s)

    def note_useful(self) -> None:
        """The last proposal is of use, late or not."""
        self.patience.note_in_time()

    def note_use(self) -> None:
        """The last proposal is verified in this step, so it came in time, and nothing of it is left."""
        self.proposal = None
        self.patience.note_in_time()

    def note_prefill(self, num_tokens: int) -> None:
        """The hub has to prefill so many tokens of the last message."""
        self.num_to_prefill = num_tokens

    def end_prefill(self) -> int:
        """The hub has answered, or refused, the message with the tokens to prefill. Returns: how many there were."""
        num_tokens, self.num_to_prefill = self.num_to_prefill, 0
        return num_tokens

    def drop_proposal(self) -> None:
        """Forget the last proposal, even if it has not come yet: it is not for the tokens that are committed now."""
        self.proposal, self.is_late, self.is_excused = None, False, False

    def close(self) -> Close | None:
        """The sequence has ended. Returns: the message; None if the hub was never sent one.

        Send the message even if the hub is lost: it may still hold the tag.
        """
        if self.session.epoch == 0:
            return None
        return self.session.send(Close(tag=self.session.tag, epoch=self.session.next_epoch))

    def refuse(self, now: float) -> bool:
        """The hub's answer to the last message breaks the protocol. This is a miss if the tag waited for the answer.

        Returns: whether the tag waited for it.
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
        """The hub is lost. Its messages, and how late it was, say nothing about the next hub."""
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
