"""A star whose models are tables over four tokens, with the real hub, codec, cache and engine: distributions can be
written out in full.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from starspec.cache.ragged import RaggedCache
from starspec.config import MAX_DRAFT_TOKENS, BatchingConfig, HubConfig, RunAhead, SampleMethod
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.harness.decode import make_engine
from starspec.hub.build import LoadedDrafter, build_hub, terms_of
from starspec.hub.causal import CausalDrafter
from starspec.hub.handshake import admit
from starspec.hub.loop import HubLoop
from starspec.ids import TargetId
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.snapshot import LengthPolicy
from starspec.sampling import reference
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds
from starspec.speculation.budget import DraftBudget
from starspec.stats import TargetStats
from starspec.wire.messages import PROTOCOL_VERSION, Hello, HubToTarget
from starspec.wire.transports.memory import MemoryHub, MemoryTarget

RAGGED = BatchingConfig()
VOCAB_SIZE = 4
MAX_LEN = 32
TARGET = torch.randn(101, VOCAB_SIZE, generator=torch.Generator().manual_seed(1)) * 1.2
DRAFT = 0.6 * TARGET + torch.randn(101, VOCAB_SIZE, generator=torch.Generator().manual_seed(2))  # often wrong


class TableRunner:
    """A ModelRunner whose logits are a row of a table, chosen by all tokens so far. They lie in the cache, as keys."""

    def __init__(self, table: torch.Tensor, num_rows: int) -> None:
        self._table = table
        self.cache = RaggedCache(1, num_rows, MAX_LEN + MAX_DRAFT_TOKENS, 1, 1)
        self.info = ModelInfo("table", VOCAB_SIZE, MAX_LEN, 0, 0, ())

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        assert not feature_layers
        rows = [row for segment in segments for row in self._logits(segment)]
        return ForwardOutput(torch.stack(rows) if rows else self._table[:0])

    def _logits(self, segment: Segment) -> list[torch.Tensor]:
        num, first, start = len(segment.token_ids), segment.num_forwarded, self.cache.lengths[segment.row]
        keys = self.cache.keys[0][segment.row, 0, :, 0]
        keys[start + first : start + num] = torch.tensor(segment.token_ids[first:], dtype=torch.float32)
        prefix, new = keys[:start].int().tolist(), keys[start : start + num].int().tolist()
        parents = range(-1, num - 1) if segment.parents is None else segment.parents
        paths: list[list[int]] = []
        for token_id, parent in zip(new, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prefix), token_id])
        return [row_after(self._table, path) for path in paths[num - segment.num_logits :]]


class TableTokenizer:
    """A letter a token."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join("abcd"[token_id] for token_id in token_ids)


def row_after(table: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
    return table[zlib.crc32(bytes(token_ids)) % len(table)]


def make_plain(num_rows: int) -> TargetEngine:
    """The target alone."""
    return make_engine(TableRunner(TARGET, num_rows), TableTokenizer(), NoDrafts(), prefill_chunk=3)


class LateLink:
    """A link whose proposals come when nobody waits for them any more. Its clock stands still but for waits."""

    def __init__(self, link: MemoryTarget) -> None:
        self._link = link
        self._arrived: list[HubToTarget] = []
        self.now = 0.0

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        arrived, self._arrived = self._arrived, []
        self.now += timeout_s
        for message in self._link.receive(timeout_s):
            (self._arrived if timeout_s else arrived).append(message)
        return arrived

    def clock(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> object:
        return getattr(self._link, name)


class TableStar(NamedTuple):
    """A target and its hub."""

    engine: TargetEngine
    hub: HubLoop


def make_star(
    budget: DraftBudget,
    num_rows: int,
    method: SampleMethod,
    batching: BatchingConfig = RAGGED,
    run_ahead: RunAhead = "off",
    is_late: bool = False,
    thresholds: KeyThresholds = DEFAULT_THRESHOLDS,
    make_policy: Callable[[DraftBudget], LengthPolicy] = FixedLength,
) -> TableStar:
    """Over the coded in-process link, or one on which proposals are late. The hub has a row less than the target."""
    config = HubConfig(prefill_chunk=3, run_ahead=run_ahead)
    loaded = LoadedDrafter(CausalDrafter(TableRunner(DRAFT, max(1, num_rows - 1))), None, num_rows, 0)
    transport = MemoryHub(partial(admit, terms_of(loaded, config)))
    hub_loop = HubLoop(build_hub(loaded, config), transport)
    link = transport.connect(
        Hello(PROTOCOL_VERSION, TargetId("table"), VOCAB_SIZE, "f"), partial(hub_loop.run_once, 0.0)
    )
    late, stats = LateLink(link), TargetStats()
    options = {"clock": late.clock, "deadline_s": 0.01} if is_late else {"deadline_s": 600.0}
    drafts = RemoteDrafts(late if is_late else link, make_policy(budget), stats, method=method, **options)
    engine = make_engine(
        TableRunner(TARGET, num_rows),
        TableTokenizer(),
        drafts,
        stats,
        prefill_chunk=3,
        batching=batching,
        thresholds=thresholds,
    )
    return TableStar(engine, hub_loop)


LogitsAfter = Callable[[Sequence[int]], torch.Tensor]
TARGET_AFTER: LogitsAfter = partial(row_after, TARGET)


def distribution_of_answers(
    prompt: Sequence[int],
    sampling: SamplingSpec,
    num_tokens: int,
    logits_after: LogitsAfter = TARGET_AFTER,
) -> dict[tuple[int, ...], float]:
    """How likely each answer is, from the slow reference: the product of its tokens' probabilities."""
    answers: dict[tuple[int, ...], float] = {}
    growing: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(1, num_tokens + 1):
        longer: dict[tuple[int, ...], float] = {}
        for output, chance in growing.items():
            row = logits_after([*prompt, *output]).double().tolist()
            probs = reference.probabilities(reference.adjust(row, sampling, prompt, output), sampling)
            for token_id, prob in enumerate(probs):
                if prob > 0:
                    ends = token_id in sampling.end_token_ids or length == num_tokens
                    (answers if ends else longer)[*output, token_id] = chance * prob
        growing = longer
    return answers
