"""What a head would gain by running ahead: `benchmarks/head/run_ahead.py TARGET HEAD OUT.json PROMPTS.jsonl ...`.

A proposal that is ready when the verdict comes stands on features that the head guessed itself: of all tokens that the
verdict commits. Where the target's own answers are known, so is what it would accept of any such proposal, and no
engine is needed. For each prompt the target answers greedily; from every position on, chains are drawn with
the target's features of all positions before (fresh), and with those of none of the last k (stale by k).

Nothing is timed. What rounds would take follows from one number, a head's layer as a part of a verification.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import Tensor

from starspec import LLM, SamplingParams
from starspec.harness.datasets import Prompt, prompt_token_ids, read_prompts, spread
from starspec.harness.provenance import collect_provenance
from starspec.models.heads.checkpoint import read_head
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.train.answer_files import TrainingAnswer
from starspec.train.features import Target, Text, collate, collect_features, load_target
from starspec.train.head import TrainedHead
from starspec.train.unroll import Batch, unroll

NUM_PROMPTS: Final = 24
MAX_TOKENS: Final = 128
LENGTHS: Final = (2, 3, 4, 5)  # of chains
NUM_OUTCOMES: Final = 4  # tokens that are prepared for at each end, as policy/run_ahead.py has it
KINDS: Final = ("off", "chain", "outcomes", "near")  # what is prepared
NUM_NEAR: Final = 2  # near: outcomes that stand on no more guessed features than that
LAYERS: Final = (0.02, 0.05, 0.083, 0.15, 0.3)  # of a verification; 0.083 is SmolLM2's (bench tree)


@dataclass(slots=True)
class Found:
    """Of one text: whether the answer's token is the head's first choice, or among its first few."""

    first: list[list[bool]]  # [anchor][steps from it]
    among: list[list[bool]]
    num_tokens: int


@dataclass(slots=True)
class Rounds:
    """Of chains of one length."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_hits: int = 0  # rounds whose next proposal was prepared
    by_staleness: dict[int, list[int]] = field(default_factory=dict)  # [rounds, tokens, tokens if it had been fresh]

    def rate(self, length: int, layer: float) -> float:
        """Tokens in the time of a verification: a hit spares the layers."""
        return self.num_tokens / (self.num_rounds + (self.num_rounds - self.num_hits) * length * layer)


def main(target_name: str, head_name: str, out: Path, files: Sequence[Path]) -> None:
    """Effects: writes `out`."""
    torch.manual_seed(0)
    texts, target, head, draft_token_ids = read(target_name, head_name, [read_prompts(file) for file in files])
    with torch.inference_mode():
        found = [look(head, text, target, draft_token_ids) for text in texts]
    kinds = {kind: {length: served(found, length, kind) for length in LENGTHS} for kind in KINDS}
    report = {
        "provenance": asdict(collect_provenance({"target": target_name, "head": head_name})),
        "best_vs_best_off": {str(layer): best_vs_best_off(kinds, layer) for layer in LAYERS},
        "rows": [row(kind, length, rounds) for kind in KINDS for length, rounds in kinds[kind].items()],
        "right_by_step": right_by_step(found),
    }
    out.write_text(json.dumps(report, indent=2) + "\n")


def read(
    target_name: str, head_name: str, files: Sequence[Sequence[Prompt]]
) -> tuple[list[Text], Target, TrainedHead, Tensor | None]:
    """The target's answers with what it thought, and both models; all in float32 but the features, as on the wire."""
    prompts = [prompt for file in files for prompt in spread(file, NUM_PROMPTS // len(files))]
    tokenizer = load_tokenizer(target_name)
    prompt_ids = [prompt_token_ids(tokenizer, prompt) for prompt in prompts]
    llm = LLM(target_name, max_model_len=2048, max_num_seqs=4, dtype="float32")
    said = llm.generate(prompt_ids, SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    answers = [
        TrainingAnswer(index=index, prompt_ids=ids, answer_ids=list(result.outputs[0].token_ids))
        for index, (ids, result) in enumerate(zip(prompt_ids, said, strict=True))
    ]
    target, weights = load_target(target_name, torch.float32), read_head(head_name)
    head = TrainedHead(weights.spec)
    head.load_state_dict({name: weights.tensors[name].float() for name in head.state_dict()})
    with TemporaryDirectory() as folder:
        texts = collect_features(target, answers, weights.spec.feature_layers, Path(folder), lambda _: None)
    return texts, target, head, weights.draft_token_ids


def look(head: TrainedHead, text: Text, target: Target, draft_token_ids: Tensor | None) -> Found:
    """What the head says from every anchor, in as many steps as the longest chain behind another needs."""
    batch, num_steps = collate([text]), 2 * max(LENGTHS) + 1
    rows = target.lm_head if draft_token_ids is None else target.lm_head[draft_token_ids]
    first, among = [], []
    for step, h in enumerate(unroll(head, batch, target.embedding, num_steps)):
        choices = (head.spoken(h[0]) @ rows.T).topk(NUM_OUTCOMES).indices  # [A, NUM_OUTCOMES]
        choices = choices if draft_token_ids is None else draft_token_ids[choices]
        is_it = choices == true_tokens(batch, step)[:, None]
        first.append(is_it[:, 0])
        among.append(is_it.any(-1))
    return Found(torch.stack(first, -1).tolist(), torch.stack(among, -1).tolist(), int(batch.answer_lengths[0]))


def true_tokens(batch: Batch, step: int) -> Tensor:
    """[A]: the token that step `step` from each anchor is to say; -1 beyond the end."""
    places = batch.anchors[0] + 2 + step
    last = int(batch.prompt_lengths[0] + batch.answer_lengths[0])
    tokens = batch.token_ids[0, places.clamp(max=last - 1)]
    return torch.where(places < last, tokens, -1)


def served(found: Sequence[Found], length: int, kind: str) -> Rounds:
    """Decode every answer with chains of `length`.

    A hit's proposal begins at the anchor of the round before, whose features are known: so many steps further on as
    that round committed tokens. That is the best that running ahead can do: every outcome is prepared in time.
    """
    rounds = Rounds()
    for text in found:
        start, stale = 0, 0  # the proposal's first token is step `stale` of anchor `start - stale`
        while start + 1 < text.num_tokens:
            left = text.num_tokens - 1 - start
            num_right = leading(text.first[start - stale][stale : stale + length])
            num_fresh = leading(text.first[start][:length])
            gained = min(num_right + 1, left)
            counts = rounds.by_staleness.setdefault(stale, [0, 0, 0])
            for place, number in enumerate((1, gained, min(num_fresh + 1, left))):
                counts[place] += number
            is_hit = is_prepared(text, start, num_right, length, kind)
            rounds.num_tokens, rounds.num_rounds = rounds.num_tokens + gained, rounds.num_rounds + 1
            rounds.num_hits += is_hit
            start, stale = start + gained, gained if is_hit else 0
    return rounds


def is_prepared(text: Found, anchor: int, num_right: int, length: int, kind: str) -> bool:
    """Whether the target's token after the accepted ones is one that was prepared for."""
    match kind:
        case "chain":
            return num_right == length and text.first[anchor][length]
        case "outcomes":
            return text.among[anchor][num_right]
        case "near":
            return num_right < NUM_NEAR and text.among[anchor][num_right]
    return False


def best_vs_best_off(kinds: Mapping[str, Mapping[int, Rounds]], layer: float) -> dict[str, float]:
    """The rate of each kind with its best length, against that of waiting with its own."""
    best = {kind: max(each.rate(length, layer) for length, each in rows.items()) for kind, rows in kinds.items()}
    return {kind: round(rate / best["off"], 3) for kind, rate in best.items()}


def row(kind: str, length: int, rounds: Rounds) -> dict[str, object]:
    """One kind with chains of one length, as it is written down."""
    return {
        "kind": kind,
        "length": length,
        "tokens_a_round": round(rounds.num_tokens / rounds.num_rounds, 3),
        "hit_rate": round(rounds.num_hits / rounds.num_rounds, 3),
        "tokens_a_round_by_staleness": {
            str(stale): {"rounds": count, "stale": round(tokens / count, 3), "fresh": round(fresh / count, 3)}
            for stale, (count, tokens, fresh) in sorted(rounds.by_staleness.items())
        },
    }


def right_by_step(found: Sequence[Found]) -> list[float]:
    """Share of all positions at which the head's first choice is right so many steps from the last feature."""
    shares = []
    for step in range(2 * max(LENGTHS) + 1):
        flags = [line[step] for text in found for line in text.first[: text.num_tokens - 1 - step]]
        shares.append(round(sum(flags) / max(1, len(flags)), 4))
    return shares


def leading(flags: Sequence[bool]) -> int:
    """How many are true before the first that is not."""
    return flags.index(False) if False in flags else len(flags)


if __name__ == "__main__":
    target, head, out, *files = sys.argv[1:]
    main(target, head, Path(out), [Path(file) for file in files])
