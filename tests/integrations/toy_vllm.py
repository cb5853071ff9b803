"""A vLLM server of toy tokens around a StepDrafter, and a hub behind its transport, under one virtual clock.

It treats rows as vLLM does: a request that ends leaves a hole, which the last row or a new request fills; one that is
preempted comes back in another row with all of its tokens, and is prefilled again; a prompt longer than a chunk takes
steps in which nothing is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from toy import VOCAB_SIZE, next_of
from toy_hub import ToyHub, VirtualClock

from starspec.integrations.vllm.drafting import StepDrafter
from starspec.integrations.vllm.hub_client import HubClient, account_of
from starspec.integrations.vllm.proposer import TEND_EVERY_S
from starspec.integrations.vllm.settings import VllmSettings
from starspec.policy.deadline import StepTimeDeadline

MAX_MODEL_LEN = 512
NUM_ROWS = 8
STEP_S = 0.020


@dataclass(eq=False)
class ToyRequest:
    token_ids: list[int]  # prompt, then output
    num_wanted: int  # tokens in all
    chunk: int = 10_000
    num_prefilled: int = 0
    draft: list[int] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0
    num_refused: int = 0  # drafts with a wrong token

    @property
    def num_forwarded(self) -> int:
        """Tokens of the next step."""
        num_to_prefill = len(self.token_ids) - self.num_prefilled
        return 1 + len(self.draft) if num_to_prefill <= 1 else min(num_to_prefill, self.chunk)

    @property
    def is_done(self) -> bool:
        return len(self.token_ids) >= self.num_wanted


class ToyVllm:
    """`hub` misbehaves as its mood says; `step` is one forward and one call of the proposer.

    Args:
        token_s: seconds that a step takes for each of its tokens, beside STEP_S.
        is_new: no step has been timed yet.
    """

    def __init__(self, num_tokens: int = 4, token_s: float = 0.0, *, is_new: bool = False, **settings: Any) -> None:
        self.token_s = token_s
        self.clock = VirtualClock()
        self.hub = ToyHub(self.clock)
        deadline_ms = settings.get("deadline_ms")
        self.deadline = StepTimeDeadline(None if deadline_ms is None else deadline_ms / 1e3)
        known = VllmSettings(**settings)
        account = account_of(known)
        self.client = HubClient(self.hub, self.deadline, VOCAB_SIZE, known.draft_p_min, self.clock, account)
        self.drafter = StepDrafter(self.client, self.deadline, known, num_tokens, MAX_MODEL_LEN, self.clock)
        self.rows: list[ToyRequest] = []
        self.waiting: list[ToyRequest] = []
        self.token_ids = np.zeros((NUM_ROWS, MAX_MODEL_LEN), np.int32)
        self.lengths = np.zeros(NUM_ROWS, np.int32)
        self.num_sent: list[int] = []  # multiparts of each step
        self.longest_propose_s = 0.0
        self._tended_s = self.clock.now
        self._count_sends()
        if not is_new:
            self._time_a_step()

    def submit(self, prompt: list[int], num_output: int, chunk: int = 10_000) -> ToyRequest:
        request = ToyRequest(list(prompt), len(prompt) + num_output, chunk)
        self.waiting.append(request)
        return request

    def abort(self, request: ToyRequest) -> None:
        self.rows.remove(request)

    def preempt(self, request: ToyRequest) -> None:
        self.rows.remove(request)
        request.num_prefilled, request.draft = 0, []
        self.waiting.append(request)

    def step(self) -> None:
        """Rows as `condense` leaves them: a hole is filled from the end, which moves a request."""
        self.rows = [each for each in self.rows if not each.is_done]
        if len(self.rows) > 2:
            self.rows.insert(0, self.rows.pop())
        while self.waiting and len(self.rows) < NUM_ROWS:
            self.rows.append(self.waiting.pop(0))
        self._pass(self.hub.slow_down(STEP_S + self.token_s * sum(each.num_forwarded for each in self.rows)))
        sampled = [self._sample(each) for each in self.rows]
        for row, request in enumerate(self.rows):
            self.token_ids[row, : len(request.token_ids)] = request.token_ids
            self.lengths[row] = len(request.token_ids)
        before, started_s = len(self.sends), self.clock.now
        drafts = self.drafter.step(sampled, self.lengths, self.token_ids)
        self.longest_propose_s = max(self.longest_propose_s, self.clock.now - started_s)
        self.num_sent.append(len(self.sends) - before)
        assert len(drafts) == len(self.rows)
        for request, draft, added in zip(self.rows, drafts, sampled, strict=True):
            assert added or not draft
            request.draft = draft

    def run(self, num_steps: int = 500) -> None:
        for _ in range(num_steps):
            if not self.waiting and all(each.is_done for each in self.rows):
                break
            self.step()
        self.rows = []

    def rest(self, seconds: float) -> None:
        """No step for a while: only what happens beside them."""
        until_s = self.clock.now + seconds
        while self.clock.now < until_s:
            self._pass(TEND_EVERY_S)

    def _time_a_step(self) -> None:
        """While the hub cannot be reached, of a request that is forgotten again."""
        self.hub.is_connected = False
        self.submit([1], 3)
        self.run()
        self.rest(2.0)
        self.hub.is_connected = True
        self.num_sent, self.longest_propose_s = [], 0.0

    def _sample(self, request: ToyRequest) -> list[int]:
        num_known = len(request.token_ids)
        if request.num_prefilled < num_known - 1:
            request.num_prefilled = min(num_known, request.num_prefilled + request.chunk)
            if request.num_prefilled < num_known:
                return []
        added: list[int] = []
        for guess in [*request.draft, None]:
            token = next_of([*request.token_ids, *added])
            added.append(token)
            if token != guess:
                request.num_refused += guess is not None
                break
        added = added[: request.num_wanted - num_known]
        request.num_drafted += len(request.draft)
        request.num_accepted += len(added) - 1
        request.token_ids += added
        request.num_prefilled = len(request.token_ids) - 1
        return added

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now - self._tended_s >= TEND_EVERY_S:
            self._tended_s = self.clock.now
            self.drafter.maintain()

    def _count_sends(self) -> None:
        self.sends: list[Any] = []
        send = self.hub.send

        def counted(messages: Any) -> None:
            self.sends.append(list(messages))
            send(messages)

        self.hub.send = counted  # type: ignore[method-assign]
