"""A target of one engine, and a hub behind its transport that misbehaves as it is told, under one virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from late import LateVerifier
from toy import VOCAB_SIZE, HashRunner, WordTokenizer, next_of

from starspec.config import TargetConfig
from starspec.engine.drafts import NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.ids import Epoch, RequestId, Tag
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.snapshot import LengthPolicy
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Verifier
from starspec.wire.messages import (
    Close,
    HubToTarget,
    Open,
    Ping,
    Pong,
    Proposal,
    Reopen,
    RequestSpec,
    TargetToHub,
    Verdict,
    Welcome,
)
from starspec.wire.session import Role, TagSession

CHAINS_OF_FOUR = FixedLength(DraftBudget.chain(4))
STEP_S = 0.010  # what one forward of the toy target takes
DRAFT_S = 0.004  # from request to proposal
FULL_S = 0.1
REFUSAL_S = 0.001  # an answer for which nothing is drafted
PREFILL_S = 0.6  # what an `Open` takes a hub that prefills slowly
NUM_AT_ONCE = 16  # tokens of a `Verdict` that it prefills while it drafts
MOODS = ["prefilling", "lying", "late", "mute", "frozen", "chatty", "reopening", "prophetic", "full", "empty"]


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SlowRunner(HashRunner):
    def __init__(self, clock: VirtualClock, max_len: int = 96) -> None:
        super().__init__(max_len=max_len)
        self.clock = clock

    def forward(self, segments: Sequence[Any], feature_layers: Sequence[int] = ()) -> Any:
        self.clock.now += STEP_S
        return super().forward(segments, feature_layers)


class ToyHub:
    """A transport with the hub behind it. `mood` says how it behaves; `killed` begins a new link at revival."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.mood = "good"
        self.is_connected, self.num_connects = True, 1
        self.welcome: Welcome | None = None
        self.sessions: dict[Tag, TagSession] = {}
        self.ids: dict[Tag, list[int]] = {}
        self.mail: list[tuple[float, HubToTarget]] = []  # (when, message)
        self.num_opens = 0
        self.num_opens_lost = 0  # so many are going to be
        self.busy_s = 0.0  # what every proposal takes longer
        self.prefill_token_s = 0.0  # what an `Open` takes for each token, on the target's own cores
        self.catch_up_token_s = 0.0  # and a `Verdict` for each beyond NUM_AT_ONCE, wherever the hub is
        self.prefilled_at_s = 0.0  # when all that it was told of is prefilled
        self.token_s = 0.0  # what it takes longer for each token that it and those asked for beside it have
        self.share_wrong = 0.0  # of its guesses
        self.sure_of: int | None = None  # tokens behind which it doubts its guesses, and drafts no further
        self._owed_s = 0.0

    def send(self, messages: Sequence[TargetToHub]) -> None:
        self._owed_s = 0.0
        if self.is_connected and self.mood != "frozen":
            for message in messages:
                self._handle(message)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        due = min((when for when, _ in self.mail), default=float("inf"))
        if not self.is_connected or self.mood == "frozen":
            due = float("inf")
        self.clock.now = max(self.clock.now, min(due, self.clock.now + timeout_s))
        ready = [each for each in self.mail if each[0] <= self.clock.now and due < float("inf")]
        self.mail = [each for each in self.mail if each not in ready]
        return [message for _, message in ready]

    def close(self) -> None:
        self.is_connected = False

    def kill(self) -> None:
        self.is_connected = False
        self.sessions, self.ids, self.mail = {}, {}, []

    def revive(self) -> None:
        self.is_connected = True
        self.num_connects += 1
        self.mood = "good"

    def _handle(self, message: TargetToHub) -> None:
        match message:
            case Ping(sequence=sequence):
                self._post(0.001, Pong(sequence=sequence))
            case Open(tag=tag) | Verdict(tag=tag):
                self.num_opens += isinstance(message, Open)
                if isinstance(message, Open) and self.num_opens_lost:
                    self.num_opens_lost -= 1
                    return
                session = self.sessions.setdefault(tag, TagSession(Role.HUB, tag))
                if session.receive(message) is None:
                    if session.gap:
                        self._post(0.001, session.send(session.gap))
                    return
                self.ids[tag] = [*(self.ids[tag] if isinstance(message, Verdict) else []), *message.token_ids]
                if isinstance(message, Open) and self.prefill_token_s:
                    self.prefilled_at_s = max(self.prefilled_at_s, self.clock.now) + self.prefill_token_s * len(
                        message.token_ids
                    )
                if message.num_draft_tokens:
                    is_prefilled = isinstance(message, Verdict) or self.mood != "prefilling"
                    num_late = max(0, len(message.token_ids) - NUM_AT_ONCE) * isinstance(message, Verdict)
                    delay_s = (DRAFT_S if is_prefilled else PREFILL_S) + self.catch_up_token_s * num_late
                    self._propose(session, message.num_draft_tokens, delay_s)
            case Close(tag=tag):
                self.sessions.pop(tag, None)
                self.ids.pop(tag, None)
                if not self.ids:
                    self.prefilled_at_s = self.clock.now

    def slow_down(self, seconds: float) -> float:
        """Returns: what a target's step takes beside a hub that prefills on its cores, and has half of them then.

        Effects: what the hub still has to answer comes later by as much.
        """
        num_beside = min(seconds, max(0.0, self.prefilled_at_s - self.clock.now))
        self.prefilled_at_s += num_beside
        self.mail = [(when + num_beside, message) for when, message in self.mail]
        return seconds + num_beside

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        if self.mood == "mute":
            return
        if self.mood == "reopening":  # for no reason
            self._post(REFUSAL_S, Reopen(session.tag, session.epoch))
            return
        if self.mood == "prophetic":  # a Reopen of an epoch that has not been
            self._post(DRAFT_S, Reopen(session.tag, Epoch(session.epoch + 7)))
        if self.mood == "full":
            empty = Proposal(session.tag, session.epoch, session.prefix_len, [], retry_after_s=FULL_S)
            self._post(REFUSAL_S, session.send(empty))
            session.lose()
            return
        if self.mood == "empty":  # the draft's context is full
            self._post(REFUSAL_S, session.send(Proposal(session.tag, session.epoch, session.prefix_len, [])))
            return
        num = num if self.sure_of is None else min(num, self.sure_of)
        self._owed_s += self.token_s * num
        delay_s += self._owed_s
        path = list(self.ids[session.tag])
        if self.mood == "bushy":
            self._post(delay_s, session.send(self._bush(session, path, num)))
            return
        for _ in range(num):
            path.append(self.guess(path))
        token_ids = path[-num:] * (3 if self.mood == "chatty" else 1)  # chatty: more than was asked for
        service_s = self.token_s * num
        proposal = Proposal(session.tag, session.epoch, session.prefix_len, token_ids, service_s=service_s)
        if self.mood != "chatty":
            session.send(proposal)
        delay_s += max(0.0, self.prefilled_at_s - self.clock.now)
        self._post(10.0 if self.mood == "late" else delay_s + self.busy_s, proposal)

    def guess(self, path: list[int]) -> int:
        is_wrong = self.mood == "lying" or next_of([*path, 1]) < self.share_wrong * VOCAB_SIZE
        return (next_of(path) + is_wrong) % VOCAB_SIZE

    def _bush(self, session: TagSession, path: list[int], num: int) -> Proposal:
        """A tree of `num` nodes, with a wrong sibling before every right one."""
        token_ids: list[int] = []
        parents: list[int] = []
        for depth in range(num // 2):
            right = next_of(path)
            token_ids += [(right + 3) % VOCAB_SIZE, right]
            parents += [2 * depth - 1] * 2
            path.append(right)
        return Proposal(session.tag, session.epoch, session.prefix_len, token_ids, parents)

    def _post(self, delay_s: float, message: HubToTarget) -> None:
        self.mail.append((self.clock.now + delay_s, message))


class Star:
    """One engine and its toy hub under one virtual clock."""

    deadline_s: float | None = None

    def __init__(
        self,
        fallback: bool = False,
        policy: LengthPolicy = CHAINS_OF_FOUR,
        late: tuple[int, ...] | None = None,
    ) -> None:
        """Args: late: of a LateVerifier: polls, depth, windows of each; None = verdicts land at once."""
        self.late = late
        self.clock = VirtualClock()
        self.hub = self.make_hub()
        self.stats = TargetStats()
        self.fallback = NgramDrafts(policy, 1, 3, self.stats, self.clock)
        self.drafts = RemoteDrafts(
            self.hub,
            policy,
            self.stats,
            self.clock,
            fallback=self.fallback if fallback else None,
            deadline_s=self.deadline_s,
        )
        self.engine = TargetEngine(
            self.make_verifier(),
            WordTokenizer(),
            self.drafts,
            TargetConfig(prefill_chunk=5),
            self.stats,
            self.clock,
        )
        self.wanted: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.longest_gap_s = 0.0

    def make_hub(self) -> ToyHub:
        return ToyHub(self.clock)

    def make_verifier(self) -> Verifier:
        local = LocalVerifier(self.make_runner())
        return local if self.late is None else LateVerifier(local, *self.late)

    def make_runner(self) -> HashRunner:
        return SlowRunner(self.clock)

    def submit(self, name: str, prompt: list[int], num: int, grammar: Any = None) -> None:
        sampling = SamplingSpec(temperature=0.0)
        self.engine.submit(RequestId(name), RequestSpec(prompt, sampling, max_tokens=num), grammar=grammar)
        path = list(prompt)
        for _ in range(num):
            path.append(next_of(path))
        self.wanted[name], self.got[name] = path[len(prompt) :], []

    def step(self) -> None:
        started_s = self.clock.now
        for each in self.engine.step().values():
            self.got[each.request_id].extend(each.token_ids)
        self.longest_gap_s = max(self.longest_gap_s, self.clock.now - started_s)
        self.engine.check_integrity()

    def finish(self) -> None:
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert self.got == self.wanted
