"""One sequence's tag at the hub, as its target keeps it: what was asked, what came, and the messages that say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from starspec.config import SampleMethod
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.target.sequence import SequenceState, TargetSequence
from starspec.target.told_features import ToldFeatures
from starspec.wire.messages import Close, Open, Proposal, TargetToHub, TreeShape, Verdict
from starspec.wire.patience import Patience, Reading
from starspec.wire.session import TagSession


@dataclass(slots=True, eq=False)
class HubTag:
    """No I/O: who calls `open`, `verdict` or `close` sends what they return, in order."""

    sequence: TargetSequence
    session: TagSession
    features: ToldFeatures
    proposal: Proposal | None = None
    asked_s: float = 0.0  # when the awaited proposal was asked for
    is_awaited: bool = False
    is_opening: bool = False  # `Open` is not answered yet: the hub may have a long prompt to read
    untold: list[int] = field(default_factory=list)  # committed since that Open; the hub hears of it once it answers
    reading: Reading = field(default_factory=Reading)
    patience: Patience = field(default_factory=Patience)

    @property
    def is_draftable(self) -> bool:
        """Whether the hub has, or soon gets, all that it needs to draft behind the committed tokens."""
        num_wanted = len(self.sequence.token_ids) - 1  # of the last token there are no features yet
        is_read = self.sequence.state is not SequenceState.PREFILLING
        return not self.features.are_wanted or (num_wanted > 0 and (not is_read or self.features.reach(num_wanted)))

    def open(self, wanted: DraftBudget, method: SampleMethod, now: float) -> list[TargetToHub]:
        """Tell the hub all that is committed.

        Args:
            wanted: what to propose, if it can.
            method: how proposals are verified.
        """
        budget = wanted if self.is_draftable else NO_DRAFT
        message = Open(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            token_ids=list(self.sequence.token_ids),
            prompt_len=self.sequence.prompt_len,
            law=self.sequence.law,
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
            method=method,
        )
        self.session.send(message)
        self._ask(budget, now)
        self.is_opening, self.untold = self.is_awaited, []
        if self.is_opening:
            self.reading.begin(now)
        self.features.forget_what_was_told()
        return [message, *self.features.frames(message.tag, len(message.token_ids))]

    def verdict(self, token_ids: list[int], wanted: DraftBudget, now: float) -> list[TargetToHub]:
        """Tell the hub what was committed since it last heard. A tag that keeps coming late asks for nothing."""
        budget = wanted if not self.patience.is_pausing and self.is_draftable else NO_DRAFT
        if self.patience.is_pausing:
            self.patience.pass_step(now)
        message = Verdict(
            tag=self.session.tag,
            epoch=self.session.next_epoch,
            base_len=self.session.prefix_len,
            token_ids=token_ids,
            num_draft_tokens=budget.num_draft_tokens,
            shape=TreeShape.of(budget),
        )
        self.session.send(message)
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

    def take(self, proposal: Proposal) -> None:
        """What was awaited is here."""
        self.proposal = proposal
        self.patience.note_in_time()
        self.is_awaited = self.is_opening = False
        self.reading.end()

    def take_untold(self) -> list[int]:
        """The Open is answered, by a proposal that is old by now. Returns: what was committed meanwhile."""
        untold, self.untold, self.is_opening = self.untold, [], False
        self.reading.end()
        return untold

    def miss(self, now: float) -> None:
        """What was awaited did not come in time: if that goes on, stop paying the deadline for it."""
        if self.is_opening:
            self.is_awaited = False  # rounds go on; the tag joins when the hub has read its prompt
            return
        self.patience.note_in_vain(now)

    def refuse(self, now: float) -> None:
        """The answer to an Open breaks the protocol, so no other is going to follow: open anew, but not for ever."""
        self.let_go()
        self.patience.note_in_vain(now)

    def forgive(self) -> None:
        """The hub has been found (again), and has kept nobody waiting yet."""
        self.patience, self.reading = Patience(), Reading()

    def let_go(self) -> None:
        """The hub does not hold the tag any more; nothing is to come."""
        self.session.lose()
        self.proposal, self.is_awaited, self.is_opening = None, False, False

    def _ask(self, budget: DraftBudget, now: float) -> None:
        self.proposal = None
        self.is_awaited = budget.num_draft_tokens > 0
        self.asked_s = now
