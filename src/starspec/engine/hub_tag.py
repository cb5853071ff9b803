"""One sequence's tag at the hub, as its target keeps it: what was asked, what came, and the messages that say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from starspec.config import SampleMethod
from starspec.engine.feature_outbox import FeatureOutbox
from starspec.engine.sequence import SequenceState, TargetSequence
from starspec.policy.waiting import Waiting
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.wire.codec import fits_a_frame
from starspec.wire.messages import Close, Open, Proposal, TargetToHub, TreeShape, Verdict
from starspec.wire.session import TagSession


@dataclass(slots=True, eq=False)
class HubTag(Waiting):
    """No I/O: who calls `open`, `verdict` or `close` sends what they return, in order."""

    sequence: TargetSequence
    session: TagSession
    features: FeatureOutbox
    draft: DraftTree = EMPTY_TREE  # behind the committed tokens
    asked_s: float = 0.0  # when the awaited proposal was asked for
    untold: list[int] = field(default_factory=list)  # committed since the hub was told of the tag last
    is_too_long: bool = False  # no message holds its tokens: the hub cannot be told of them (any more)

    @property
    def is_draftable(self) -> bool:
        """Whether the hub has, or soon gets, all that it needs to draft behind the committed tokens."""
        num_wanted = len(self.sequence.token_ids) - 1  # of the last token there are no features yet
        is_read = self.sequence.state is not SequenceState.PREFILLING
        return not self.features.are_wanted or (num_wanted > 0 and (not is_read or self.features.reach(num_wanted)))

    def settle_if_obsolete(self) -> None:
        """Forget a proposal asked for while the prompt was read, if no head reads what the target thought of it.

        The hub waits for these features for ever.
        """
        if self.is_awaited and not self.is_draftable:
            self.settle()

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing more is told before the hub has answered."""
        return self.has_to_be_answered(may_be_of_use=len(self.untold) < self.session.wanted.num_steps)

    def open(self, wanted: DraftBudget, method: SampleMethod, now: float) -> list[TargetToHub]:
        """Tell the hub all that is committed. Nothing, and `is_too_long`, if that is more than a message holds.

        Args:
            wanted: what to propose, if it can.
            method: how proposals are verified.
        """
        budget = self._fitting(wanted) if self.is_draftable else NO_DRAFT
        message = Open(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            token_ids=list(self.sequence.token_ids),
            prompt_len=self.sequence.prompt_len,
            sampling=self.sequence.sampling,
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
            method=method,
        )
        self.is_too_long = not fits_a_frame(message)
        if self.is_too_long:
            return []
        self.session.send(message)
        self._ask(budget, now)
        self.untold = []
        if self.is_awaited:
            self.begin_opening(now)
        self.features.forget_what_was_told()
        return [message, *self.features.frames(message.tag, len(message.token_ids))]

    def verdict(self, wanted: DraftBudget, now: float) -> list[TargetToHub]:
        """Tell the hub what was committed since it last heard. A tag that keeps coming late asks for nothing."""
        budget = self._fitting(wanted) if not self.patience.is_pausing and self.is_draftable else NO_DRAFT
        if self.patience.is_pausing:
            self.patience.pass_step(now)
        message = Verdict(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            base_len=self.session.prefix_len,
            token_ids=self.untold,
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
        )
        self.has_to_catch_up = self.session.wanted.num_steps == 0
        self.session.send(message)
        self.untold = []
        self._ask(budget, now)
        features = self.features.frames(message.tag, len(self.sequence.token_ids))
        early = [each for each in features if each.start < message.base_len]
        return [*early, message, *features[len(early) :]]  # none of tokens that the hub has not heard of

    def close(self) -> list[TargetToHub]:
        """The sequence has ended: what tells the hub, if it was ever told of the tag.

        A hub that fell silent may hold it still, so it is told even while nothing is expected of it.
        """
        if self.session.epoch == 0:
            return []
        return [self.session.send(Close(tag=self.session.tag, epoch=self.session.next_epoch))]

    def take(self, proposal: Proposal, now: float) -> bool:
        """What was told is answered. If late, the rest is as good as if the target has said meanwhile what it says.

        Returns: whether the hub has heard all, or there is something to verify; else it is to hear what was committed
            meanwhile.
        """
        self.take_answer(now, is_hopeless=proposal.is_hopeless)
        self.draft = proposal.tree.after(self.untold)
        if self.draft != EMPTY_TREE:
            self.patience.note_in_time()  # late or not
        return not self.untold or self.draft != EMPTY_TREE

    def refuse(self, now: float) -> None:
        """An answer breaks the protocol. If it was the one that was to come, ask anew, but not for ever."""
        if not (self.is_awaited or self.is_opening or self.is_behind):
            return
        if self.is_opening:
            self.let_go()
        self.settle()
        self.patience.note_miss(now)

    def let_go(self) -> None:
        """The hub does not hold the tag any more; nothing is to come."""
        self.session.lose()
        self.draft = EMPTY_TREE
        self.settle()

    def _fitting(self, wanted: DraftBudget) -> DraftBudget:
        return wanted.limited(num_steps=self.patience.fitting(wanted.num_steps))

    def _ask(self, budget: DraftBudget, now: float) -> None:
        self.draft, self.is_opening, self.is_behind, self.is_excused = EMPTY_TREE, False, False, False
        self.is_awaited = budget.num_draft_tokens > 0
        self.asked_s = now
