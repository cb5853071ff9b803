"""Proposals from a hub, and what happens if they do not come.

A round waits for proposals until a deadline. A hub that sends nothing before the deadline is pinged, and it is *lost*
if it does not answer the ping either. Rounds then go on without waiting. When a message of the hub arrives again, each
running tag is opened anew from its token ids. So a hub can slow generation, but it can neither stop it nor change a
token. Under rejection sampling there is one exception: the target believes the probabilities that the hub states, so a
hub that states false ones can change the distribution of the tokens. Relaxed requests are the other exception: there a
hub has a say in tokens, within the bounds of `speculation/relaxed.py`.

The target waits once for a late proposal. Then its rounds go on without drafts, and send nothing more about the tag
until the proposal comes. If the proposal begins with the tokens that were committed meanwhile, the rest of it is
verified. Otherwise one verdict sends all of these tokens to the hub. If a tag, or a whole hub, is late again and again,
the target asks it for nothing for a while. The first proposal of a tag may be late, since the hub has to prefill the
prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import structlog
from torch import Tensor

from starspec.client.charging import Charging
from starspec.config import SampleMethod
from starspec.draft_methods import DraftMethod, method_named
from starspec.engine.drafts import NgramDrafts, RoundTimes, StepsOfWindows, is_launched
from starspec.engine.hub_tags import HubTags
from starspec.engine.sequence import RoundOutput, TargetSequence
from starspec.ids import RequestKey
from starspec.log_limit import LogLimit
from starspec.policy.deadline import NoStallDeadline, Round
from starspec.policy.hub_account import HubAccount
from starspec.policy.hub_cost import HubCost, RoundGain
from starspec.policy.length.costs import Costs
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.acceptance import RULES, AcceptanceRule
from starspec.speculation.tree import EMPTY_TREE, DraftTree
from starspec.stats import HubState, TargetStats
from starspec.wire.transports.base import TargetTransport

log = structlog.get_logger()


class RemoteDrafts:
    """Proposals from a hub, over any transport.

    Args:
        fallback: proposes for a sequence when the hub has no proposal for it; None = such a sequence gets no draft.
        deadline_s: longest wait of a round; None = follows recent rounds.
        method: how proposals are verified; with "rejection" the hub is asked to draw, and to state its probabilities.
    """

    drafts_forced = True

    def __init__(
        self,
        transport: TargetTransport,
        policy: LengthPolicy,
        stats: TargetStats,
        clock: Callable[[], float] = time.monotonic,
        *,
        fallback: NgramDrafts | None = None,
        deadline_s: float | None = None,
        method: SampleMethod = "coupled",
    ) -> None:
        self._transport = transport
        self._stats = stats
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._fallback = fallback
        self._method = method
        self._deadline = NoStallDeadline(deadline_s)
        # an operator who sets the longest wait says by it what a hub may cost
        account = HubAccount() if deadline_s is None else None
        self._cost = HubCost(account)
        costs = Costs() if fallback is None else fallback.lengths.costs  # the target's steps are the same for both
        self._tags = HubTags(transport, self._deadline, policy, costs, stats, clock, account=account, method=method)
        self._hub, self._at_hub = self._tags.hub, self._tags.at_hub
        self._charging = Charging(account, clock, self._at_hub)
        self._round: Round | None = None  # the drafts that this round waited for; None = they show no usual cost
        self._drafted = StepsOfWindows()  # 0 = no draft of the hub
        self._lengths: list[int] = []  # tokens of the hub's drafts that were collected last
        self._by_hub = _ByHub(0, 0)  # of the round that was reported last

    @property
    def is_connected(self) -> bool:
        return not self._hub.is_lost

    @property
    def hub_state(self) -> HubState:
        return self._hub.state

    @property
    def hub_state_s(self) -> float:
        return self._hub.state_s

    @property
    def hub_method(self) -> DraftMethod | None:
        welcome = self._transport.welcome
        return None if welcome is None else method_named(welcome.draft_method)

    @property
    def rule(self) -> AcceptanceRule:
        return RULES[self._method]

    @property
    def num_tags(self) -> int:
        return len(self._at_hub)

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        if self._fallback is not None:
            self._fallback.open(sequences)
        with self._charging:
            self._tags.open(sequences)

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self._at_hub.feature_request.layers

    def add_prompt_features(self, sequence: TargetSequence, start: int, features: Tensor) -> None:
        with self._charging:
            self._tags.add_prompt_features(sequence, start, features)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        return self.collect_beside(batch, 0) or [EMPTY_TREE] * len(batch)

    def collect_beside(self, batch: Sequence[TargetSequence], num_sequences: int) -> list[DraftTree] | None:
        """As DraftsForSome."""
        with self._charging:
            trees = self._collect(batch, len(batch) + num_sequences)
        self._weigh()
        return trees

    def _collect(self, batch: Sequence[TargetSequence], num_in_round: int) -> list[DraftTree] | None:
        """None: the round is plain, to be measured."""
        held = [self._at_hub.by_request.get(sequence.key) for sequence in batch]
        for at_hub in filter(None, held):
            at_hub.stop_if_undraftable()
        asked = [at_hub.tag for at_hub in held if at_hub is not None and at_hub.tag.is_awaited]
        self._round, is_prefilling = None, self._hub.is_prefilling
        self._poll()
        if not any(each.flights for each in batch) and self._is_plain_round_due(num_in_round):
            for sequence in batch:
                self._drafted.launch(sequence, 0)
            self._lengths = []
            return None
        waited = self._hub.wait(asked)
        self._stats.num_late_rounds += bool(waited.late)
        self._round = None if is_prefilling else waited.round
        by_hub = [EMPTY_TREE if at_hub is None else at_hub.tag.draft() for at_hub in held]
        self._lengths = [each.num_draft_tokens for each in by_hub if each != EMPTY_TREE]
        trees = by_hub if self._fallback is None else self._fallback.fill(batch, by_hub)
        for sequence, known, own, tree in zip(batch, held, by_hub, trees, strict=True):
            if is_launched(sequence, tree):
                num_steps = known.tag.num_left if known is not None and own != EMPTY_TREE else 0
                self._drafted.launch(sequence, num_steps)
        return trees

    def _weigh(self) -> None:
        """Learn what the hub has cost since the last round: messages, the wait, and what a hub on this thread did."""
        lessons, hub_s = self._hub.record.lessons, self._charging.take()
        if self._round is not None:
            lessons.note_round(self._round._replace(seconds=hub_s))
        lessons.weigh_round(hub_s, self._lengths, is_prefilling=self._hub.is_prefilling)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        drafted = {each.key: self._drafted.land(each) or 0 for each in batch}
        self._by_hub = _by_hub(batch, emitted, drafted)
        with self._charging:
            self._tags.report(batch, emitted, drafted)
        if self._fallback is not None:
            self._fallback.report(batch, emitted)

    @property
    def num_windows(self) -> int:
        return self._tags.lengths.plan.depth

    def presume(self, sequences: Sequence[TargetSequence]) -> None:
        with self._charging:
            self._tags.presume(sequences)

    def can_go_on(self, sequence: TargetSequence) -> bool:
        at_hub = self._at_hub.by_request.get(sequence.key)
        return at_hub is not None and at_hub.tag.draft() != EMPTY_TREE

    def retract(self, sequence: TargetSequence) -> None:
        self._drafted.forget(sequence)
        if self._fallback is not None:
            self._fallback.retract(sequence)
        self._tags.retract(sequence)

    def close(self, sequence: TargetSequence) -> None:
        if self._fallback is not None:
            self._fallback.close(sequence)
        self._drafted.forget(sequence)
        self._tags.close(sequence)

    def note_beside(self, num_sequences: int) -> None:
        """As DraftsForSome."""
        self._tags.lengths.note_beside(num_sequences)
        if self._fallback is not None:
            self._fallback.note_beside(num_sequences)

    def holds_back(self, sequence: TargetSequence) -> bool:
        at_hub = self._at_hub.by_request.get(sequence.key)
        return at_hub is not None and self._hub.holds_back(at_hub.tag)

    def note_round(self, times: RoundTimes) -> None:
        self._deadline.note_round(times.round_s, times.traversal_s)
        self._tags.lengths.end_round(times.num_tokens, times.traversal_s)
        self._tags.lengths.plan_windows(
            times.took, times.occupancy_s, times.num_running, is_ahead=times.is_ahead, gaps=times.gaps
        )
        now, account, gain = self._clock(), self._cost.account, self._by_hub.gain_of(times)
        if self._cost.end_round(times.occupancy_s, gain, now) and account is not None:
            event = "the hub takes more time than its drafts save; it is asked for none for a while"
            self._log_limit.log(log.warning, event, seconds=round(account.rest_s(now), 1))
        self._stats.plain_tokens_per_s = self._cost.plain_tokens_per_s(gain.num_sequences)
        self._hub.note_plain_speed(self._stats.plain_tokens_per_s)

    def poll(self) -> None:
        with self._charging:
            self._poll()

    def _poll(self) -> None:
        self._hub.receive(0.0)
        self._stats.degraded_s = self._hub.lost_s
        self._hub.ping_if_due()

    def shutdown(self) -> None:
        self._transport.close()

    def _is_plain_round_due(self, num_sequences: int) -> bool:
        """Whether the next round should have no drafts, to measure the plain speed, if the hub or the account asks."""
        welcome = self._transport.welcome
        is_wanted = welcome is not None and welcome.is_plain_speed_wanted
        return self._cost.is_plain_round_due(
            num_sequences, self._clock(), is_hub_lost=self._hub.is_lost, is_speed_wanted=is_wanted
        )


class _ByHub(NamedTuple):
    """What a round had of the hub."""

    num_draft_tokens: int
    num_gained: int  # tokens

    def gain_of(self, times: RoundTimes) -> RoundGain:
        """It counts all sequences of the round: its forward verifies drafts of others, too, and they share its time."""
        return RoundGain(
            times.num_sequences,
            has_drafts=times.num_draft_tokens > 0,
            drafted_share=self.num_draft_tokens / max(1, times.num_draft_tokens),
            num_gained=self.num_gained / max(1, times.num_sequences),
        )


def _by_hub(
    batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput], drafted: Mapping[RequestKey, int]
) -> _ByHub:
    """Of the round that is reported. Others may have begun since."""
    added = [added for each, added in zip(batch, emitted, strict=True) if drafted[each.key]]
    num_gained = sum(len(each.token_ids) - 1 - each.num_forced for each in added)
    return _ByHub(sum(each.num_draft_tokens for each in added), num_gained)
