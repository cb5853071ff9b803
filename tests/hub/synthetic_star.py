"""A whole star in virtual time: the hub's own loop, a synthetic draft, and targets that are away for some time.

Nothing takes time but the modelled forwards, so what is measured is the hub's decisions alone, the same on any machine.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import NamedTuple, Self

from hub_toys import ToyTag

from starspec.config import HubConfig, RunAhead
from starspec.hub.causal import CausalDrafter
from starspec.hub.hub import DraftHub
from starspec.hub.loop import HubLoop
from starspec.ids import Epoch, LinkId, TargetId
from starspec.models.runner import Segment
from starspec.models.synthetic.runner import SyntheticRunner
from starspec.models.synthetic.spec import SyntheticSpec
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import HubToTarget, Open, Ping, Pong, Proposal, Verdict
from starspec.wire.session import TagState
from starspec.wire.transports.base import Arrival, HubTransportStats
from starspec.wire.transports.faulty_channel import VirtualClock

MAX_LEN = 8192
PROMPT = [10, 11, 12]
JITTER = 0.05  # of the time that a target is away
MANY = 16  # targets; more than these begin closer together


class _Deadline(NamedTuple):
    """Until then the proposal that was asked for is waited for."""

    epoch: Epoch


class _Event(NamedTuple):
    at_s: float
    order: int
    target: LinkId
    message: Open | Verdict | _Deadline | None  # None: a token of plain decoding


class _SyntheticTarget:
    """One tag, a row at the model, and when to ask again a hub that had no place."""

    def __init__(self, tag: ToyTag, row: int) -> None:
        self.tag = tag
        self.row = row
        self.ask_again_s = 0.0


class SyntheticStar:
    """Targets with one tag each. This is the hub's transport, too.

    Args:
        draft, target: one language, and what their forwards take.
        depth: of the chains.
        link_s: of the time that a target is away, what is not verification.
        deadline_s: after so long a target goes on without the proposal that it has asked for; None = never.
        num_rows: of the draft; None = one for each target.
    """

    def __init__(
        self,
        num_targets: int,
        config: HubConfig,
        *,
        draft: SyntheticSpec,
        target: SyntheticSpec,
        depth: int,
        link_s: float = 0.0,
        deadline_s: float | None = None,
        num_rows: int | None = None,
    ) -> None:
        self.stats = HubTransportStats()
        self.clock = VirtualClock()
        self.num_tokens: Counter[LinkId] = Counter()  # emitted
        self._spec, self._depth, self._link_s, self._deadline_s = target, depth, link_s, deadline_s
        self.num_late = 0  # rounds that went on without a proposal
        self._target = self._runner(replace(target, step_ms=0.0), num_targets)
        self.hub = DraftHub(CausalDrafter(self._runner(draft, num_rows or num_targets)), self.clock, config)
        self._loop = HubLoop(self.hub, self, self.clock)
        self._underway: list[_Event] = []
        self._order, self._rng = count(), Random(5)
        self._targets: dict[LinkId, _SyntheticTarget] = {}
        for number in range(num_targets):
            begin_s = 0.3 * number * target.forward_s(1, 1) / max(1.0, num_targets / MANY)
            self._begin(LinkId(f"t{number}"), number, begin_s)

    @classmethod
    def amusd(cls, num_targets: int, run_ahead: RunAhead, *, row_cost: float, alpha: float, depth: int) -> Self:
        """With AMUSD's step times.

        Args:
            row_cost: what every further node of a draft step costs, as a part of a draft step of one.
            alpha: probability that the target's token is the draft's first choice.
        """
        draft = SyntheticSpec(role="draft", alpha=alpha, step_ms=10.0, per_sequence=row_cost, per_token=row_cost)
        target = SyntheticSpec(role="target", alpha=alpha, step_ms=25.0)
        return cls(num_targets, HubConfig(run_ahead=run_ahead), draft=draft, target=target, depth=depth)

    def decode(self, num_tokens: int) -> float:
        """Returns: tokens a second of all targets, until so many are there."""
        while self.num_tokens.total() < num_tokens:
            self._loop.run_once(idle_wait_s=1.0)
        return self.num_tokens.total() / self.clock()

    def run(self, seconds: float) -> dict[LinkId, float]:
        """Returns: tokens a second of each target, from now on for so long."""
        before, start_s = self.num_tokens.copy(), self.clock()
        while self.clock() < start_s + seconds:
            self._loop.run_once(idle_wait_s=1.0)
        return {name: (self.num_tokens[name] - before[name]) / (self.clock() - start_s) for name in self._targets}

    def receive(self, timeout_s: float) -> list[Arrival]:
        if timeout_s:
            self.clock.advance(max(0.0, self._underway[0].at_s - self.clock()))
        arrived = []
        while self._underway and self._underway[0].at_s <= self.clock():
            event = heapq.heappop(self._underway)
            if event.message is None:
                self._decode_plainly(event)
            elif isinstance(event.message, _Deadline):
                self._go_on_without(event.target, event.message)
            else:
                arrived.append(Arrival(event.target, TargetId(event.target), event.message, event.at_s))
        return arrived

    def receive_ahead(self) -> list[Arrival]:
        return self.receive(0.0)

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        for link_id, message in [(name, each) for name, messages in replies.items() for each in messages]:
            target = self._targets[link_id]
            if isinstance(message, Pong) or not target.tag.receive(message):
                continue
            assert isinstance(message, Proposal)
            if message.retry_after_s:
                target.ask_again_s = self.clock() + message.retry_after_s
                target.tag.session.lose()
                self._put(self.clock() + self._spec.forward_s(1, 1), link_id, None)
                continue
            away_s = self._link_s + self._spec.forward_s(1, 1 + len(message.token_ids))
            said = self._verified(link_id, message.token_ids)
            away_s *= 1.0 + JITTER * self._rng.uniform(-1.0, 1.0)
            self._put(self.clock() + away_s, link_id, target.tag.verdict(said, self._depth))

    def close(self) -> None:
        pass

    def _begin(self, name: LinkId, number: int, at_s: float) -> None:
        self.hub.join(name, TargetId(name), self._spec.vocab)
        self.hub.handle(name, Ping(1, 1.0 / self._spec.forward_s(1, 1)), self.clock())
        prompt = [*PROMPT, 20 + number % 400, *[20] * (number // 400)]  # each is another
        tag, row = ToyTag(1, prompt, SamplingSpec(temperature=0.0)), self._target.cache.lease()
        self._targets[name] = _SyntheticTarget(tag, row)
        self._target.forward([Segment(row, tag.token_ids[:-1], num_logits=0)])
        self._target.cache.append(row, len(tag.token_ids) - 1)
        self._put(at_s, name, tag.open(self._depth))

    def _decode_plainly(self, event: _Event) -> None:
        """A token, and then another one, or the hub is asked again."""
        target = self._targets[event.target]
        target.tag.token_ids += self._verified(event.target, [])
        if event.at_s >= target.ask_again_s:
            self._put(event.at_s, event.target, target.tag.open(self._depth))
        else:
            self._put(event.at_s + self._spec.forward_s(1, 1), event.target, None)

    def _go_on_without(self, name: LinkId, deadline: _Deadline) -> None:
        """A token of plain decoding, unless the proposal has come. What comes meanwhile is too late."""
        tag = self._targets[name].tag
        if (tag.session.state, tag.session.epoch) == (TagState.DRAFTING, deadline.epoch):
            self.num_late += 1
            verdict = tag.verdict(self._verified(name, []), self._depth)
            self._put(self.clock() + self._spec.forward_s(1, 1), name, verdict)

    def _verified(self, name: LinkId, chain: Sequence[int]) -> list[int]:
        """The accepted tokens of a chain, and one more. They are counted."""
        tag, row = self._targets[name].tag, self._targets[name].row
        logits = self._target.forward([Segment(row, [tag.token_ids[-1], *chain], num_logits=len(chain) + 1)]).logits
        said: list[int] = logits.argmax(-1).tolist()
        is_right = [drafted == token_id for drafted, token_id in zip(chain, said[:-1], strict=True)]
        num_accepted = is_right.index(False) if False in is_right else len(chain)
        self._target.cache.append(row, num_accepted + 1)
        self.num_tokens[name] += num_accepted + 1
        return said[: num_accepted + 1]

    def _put(self, at_s: float, name: LinkId, message: Open | Verdict | None) -> None:
        heapq.heappush(self._underway, _Event(at_s, next(self._order), name, message))
        if message is not None and self._deadline_s is not None:
            deadline = _Deadline(message.epoch)
            heapq.heappush(self._underway, _Event(at_s + self._deadline_s, next(self._order), name, deadline))

    def _runner(self, spec: SyntheticSpec, num_rows: int) -> SyntheticRunner:
        return SyntheticRunner(
            spec, num_rows=num_rows, max_model_len=MAX_LEN, clock=self.clock, sleep=self.clock.advance
        )
