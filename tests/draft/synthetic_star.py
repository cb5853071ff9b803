"""A whole star in virtual time: the hub's own loop, a synthetic draft, and targets that are away for some time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from random import Random

from draft_toys import ToyTag

from starspec.config import HubConfig, RunAhead
from starspec.draft.grow import CausalDrafter
from starspec.draft.hub import DraftHub
from starspec.draft.loop import HubLoop
from starspec.ids import SessionId, TargetId
from starspec.models.runner import Segment
from starspec.models.synthetic import SyntheticRunner
from starspec.models.synthetic_spec import SyntheticSpec
from starspec.speculation.law import TokenLaw
from starspec.wire.channel import VirtualClock
from starspec.wire.messages import HubToTarget, Open, Proposal, Verdict
from starspec.wire.transport import Arrival, HubTransportStats

MAX_LEN = 2048
PROMPT = [10, 11, 12]
JITTER = 0.05  # of the time that a target is away


class SyntheticStar:
    """Targets with one tag each. This is the hub's transport, too.

    Args:
        row_cost: what every further node of a layer costs, as a part of a layer of one.
        alpha: probability that the target's token is the draft's first choice.
        depth: of the chains.
        layer_s, away_s: of a draft layer over one node, and from a proposal to its verdict.
    """

    def __init__(
        self,
        num_targets: int,
        run_ahead: RunAhead,
        *,
        row_cost: float,
        alpha: float,
        depth: int,
        layer_s: float = 0.010,
        away_s: float = 0.025,
    ) -> None:
        self.stats = HubTransportStats()
        self.clock = VirtualClock()
        self.num_tokens = 0  # emitted by all targets
        self._depth, self._away_s = depth, away_s
        draft = SyntheticSpec(
            role="draft", alpha=alpha, step_ms=layer_s * 1e3, per_sequence=row_cost, per_token=row_cost
        )
        self._target = self._runner(SyntheticSpec(role="target", alpha=alpha, step_ms=0.0), num_targets)
        drafter = CausalDrafter(self._runner(draft, num_targets))
        self.hub = DraftHub(drafter, self.clock, HubConfig(run_ahead=run_ahead))
        self._loop = HubLoop(self.hub, self, self.clock)
        self._underway: list[tuple[float, int, SessionId, Open | Verdict]] = []
        self._order, self._dice = count(), Random(5)
        self._tags: dict[SessionId, tuple[ToyTag, int]] = {}  # with its row at the target
        for number in range(num_targets):
            self._begin(SessionId(f"t{number}"), number)

    def decode(self, num_tokens: int) -> float:
        """Returns: tokens a second, until so many are there."""
        while self.num_tokens < num_tokens:
            self._loop.turn(idle_wait_s=1.0)
        return self.num_tokens / self.clock()

    def receive(self, timeout_s: float) -> list[Arrival]:
        if timeout_s:
            self.clock.advance(self._underway[0][0] - self.clock())
        arrived = []
        while self._underway and self._underway[0][0] <= self.clock():
            at_s, _, name, message = heapq.heappop(self._underway)
            arrived.append(Arrival(name, TargetId(name), message, at_s))
        return arrived

    def send(self, session_id: SessionId, messages: Sequence[HubToTarget]) -> None:
        tag, _ = self._tags[session_id]
        for message in messages:
            if tag.receive(message):
                assert isinstance(message, Proposal)
                said = self._verified(session_id, message.token_ids)
                self.num_tokens += len(said)
                away_s = self._away_s * (1.0 + JITTER * self._dice.uniform(-1.0, 1.0))
                self._put(self.clock() + away_s, session_id, tag.verdict(said, self._depth))

    def close(self) -> None:
        pass

    def _begin(self, name: SessionId, number: int) -> None:
        self.hub.join(name, TargetId(name), SyntheticSpec().vocab)
        tag, row = ToyTag(1, [*PROMPT, 20 + number], TokenLaw(temperature=0.0)), self._target.cache.lease()
        self._tags[name] = tag, row
        self._target.forward([Segment(row, tag.token_ids[:-1], num_logits=0)])
        self._target.cache.append(row, len(tag.token_ids) - 1)
        self._put(0.3 * number * self._away_s, name, tag.open(self._depth))

    def _verified(self, name: SessionId, chain: Sequence[int]) -> list[int]:
        """The accepted tokens of a chain, and one more."""
        tag, row = self._tags[name]
        logits = self._target.forward([Segment(row, [tag.token_ids[-1], *chain], num_logits=len(chain) + 1)]).logits
        said: list[int] = logits.argmax(-1).tolist()
        is_right = [drafted == token_id for drafted, token_id in zip(chain, said[:-1], strict=True)]
        num_accepted = is_right.index(False) if False in is_right else len(chain)
        self._target.cache.append(row, num_accepted + 1)
        return said[: num_accepted + 1]

    def _put(self, at_s: float, name: SessionId, message: Open | Verdict) -> None:
        heapq.heappush(self._underway, (at_s, next(self._order), name, message))

    def _runner(self, spec: SyntheticSpec, num_rows: int) -> SyntheticRunner:
        return SyntheticRunner(
            spec, num_rows=num_rows, max_model_len=MAX_LEN, clock=self.clock, sleep=self.clock.advance
        )
