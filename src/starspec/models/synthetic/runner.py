"""A synthetic model: a runner without weights, whose tokens are hashes and whose forwards take a modelled time.

Real hub, wire and targets run on it: any number of emulated devices on two cores. The token after a prefix is a
function of the whole prefix. The cache carries this function as a hash:

    keys    [ t0 | t1 | t2 | ...        the token in each slot
    values  [ h0 | h1 | h2 | ...        h(i) = mix(h(i - 1), t(i)): the prefix that ends there

So a slot that is committed, moved or rolled back wrongly changes every later token, as with a real model. The matching
draft ranks the same candidates in its own order: the target's token is its first choice with probability alpha,
otherwise its second, third or fourth, or none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.config import DEFAULT_MAX_MODEL_LEN, MAX_DRAFT_TOKENS, ModelConfig
from starspec.errors import CacheRangeError, ForwardAborted
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.models.synthetic.spec import (
    EOS_TOKEN_ID,
    NUM_SPECIAL_TOKENS,
    SyntheticSpec,
    check_weightless,
    parse_synthetic,
)

NUM_CANDIDATES: Final = 5  # tokens with a logit of their own: the draft's four choices, and one that it misses
LOOK_S: Final = 0.000125  # between two checks whether a forward is obsolete; the core is free meanwhile

# between neighbouring candidates: Gumbel noise at any usual temperature does not change their order
LOGIT_GAP: Final = 40.0

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15  # odd, so that multiplying by it is reversible
WHICH_CHOICE: Final = 0xD1B54A32D192ED03  # separates the draw of the rank from the draw of the candidates


class SyntheticRunner:
    """A `ModelRunner` that needs no weights.

    Args:
        spec: the language, the role and the modelled times.
        name: the model's name, which says that it is synthetic.
        num_rows: cache rows, if there is no budget.
        kv_budget_bytes: memory of the cache rows; None = `num_rows` rows.
        max_model_len: tokens of the longest sequence.
        clock: seconds, monotonic.
        sleep: waits for some seconds; a test or simulator with its own clock passes its own.
    """

    def __init__(
        self,
        spec: SyntheticSpec,
        *,
        name: str = "synthetic",
        num_rows: int = 8,
        kv_budget_bytes: int | None = None,
        max_model_len: int = DEFAULT_MAX_MODEL_LEN,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._sleep = sleep
        shape = (1, num_rows, max_model_len + MAX_DRAFT_TOKENS, 1, 1)
        self._cache = RaggedCache.within(kv_budget_bytes, *shape, dtype=torch.int64)
        self._info = ModelInfo(
            name=name,
            vocab_size=spec.vocab,
            max_model_len=max_model_len,
            num_parameters=0,
            num_weight_bytes=0,
            eos_token_ids=(EOS_TOKEN_ID,),
        )
        self._logits_by_rank = torch.arange(NUM_CANDIDATES, 0, -1) * LOGIT_GAP  # [5]

    @classmethod
    def from_config(cls, config: ModelConfig) -> SyntheticRunner:
        """Raises: ConfigError if the name has an error, or if the config asks for quantization or a device."""
        check_weightless(config)
        max_model_len = config.max_model_len or DEFAULT_MAX_MODEL_LEN
        return cls(
            parse_synthetic(config.model),
            name=config.model,
            num_rows=config.num_rows,
            kv_budget_bytes=config.kv_budget_bytes,
            max_model_len=max_model_len,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def cache(self) -> RaggedCache:
        return self._cache

    @property
    def numerics_report(self) -> str:
        return "a synthetic model is exact"

    @property
    def is_invariant(self) -> bool:
        return True

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        """Rank the next tokens after each prefix, and take the modelled time; see `ModelRunner.forward`.

        Raises: ForwardAborted once `is_obsolete` returns True. CacheRangeError if a segment does not fit into its row
            or two segments share a row; then nothing has been written. ValueError if features are wanted, because there
            are none.
        """
        if feature_layers:
            raise ValueError("a synthetic model has no features")
        started = self._clock()
        self._check(segments)
        wanted: list[int] = []
        for segment in segments:
            hashes = self._hash_segment(segment)
            wanted += hashes[len(hashes) - segment.num_logits :]
        logits = self._logits(wanted)
        num_tokens = sum(segment.num_new for segment in segments)
        modelled_s = self._spec.forward_s(len(segments), num_tokens) if segments else 0.0
        self._wait_until(started + modelled_s, is_obsolete)
        return ForwardOutput(logits)

    def token_ids(self, row: int) -> list[int]:
        """The committed tokens of a row."""
        length = self._cache.lengths[row]
        return [int(token_id) for token_id in self._cache.keys[0][row, 0, :length, 0].tolist()]

    def _check(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._cache.check_fits(segment.row, len(segment.token_ids))
        if len({segment.row for segment in segments}) < len(segments):
            raise CacheRangeError("two segments of one forward share a row")

    def _hash_segment(self, segment: Segment) -> list[int]:
        """The hash of the prefix that ends in each token of a segment. Effects: the slots behind the row's length."""
        committed = self._committed_hash(segment.row)
        hashes: list[int] = []
        for index, token_id in enumerate(segment.token_ids):
            parent = index - 1 if segment.parents is None else segment.parents[index]
            before = committed if parent < 0 else hashes[parent]
            hashes.append(_mix(before * GOLDEN + token_id + 1))
        keys = torch.tensor(segment.token_ids, dtype=torch.int64).view(1, -1, 1)
        values = torch.tensor([_signed(each) for each in hashes], dtype=torch.int64).view(1, -1, 1)
        self._cache.write(0, segment.row, keys, values)
        return hashes

    def _committed_hash(self, row: int) -> int:
        length = self._cache.lengths[row]
        if length == 0:
            return _mix(self._spec.seed + 1)
        return int(self._cache.values[0][row, 0, length - 1, 0].item()) & MASK

    def _logits(self, hashes: Sequence[int]) -> Tensor:
        """[len(hashes), V] float32."""
        logits = torch.zeros(len(hashes), self._spec.vocab)
        if not hashes:
            return logits
        ranked = torch.tensor([self._ranked(each) for each in hashes])  # [R, 5]
        return logits.scatter_(1, ranked, self._logits_by_rank.expand(len(hashes), -1))

    def _ranked(self, prefix: int) -> list[int]:
        """The candidates for the token after a prefix, best first, in the order of this runner's role."""
        choices = self._choices(prefix)
        if self._spec.role == "target":
            choices.insert(0, choices.pop(self._rank_of_truth(prefix)))
        return choices

    def _choices(self, prefix: int) -> list[int]:
        """Distinct tokens, in the draft's order."""
        choices: list[int] = []
        draw = prefix
        while len(choices) < NUM_CANDIDATES:
            draw = _mix(draw + GOLDEN)
            token_id = NUM_SPECIAL_TOKENS + draw % (self._spec.vocab - NUM_SPECIAL_TOKENS)
            if token_id not in choices:
                choices.append(token_id)
        return choices

    def _rank_of_truth(self, prefix: int) -> int:
        """The index of the target's token among the draft's choices."""
        uniform = _mix(prefix ^ WHICH_CHOICE) / (MASK + 1)
        for rank, probability in enumerate(self._spec.choice_probabilities):
            if uniform < probability:
                return rank
            uniform -= probability
        return NUM_CANDIDATES - 1

    def _wait_until(self, deadline: float, is_obsolete: Callable[[], bool] | None) -> None:
        remaining_s = deadline - self._clock()
        while is_obsolete is not None and remaining_s > LOOK_S:
            self._sleep(LOOK_S)
            if is_obsolete():
                raise ForwardAborted("the result of this forward is not needed any more")
            remaining_s = deadline - self._clock()
        if remaining_s > 0:
            self._sleep(remaining_s)


def _mix(value: int) -> int:
    """A 64-bit hash of an integer: the finalizer of SplitMix64."""
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    return value - (1 << 64) if value >> 63 else value
