"""Heads and texts in small."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from starspec.cli import run
from starspec.models.heads.spec import HeadSpec
from starspec.train.features import Text
from starspec.train.head import TrainedHead
from starspec.train.trainer import TrainingStage
from starspec.train.unroll import Batch

VOCAB, HIDDEN = 260, 32
STAGE = TrainingStage(0, "a hash", 400, 1e-3)
QUICK = {"--num-tokens": "400", "--max-new-tokens": "16", "--batch": "8", "--steps": "6", "--num-threads": "1"}


def train(target: Path, prompts: Path, out: Path, *more: str) -> int:
    """`starspec train` within this process. Returns: its exit code."""
    quick = [word for option, value in QUICK.items() if option not in more for word in (option, value)]
    return run(["train", "--target", str(target), "--prompts", str(prompts), "--out", str(out), *quick, *more])


def write_prompts(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in texts))
    return path


def make_head(method: str) -> TrainedHead:
    spec = HeadSpec(
        method=method,  # type: ignore[arg-type]
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        feature_layers=(6,) if method == "eagle" else (2, 3, 4),
        max_position_embeddings=256,
    )
    torch.manual_seed(5)
    made = TrainedHead(spec)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2 if "norm" in name else torch.randn_like(parameter) * 0.1)
    return made


def texts_of(batch: Batch) -> list[Text]:
    """The batch as a shard holds it."""
    lengths = (batch.prompt_lengths + batch.answer_lengths).tolist()
    starts = [sum(lengths[:line]) for line in range(len(lengths))]
    table = [
        [start, int(prompt), int(answer), 0, line + 1, 1]
        for line, (start, prompt, answer) in enumerate(
            zip(starts, batch.prompt_lengths, batch.answer_lengths, strict=True)
        )
    ]
    last = [
        torch.cat([torch.zeros(int(p), 32), batch.last_hidden[i, : int(a)]]) for i, (_, p, a, *_) in enumerate(table)
    ]
    shard = {
        "texts": torch.tensor(table),
        "token_ids": torch.cat([batch.token_ids[i, :n] for i, n in enumerate(lengths)]).int(),
        "features": torch.cat([batch.features[i, :n] for i, n in enumerate(lengths)]),
        "last_hidden": torch.cat(last),
    }
    return [Text(shard, line) for line in range(len(lengths))]
