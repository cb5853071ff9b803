"""A toy draft model over the real ragged cache, its obvious reference, and a target made of one tag."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.draft.grow import CausalDrafter
from starspec.draft.hub import DraftHub
from starspec.ids import SessionId, Tag, TargetId
from starspec.models.runner import ModelInfo, Segment
from starspec.speculation.counts import TokenCounts
from starspec.speculation.law import TokenLaw
from starspec.speculation.sampling import propose_token
from starspec.wire.channel import VirtualClock
from starspec.wire.messages import Close, HubToTarget, Open, Proposal, Reopen, Verdict
from starspec.wire.session import Role, TagSession

VOCAB_SIZE = 32
END = 31
GREEDY = TokenLaw(temperature=0.0, end_token_ids=(END,))
SAMPLED = TokenLaw(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=7, min_tokens=3, end_token_ids=(END,))
PENALIZED = TokenLaw(temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0)
LOGITS = torch.randn(509, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def logits_after(token_ids: Sequence[int]) -> Tensor:
    """The toy's logits [V]: a function of every token so far, so a single wrong one shows."""
    return LOGITS[zlib.crc32(bytes(token_ids)) % len(LOGITS)]


def reference_chain(token_ids: Sequence[int], prompt_len: int, law: TokenLaw, num: int, max_len: int) -> list[int]:
    """What a fresh drafter with nothing but these committed tokens proposes: no cache, no batch, no state."""
    path = list(token_ids)
    while len(path) < min(len(token_ids) + num, max_len):
        counts = TokenCounts(path[:prompt_len], path[prompt_len:])
        path.append(propose_token(logits_after(path), law, len(path), counts))
        if path[-1] in law.end_token_ids:
            break
    return path[len(token_ids) :]


class ToyRunner:
    """A ModelRunner whose rows hold the tokens themselves, as keys: whatever the cache gets wrong, the logits show."""

    def __init__(self, num_rows: int = 4, max_len: int = 64) -> None:
        self.cache = RaggedCache(1, num_rows, max_len, 1, 1)
        self.info = ModelInfo("toy", VOCAB_SIZE, max_len, 0, 0, (END,))
        self.layers: list[list[Segment]] = []
        self.clock: VirtualClock | None = None
        self.layer_s = 0.0  # how long a forward takes on that clock
        self.is_broken = False

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        if self.is_broken:
            raise RuntimeError("the accelerator is on fire")
        self.layers.append(list(segments))
        if self.clock is not None:
            self.clock.advance(self.layer_s)
        assert len({segment.row for segment in segments}) == len(segments)
        rows = [self._logits(segment) for segment in segments]
        return (
            torch.stack([row for row in rows if row is not None]) if any(s.num_logits for s in segments) else LOGITS[:0]
        )

    def _logits(self, segment: Segment) -> Tensor | None:
        num = len(segment.token_ids)
        self.cache.check_fits(segment.row, num)
        tokens = torch.tensor(segment.token_ids, dtype=torch.float32).view(1, num, 1)
        self.cache.write(0, segment.row, tokens, tokens)
        stop = self.cache.lengths[segment.row] + num
        read = self.cache.keys[0][segment.row, 0, :stop, 0].int().tolist()
        return logits_after(read) if segment.num_logits else None


class ToyTag:
    """One tag as its target sees it."""

    def __init__(self, tag: int, prompt: Sequence[int], law: TokenLaw = GREEDY) -> None:
        self.link = TagSession(Role.TARGET, Tag(tag))
        self.token_ids = list(prompt)
        self.prompt_len = len(prompt)
        self.law = law
        self.proposal: Proposal | None = None

    def open(self, num_draft_tokens: int = 4) -> Open:
        self.proposal = None
        opened = Open(
            self.link.tag, self.link.next_epoch, list(self.token_ids), self.prompt_len, self.law, num_draft_tokens
        )
        return self.link.send(opened)

    def verdict(self, token_ids: Sequence[int], num_draft_tokens: int = 4) -> Verdict:
        self.proposal = None
        base_len = len(self.token_ids)
        self.token_ids += token_ids
        verdict = Verdict(self.link.tag, self.link.next_epoch, base_len, list(token_ids), num_draft_tokens)
        return self.link.send(verdict)

    def close(self) -> Close:
        return self.link.send(Close(self.link.tag, self.link.next_epoch))

    def receive(self, message: HubToTarget) -> bool:
        """Take a message of the hub in; False if it is stale."""
        assert isinstance(message, Proposal | Reopen)
        is_fresh = self.link.receive(message) is not None
        if is_fresh and isinstance(message, Proposal):
            self.proposal = message
        return is_fresh

    def expected(self, num_draft_tokens: int = 4, max_len: int = 64) -> list[int]:
        return reference_chain(self.token_ids, self.prompt_len, self.law, num_draft_tokens, max_len)


class ToyStar:
    """A hub with a toy draft, in virtual time; targets join under one-letter names."""

    def __init__(
        self, *targets: str, num_rows: int = 4, max_len: int = 64, target_vocab_size: int = VOCAB_SIZE, **limits: int
    ) -> None:
        self.clock = VirtualClock()
        self.runner = ToyRunner(num_rows, max_len)
        self.runner.clock = self.clock
        sizes = {"max_tags": 16, "max_draft_tokens": 8, "prefill_chunk": 16, **limits}
        self.hub = DraftHub(CausalDrafter(self.runner), self.clock, **sizes)
        for target in targets:
            self.hub.join(SessionId(target), TargetId(target), target_vocab_size)

    def say(self, target: str, *messages: Open | Verdict | Close) -> None:
        for message in messages:
            self.hub.handle(SessionId(target), message, self.clock())
            self.hub.check_integrity()

    def step(self) -> list[tuple[str, HubToTarget]]:
        replies = self.hub.step(self.clock())
        self.hub.check_integrity()
        return [(str(session_id), message) for session_id, message in replies]

    def drain(self) -> list[tuple[str, HubToTarget]]:
        """Step until nothing is left to do."""
        replies = []
        for _ in range(10_000):
            if not self.hub.has_work:
                return replies
            replies += self.step()
        raise AssertionError("the hub never rests")

    @property
    def num_leased(self) -> int:
        return len(self.runner.cache.rows.leased)
