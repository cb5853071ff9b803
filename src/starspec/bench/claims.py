"""What the certificate claims, and how each claim is tried.

    exact     float32, greedy: every token is the one that transformers' `generate` gives
    sampled   float32, T 0.7 and 1.0, with and without top-p: every token is that of plain decoding with the same seed
    bits      bfloat16, greedy and sampled: every token is that of plain decoding, decided by logits of the same bits
    pair      as bits, for a target and a draft that are different models
    head-exact, head-bits    as exact and bits, with an EAGLE head as draft
    batch     float32, greedy and sampled: every token is that of plain decoding alone, however a batch is laid out.
              Each layout answers every prompt. Batch sizes take turns: each of five sizes gets a fifth of the prompts
    batch-pair    as batch, for a target and a draft that are different models; shorter prompts and answers
    stages    float32, greedy and sampled: a target in 2, 3 and 4 stages, behind sockets, emits every token of the one
              that is not cut. Each number of stages answers every prompt; contenders take turns

Contenders are plain decoding in batches, prompt lookup, chains and trees of a draft model, and three wrong drafts. In
parts with one model, the draft is that model with int4 weights. The wrong drafts propose random tokens: `liar` only
such, `half-liar` after a random number of right tokens, and `lying-tree` around a path of right ones
(`random_drafts.py`). Requests of a batch have different lengths, and they join and leave while it runs. Where the size
of a batch matters, rounds wait while prompts are prefilled: otherwise short answers would end before the batch is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from starspec.config import BATCHINGS, FIXED_LENGTH, WINDOW_BATCHES, BatchingConfig, SpeculativeConfig
from starspec.harness.workbench import GREEDY, SAMPLED, Sampling

PartName = Literal["exact", "sampled", "bits", "head-exact", "head-bits", "pair", "batch", "batch-pair", "stages"]
DraftKind = Literal["off", "ngram", "draft", "tree", "liar", "half-liar", "lying-tree"]

MAX_PROMPT_TOKENS = 128  # longer prompts are left out: what they cost is prefill, which is the same with and without
MAX_MODEL_LEN = 256
QUICK_PROMPTS = 2  # of each part, by `--quick`
QUICK_TOKENS = 6  # of each answer
NUM_ROWS = 8
NUM_DRAFT_TOKENS = 4
FULL = BatchingConfig(prompts="first")
ALL_BATCHINGS = tuple(replace(FULL, method=method) for method in BATCHINGS)
CHAIN = SpeculativeConfig(
    quantization="int4", num_speculative_tokens=NUM_DRAFT_TOKENS, max_model_len=MAX_MODEL_LEN, length=FIXED_LENGTH
)
TREE = replace(CHAIN, num_steps=4, eagle_topk=3, num_draft_tokens=13)  # 12 nodes: the root counts here


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One claim, and how it is tried."""

    name: PartName
    claim: str
    dtype: Literal["float32", "bfloat16"]
    num_prompts: int
    max_tokens: int
    samplings: tuple[Sampling, ...]
    contenders: tuple[tuple[DraftKind, int], ...]  # and its batch size
    batchings: tuple[BatchingConfig, ...] = (BatchingConfig(),)  # each contender is tried with each
    stages: tuple[int, ...] = (1,)  # each contender is tried with a target in so many stages; 1 = it is not cut
    num_rows: int = NUM_ROWS
    max_model_len: int = MAX_MODEL_LEN  # or the model's own, if that is less
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    is_against_transformers: bool = False
    needs_same_bits: bool = False
    reads_prompts_once: bool = False  # each layout forwards a prompt once, and its contenders take copies of K and V
    takes_turns: bool = False  # each way of batching, and each number of stages, answers each prompt with one contender

    @property
    def num_contenders(self) -> int:
        """In all ways of batching and all numbers of stages."""
        return len(self.contenders) * len(self.batchings) * len(self.stages)

    @property
    def num_sharing(self) -> int:
        """Contenders that share the prompts."""
        return len(self.contenders) if self.takes_turns else 1

    def in_small(self) -> Part:
        """As `--quick` tries it: two ways of sampling, every other contender, each with all prompts, short answers."""
        return replace(
            self,
            samplings=self.samplings[:2],
            contenders=self.contenders[::2],
            max_tokens=min(QUICK_TOKENS, self.max_tokens),
            takes_turns=False,
        )


EXACT = Part(
    name="exact",
    claim="float32 greedy: every token is the one of transformers' generate",
    dtype="float32",
    num_prompts=200,
    max_tokens=24,
    samplings=(GREEDY,),
    contenders=(("draft", 1), ("off", 4), ("draft", 4), ("draft", 8), ("tree", 1), ("tree", 4), ("tree", 8)),
    is_against_transformers=True,
)
SAMPLED_PART = Part(
    name="sampled",
    claim="float32 sampled: every token is the one of plain decoding with the same seed",
    dtype="float32",
    num_prompts=200,
    max_tokens=12,
    samplings=SAMPLED,
    contenders=(
        ("off", 8),
        ("ngram", 4),
        ("draft", 8),
        ("tree", 8),
        ("liar", 8),
        ("half-liar", 4),
        ("lying-tree", 4),
    ),
)
BITS = Part(
    name="bits",
    claim="bfloat16, default numerics: every token is the one of plain decoding, from logits of the same bits",
    dtype="bfloat16",
    num_prompts=200,
    max_tokens=12,
    samplings=(GREEDY, *SAMPLED),
    contenders=(
        ("draft", 1),
        ("half-liar", 2),
        ("draft", 3),
        ("half-liar", 4),
        ("ngram", 5),
        ("half-liar", 6),
        ("liar", 7),
        ("draft", 8),
        ("half-liar", 12),
        ("draft", 16),
        ("tree", 1),
        ("lying-tree", 4),
        ("tree", 8),
        ("off", 16),
    ),
    batchings=(FULL,),
    num_rows=16,
    needs_same_bits=True,
)
OF_HEADS: tuple[tuple[DraftKind, int], ...] = (
    ("draft", 1),
    ("draft", 4),
    ("draft", 8),
    ("tree", 1),
    ("tree", 4),
    ("tree", 8),
)
HEAD_EXACT = replace(EXACT, name="head-exact", contenders=OF_HEADS)
HEAD_BITS = replace(BITS, name="head-bits", contenders=OF_HEADS, num_rows=NUM_ROWS)
PAIR = Part(
    name="pair",
    claim="as bits, for a target and a draft that are different models",
    dtype="bfloat16",
    num_prompts=48,
    max_tokens=8,
    samplings=(GREEDY, *SAMPLED),
    contenders=(
        ("draft", 1),
        ("half-liar", 2),
        ("lying-tree", 3),
        ("tree", 4),
        ("ngram", 5),
        ("liar", 6),
        ("off", 7),
        ("draft", 8),
    ),
    batchings=(FULL,),
    needs_same_bits=True,
)
MAX_BATCH_SIZE = 16
MAX_BATCH_PROMPT_TOKENS = 3072  # all of Spec-Bench but for a few articles
MAX_BATCH_TOKENS = 64
BATCH = Part(
    name="batch",
    claim="float32: every token is the one of plain decoding alone, ragged, realigned, grouped or rolled back; "
    "each prompt in each of these, in batches of 1, 2, 4, 8 or 16, which take turns",
    dtype="float32",
    num_prompts=480,
    max_tokens=MAX_BATCH_TOKENS,
    samplings=(GREEDY, Sampling(temperature=0.7)),
    contenders=(("draft", 1), ("half-liar", 2), ("draft", 4), ("half-liar", 8), ("draft", MAX_BATCH_SIZE)),
    batchings=ALL_BATCHINGS,
    num_rows=WINDOW_BATCHES * MAX_BATCH_SIZE,
    max_model_len=MAX_BATCH_PROMPT_TOKENS + MAX_BATCH_TOKENS,
    max_prompt_tokens=MAX_BATCH_PROMPT_TOKENS,
    reads_prompts_once=True,  # otherwise nine tenths of these forwards would prefill the same prompts again
    takes_turns=True,  # every prompt in every way of batching, a fifth of them in batches of each size: else days
)
MAX_PAIR_PROMPT_TOKENS = 512  # on a CPU, a float32 target of some gigabytes prefills so long a prompt in half a minute
PAIR_TOKENS = 24  # such a target emits one token a second
BATCH_PAIR = replace(
    BATCH,
    name="batch-pair",
    num_prompts=100,
    max_tokens=PAIR_TOKENS,
    max_model_len=MAX_PAIR_PROMPT_TOKENS + PAIR_TOKENS,
    max_prompt_tokens=MAX_PAIR_PROMPT_TOKENS,
)
STAGES = Part(
    name="stages",
    claim="float32: a target in 2, 3 and 4 stages emits every token of the one that is not cut, each prompt in each "
    "of these, with contenders that take turns",
    dtype="float32",
    num_prompts=200,
    max_tokens=24,
    samplings=(GREEDY, Sampling(temperature=0.7)),
    contenders=(("off", 4), ("draft", 1), ("half-liar", 3), ("draft", 8), ("tree", 4)),
    stages=(2, 3, 4),
    takes_turns=True,
)
