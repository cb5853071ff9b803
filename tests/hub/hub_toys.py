"""A toy draft model over the real ragged cache, its obvious reference, and a target made of one tag."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from math import exp
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.config import MAX_DRAFT_TOKENS, HubConfig, RunAhead, SampleMethod
from starspec.errors import ForwardAborted
from starspec.hub.causal import CausalDrafter
from starspec.hub.hub import DraftHub
from starspec.ids import LinkId, Tag, TargetId
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.propose_coupled import propose_token, propose_tokens
from starspec.speculation.propose_rejection import draw_children, seed_after
from starspec.speculation.tree import DrawnCandidates
from starspec.wire.messages import Close, HubToTarget, Open, Proposal, Reopen, TreeShape, Verdict
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.faulty_channel import VirtualClock

VOCAB_SIZE = 32
END = 31
GREEDY = SamplingSpec(temperature=0.0, end_token_ids=(END,))
SAMPLED = SamplingSpec(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=7, min_tokens=3, end_token_ids=(END,))
PENALIZED = SamplingSpec(temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0)
Path = tuple[int, ...]
LOGITS = torch.randn(509, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))


def logits_after(token_ids: Sequence[int]) -> Tensor:
    """The toy's logits [V]: a function of every token so far, so a single wrong one shows."""
    return LOGITS[zlib.crc32(bytes(token_ids)) % len(LOGITS)]


class ReferenceTree(NamedTuple):
    """A proposal by paths."""

    nodes: set[Path]
    drafts: dict[Path, DrawnCandidates]  # what was drawn below them


def reference_tree(
    token_ids: Sequence[int],
    prompt_len: int,
    sampling: SamplingSpec,
    budget: DraftBudget,
    max_len: int,
    method: SampleMethod = "coupled",
    logits_of: Callable[[list[int]], Tensor] = logits_after,
) -> ReferenceTree:
    """What a fresh drafter proposes to these committed tokens. EAGLE-2 in the plainest words.

    Args:
        logits_of: the draft's, after some tokens: [V].
    """
    drafts: dict[Path, DrawnCandidates] = {}
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    to_expand: list[tuple[int, ...]] = [()]
    for _ in range(min(budget.num_steps, max_len - len(token_ids))):
        draft_step = []
        for path in to_expand:
            known = [*token_ids, *path]
            counts = TokenCounts(known[:prompt_len], known[prompt_len:])
            at = (logits_of(known), sampling, len(known), counts)
            if method == "rejection" and not sampling.is_greedy:
                draw_seed = seed_after(sampling.seed, known[prompt_len:])
                drafts[path], confidences = draw_children(*at, num_tokens=budget.top_k, draw_seed=draw_seed)
                children = list(zip(drafts[path].candidates, confidences, strict=True))
            else:
                logits, sampling, position, seen = at
                (children,) = propose_tokens(logits[None], sampling, position, [seen], num_tokens=budget.top_k)
            for token_id, log_confidence in children:
                draft_step.append((*path, token_id))
                scores[draft_step[-1]] = scores[path] + log_confidence
        open_ended = [path for path in draft_step if path[-1] not in sampling.end_token_ids]
        best = sorted(open_ended, key=lambda path: -scores[path])[: budget.top_k]
        share = 1 if drafts else 3 / 8  # of p_min
        to_expand = [path for path in best if exp(scores[path]) >= budget.p_min * share]
        if sum(exp(scores[path]) for path in to_expand) < budget.p_min:
            break
    del scores[()]
    likely = [path for path in scores if exp(scores[path]) >= budget.p_min / 8]
    nodes = set(sorted(likely, key=lambda path: -scores[path])[: budget.num_draft_tokens])
    return ReferenceTree(nodes, {path: draft for path, draft in drafts.items() if path in nodes | {()}})


def by_paths(proposal: Proposal) -> ReferenceTree:
    """A proposal as the reference tells it."""
    paths: list[Path] = []
    for token_id, parent in zip(proposal.tree.token_ids, proposal.tree.parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token_id))
    drafts = {(paths[node] if node >= 0 else ()): draft for node, draft in proposal.tree.drafts.items()}
    return ReferenceTree(set(paths), drafts)


def paths_of(proposal: Proposal) -> set[Path]:
    """The paths to a proposal's nodes."""
    return by_paths(proposal).nodes


def reference_chain(
    token_ids: Sequence[int], prompt_len: int, sampling: SamplingSpec, num: int, max_len: int
) -> list[int]:
    """What a fresh drafter with nothing but these committed tokens proposes: no cache, no batch, no state."""
    path = list(token_ids)
    while len(path) < min(len(token_ids) + num, max_len):
        counts = TokenCounts(path[:prompt_len], path[prompt_len:])
        path.append(propose_token(logits_after(path), sampling, len(path), counts))
        if path[-1] in sampling.end_token_ids:
            break
    return path[len(token_ids) :]


class ToyRunner:
    """A ModelRunner whose rows hold the tokens themselves, as keys: whatever the cache gets wrong, the logits show."""

    def __init__(self, num_rows: int = 4, max_len: int = 64) -> None:
        self.cache = RaggedCache(1, num_rows, max_len + MAX_DRAFT_TOKENS, 1, 1)
        self.info = ModelInfo("toy", VOCAB_SIZE, max_len, 0, 0, (END,))
        self.draft_steps: list[list[Segment]] = []
        self.clock: VirtualClock | None = None
        self.step_s = 0.0  # how long a forward takes on that clock
        self.is_broken = False
        self.on_forward: Callable[[], None] | None = None  # what happens while one runs

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        assert not feature_layers
        if self.is_broken:
            raise RuntimeError("the accelerator is on fire")
        self.draft_steps.append(list(segments))
        if self.clock is not None:
            self.clock.advance(self.step_s)
        assert len({segment.row for segment in segments}) == len(segments)
        rows = [row for segment in segments for row in self._logits(segment)]
        if self.on_forward is not None:
            self.on_forward()
        if is_obsolete is not None and is_obsolete():
            raise ForwardAborted("the toy is not wanted any more")
        return ForwardOutput(torch.stack(rows) if rows else LOGITS[:0])

    def _logits(self, segment: Segment) -> list[Tensor]:
        num, first = len(segment.token_ids), segment.num_forwarded
        self.cache.check_fits(segment.row, num)
        start = self.cache.lengths[segment.row]
        new = torch.tensor(segment.token_ids[first:], dtype=torch.float32)
        self.cache.keys[0][segment.row, 0, start + first : start + num, 0] = new
        read = self.cache.keys[0][segment.row, 0, : start + num, 0].int().tolist()
        parents = range(-1, num - 1) if segment.parents is None else segment.parents
        paths: list[list[int]] = []
        for token_id, parent in zip(read[start:], parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token_id])
        return [logits_after([*read[:start], *path]) for path in paths[num - segment.num_logits :]]


class ToyTag:
    """One tag as its target sees it."""

    def __init__(
        self, tag: int, prompt: Sequence[int], sampling: SamplingSpec = GREEDY, method: SampleMethod = "coupled"
    ) -> None:
        self.session = TagSession(Role.TARGET, Tag(tag))
        self.token_ids = list(prompt)
        self.prompt_len = len(prompt)
        self.sampling = sampling
        self.method = method
        self.proposal: Proposal | None = None
        self.budget = NO_DRAFT  # of the last request

    def open(self, wanted: int | DraftBudget = 4) -> Open:
        """Ask for a chain of so many tokens, or for a tree."""
        self.proposal, self.budget = None, wanted if isinstance(wanted, DraftBudget) else DraftBudget.chain(wanted)
        opened = Open(
            self.session.tag,
            self.session.next_epoch,
            list(self.token_ids),
            self.prompt_len,
            self.sampling,
            self.budget.num_draft_tokens,
            TreeShape.of(self.budget),
            self.method,
        )
        return self.session.send(opened)

    def verdict(self, token_ids: Sequence[int], wanted: int | DraftBudget = 4) -> Verdict:
        self.proposal, self.budget = None, wanted if isinstance(wanted, DraftBudget) else DraftBudget.chain(wanted)
        base_len = len(self.token_ids)
        self.token_ids += token_ids
        verdict = Verdict(
            self.session.tag,
            self.session.next_epoch,
            base_len,
            list(token_ids),
            self.budget.num_draft_tokens,
            TreeShape.of(self.budget),
        )
        return self.session.send(verdict)

    def told_otherwise(self, num_accepted: int) -> list[int]:
        """Tokens of a verdict that accepts so many of the proposed chain, and then says another one."""
        assert self.proposal is not None
        proposed = self.proposal.token_ids
        refused = proposed[num_accepted] if num_accepted < len(proposed) else 0
        return [*proposed[:num_accepted], (refused + 1) % END]

    def close(self) -> Close:
        return self.session.send(Close(self.session.tag, self.session.next_epoch))

    def receive(self, message: HubToTarget) -> bool:
        """Take a message of the hub in; False if it is stale."""
        assert isinstance(message, Proposal | Reopen)
        is_fresh = self.session.receive(message) is not None
        if is_fresh and isinstance(message, Proposal):
            self.proposal = message
        return is_fresh

    def expected_tree(self, max_draft_tokens: int = 8, max_len: int = 64) -> ReferenceTree:
        budget = self.budget.limited(num_draft_tokens=max_draft_tokens, num_steps=max_draft_tokens)
        return self.expected_after([], budget, max_len)

    def expected_after(self, accepted: Sequence[int], budget: DraftBudget, max_len: int) -> ReferenceTree:
        """What a fresh drafter would propose, had its target committed these tokens too."""
        return reference_tree(
            [*self.token_ids, *accepted], self.prompt_len, self.sampling, budget, max_len, self.method
        )

    def expected(self, num_draft_tokens: int = 4, max_len: int = 64) -> list[int]:
        return reference_chain(self.token_ids, self.prompt_len, self.sampling, num_draft_tokens, max_len)


class Slices:
    """A trace that remembers."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str, float, float]] = []

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:
        self.all.append((track, name, start_s, end_s))


class ToyStar:
    """A hub with a toy draft, in virtual time; targets join under one-letter names."""

    def __init__(
        self,
        *targets: str,
        num_rows: int = 4,
        max_len: int = 64,
        target_vocab_size: int = VOCAB_SIZE,
        run_ahead: RunAhead = "off",
        **limits: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.runner = ToyRunner(num_rows, max_len)
        self.runner.clock = self.clock
        sizes = {"max_tags": 16, "max_draft_tokens": 8, "prefill_chunk": 16, **limits}
        self.slices = Slices()
        config = HubConfig(run_ahead=run_ahead, **sizes)
        self.hub = DraftHub(CausalDrafter(self.runner), self.clock, config, trace=self.slices)
        for target in targets:
            self.hub.join(LinkId(target), TargetId(target), target_vocab_size)

    def send(self, target: str, *messages: Open | Verdict | Close, arrived_s: float | None = None) -> None:
        """Args: arrived_s: while a draft step ran; None = now."""
        for message in messages:
            self.hub.handle(LinkId(target), message, self.clock() if arrived_s is None else arrived_s)
            self.hub.check_integrity()

    def step(self, is_obsolete: Callable[[], bool] | None = None) -> list[tuple[str, HubToTarget]]:
        replies = self.hub.step(self.clock(), is_obsolete)
        self.hub.check_integrity()
        return [(str(link_id), message) for link_id, message in replies]

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
