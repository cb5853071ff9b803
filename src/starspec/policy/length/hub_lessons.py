"""What a target that weighs drafts by their cost has learnt about one hub: costs and acceptance.

The target forgets a hub by dropping the object. No other state of these policies belongs to a hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import USUAL_FADE, Acceptance
from starspec.policy.length.node_gains import NodeGains
from starspec.policy.length.prefill_cost import PrefillCost
from starspec.policy.length.round_cost import FREE, RoundTimes
from starspec.policy.window_choice import WindowChoice


def _usual() -> Acceptance:
    return Acceptance(fade=USUAL_FADE)


class PrefillCounts(NamedTuple):
    """Tokens in messages to one hub that are longer than those of a usual round: mostly prompts."""

    num_sent: int = 0
    num_prefilled: int = 0  # of these: the hub prefilled them and drafted,
    num_refused: int = 0  # or it answered without a draft
    num_opened: int = 0  # how many `Open`s were sent; the step waits for the answer


@dataclass(slots=True, eq=False)
class HubLessons:
    """What was learnt about one hub. Another object is about another hub, or about the same one after it was lost."""

    rounds: RoundTimes = field(default_factory=RoundTimes)  # the wait for its proposals
    prefill: PrefillCost = field(default_factory=PrefillCost)  # of tokens that it does not hold yet
    acceptance: Acceptance = field(default_factory=_usual)  # of its drafts for all requests; new ones begin with it
    nodes: NodeGains = field(default_factory=NodeGains)  # of its trees
    windows: WindowChoice = field(default_factory=WindowChoice)  # how many in flight: its drafts may slow stages down
    counts: PrefillCounts = field(default_factory=PrefillCounts)
    _weighed: PrefillCounts = field(default_factory=PrefillCounts)  # the counts that `prefill` knows

    @staticmethod
    def of_local_drafter() -> HubLessons:
        """For a drafter in the target's own process: nobody waits for its drafts, and it prefills nothing."""
        return HubLessons(rounds=RoundTimes(FREE))

    def forget_rounds(self) -> None:
        """Forget what rounds took."""
        self.rounds = RoundTimes()

    def after_loss(self) -> HubLessons:
        """What holds of a hub that comes back: what prefill costs the target.

        Whether it is the same hub is not known, and trials will show what it takes. But all prompts of the open
        requests wait for it, so to learn anew what they cost could cost more than its drafts would save.
        """
        self.prefill.drop()
        return HubLessons(prefill=self.prefill)

    def note_round(self, round_: Round) -> None:
        """A wait for proposals, beside which the hub had nothing to prefill."""
        self.rounds.add(round_)

    def note_sent(self, num_tokens: int) -> None:
        """The hub was sent so many tokens to prefill."""
        self.counts = self.counts._replace(num_sent=self.counts.num_sent + num_tokens)

    def note_opened(self) -> None:
        """The hub was sent an `Open`, so the step waits for its answer."""
        self.counts = self.counts._replace(num_opened=self.counts.num_opened + 1)

    def note_answered(self, num_tokens: int, *, has_drafted: bool) -> None:
        """The hub has answered a message with so many tokens to prefill."""
        if has_drafted:
            self.counts = self.counts._replace(num_prefilled=self.counts.num_prefilled + num_tokens)
        else:
            self.counts = self.counts._replace(num_refused=self.counts.num_refused + num_tokens)

    def weigh_answers(self, *, is_prefilling: bool) -> None:
        """Take what the hub has answered since the last call into the cost of prefill.

        Args:
            is_prefilling: whether the hub has something to prefill now.
        """
        counts, before = self.counts, self._weighed
        self._weighed = counts
        self.prefill.add_answer(counts.num_prefilled - before.num_prefilled, counts.num_refused - before.num_refused)
        if self.prefill.is_going_on and not is_prefilling:
            self.prefill.end()

    def weigh_round(self, hub_s: float, lengths: Sequence[int], *, is_prefilling: bool) -> None:
        """Take a round of our engine into the cost of prefill.

        Args:
            hub_s: seconds since the round before that went to the hub: waits, messages, and the hub's own work if it
                runs on the target's thread.
            lengths: tokens of each draft that came.
            is_prefilling: as in `weigh_answers`.
        """
        num_sent = self.counts.num_sent - self._weighed.num_sent
        if num_sent:
            self.prefill.add_request(num_sent, None)
        if self.prefill.is_going_on:
            self.prefill.add_wait(hub_s - (self.rounds.cost.seconds_of(lengths) if lengths else 0.0))
        self.weigh_answers(is_prefilling=is_prefilling)

    def weigh_step(self, waited_s: float, lengths: Sequence[int], *, is_prefilling: bool) -> None:
        """Take what came of the messages of a step of vLLM into the cost of prefill.

        Args:
            waited_s: seconds that the step waited for all of them.
            lengths: tokens of each draft that came.
            is_prefilling: as in `weigh_answers`.
        """
        counts, before = self.counts, self._weighed
        if counts.num_sent > before.num_sent:
            drafting_s = self.rounds.cost.seconds_of(lengths) if lengths else 0.0
            has_waited = counts.num_opened > before.num_opened  # a step does not wait for a tag that catches up
            extra_s = waited_s - drafting_s if has_waited else None
            self.prefill.add_request(counts.num_sent - before.num_sent, extra_s)
        self.weigh_answers(is_prefilling=is_prefilling)
