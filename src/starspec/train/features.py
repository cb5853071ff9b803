"""The second stage: run the target over each prompt and answer, and save its hidden states to disk.

`features/shard-N.safetensors` holds some hundred texts end to end; a shard of the same texts is not made again. Shards
are mapped into memory, so a training needs room on disk (4.6 KB a token for SmolLM2-135M), not in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from starspec.errors import ConfigError
from starspec.models.loading.device import take_device
from starspec.models.loading.locate import locate
from starspec.models.loading.transformers_calls import as_model_error
from starspec.train.answer_files import TrainingAnswer
from starspec.train.unroll import Batch
from starspec.train.work_folder import writing

SHARD_TEXTS = 256
BATCH_TOKENS = 4096  # of one forward, padding included


@dataclass(frozen=True, slots=True)
class Target:
    """A transformers model that gives hidden states."""

    model: Any
    eos_token_ids: tuple[int, ...]

    @property
    def embedding(self) -> Tensor:
        """[V, C]."""
        weight: Tensor = self.model.get_input_embeddings().weight.detach()
        return weight

    @property
    def lm_head(self) -> Tensor:
        """[V, C]."""
        weight: Tensor = self.model.get_output_embeddings().weight.detach()
        return weight

    @property
    def config(self) -> Any:
        return self.model.config


def load_target(name: str, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Target:
    """Raises: ModelError if it cannot be read; ConfigError if the device does not exist."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 (seconds)

    from starspec.models.loading.tokenizer import eos_token_ids  # noqa: PLC0415

    torch_device, folder = take_device(device), locate(name)
    with as_model_error(f"'{name}' cannot be read"):
        model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype).to(torch_device).eval()
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    return Target(model, eos_token_ids(folder, tokenizer))


def collect_features(
    target: Target,
    answers: Sequence[TrainingAnswer],
    layers: Sequence[int],
    folder: Path,
    advance: Callable[[int], None],
) -> list[Text]:
    """Process every answer once. Existing shards of the same answers are kept.

    Args:
        layers: indices into `hidden_states`.
        advance: told after each shard how many texts are done.
    Returns: the texts, in the order of the answers.
    Effects: a shard that is not there, or cannot be read, is made.
    Raises: ConfigError if a shard cannot be written, or if hidden states are not finite numbers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = list[Text]()
    for start in range(0, len(answers), SHARD_TEXTS):
        path = folder / f"shard-{start // SHARD_TEXTS:04d}.safetensors"
        part = list(answers[start : start + SHARD_TEXTS])
        if not _holds(path, part):
            _write_shard(target, part, layers, path)
        texts += read_shard(path)
        advance(len(texts))
    return texts


class Text:
    """One prompt and answer with the target's hidden states: a view into a shard."""

    def __init__(self, shard: dict[str, Tensor], index: int) -> None:
        self._shard = shard
        start, self.prompt_length, self.answer_length, has_end, self.index, is_greedy = shard["texts"][index].tolist()
        self._span = slice(start, start + self.prompt_length + self.answer_length)
        self.has_end, self.is_greedy = bool(has_end), bool(is_greedy)

    def __len__(self) -> int:
        return int(self.prompt_length + self.answer_length)

    def learnt_from(self, position: int) -> Text:
        """The same text, where everything after its first `position` tokens (at least 1) counts as the answer."""
        other = copy(self)
        other.prompt_length = min(self.prompt_length, position)
        other.answer_length = len(self) - other.prompt_length
        return other

    @property
    def token_ids(self) -> Tensor:
        return self._shard["token_ids"][self._span]

    @property
    def features(self) -> Tensor:
        return self._shard["features"][self._span]

    @property
    def last_hidden(self) -> Tensor:
        return self._shard["last_hidden"][self._span][self.prompt_length :]


def _holds(path: Path, answers: Sequence[TrainingAnswer]) -> bool:
    """Whether a shard exists, is complete and holds these answers. With more answers, shards are cut differently."""
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            found = file.get_tensor("token_ids")
    except SafetensorError:
        return False
    return torch.equal(found, torch.tensor(_token_ids(answers), dtype=found.dtype))


def _token_ids(answers: Sequence[TrainingAnswer]) -> list[int]:
    return [each for answer in answers for each in answer.token_ids]


def read_shard(path: Path) -> list[Text]:
    """The texts of one shard. Their tensors stay on disk until they are used."""
    with safe_open(path, framework="pt") as file:
        shard = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    return [Text(shard, index) for index in range(len(shard["texts"]))]


def collate(texts: Sequence[Text]) -> Batch:
    """Put texts into one padded batch."""
    longest = max(map(len, texts))
    num_anchors = max(text.answer_length for text in texts)
    first = texts[0]
    token_ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    features = torch.zeros(len(texts), longest, first.features.shape[1], dtype=first.features.dtype)
    last_hidden = torch.zeros(len(texts), num_anchors, first.last_hidden.shape[1], dtype=first.last_hidden.dtype)
    for index, text in enumerate(texts):
        token_ids[index, : len(text)] = text.token_ids
        features[index, : len(text)] = text.features
        last_hidden[index, : text.answer_length] = text.last_hidden
    return Batch(
        token_ids,
        features,
        last_hidden,
        torch.tensor([text.prompt_length for text in texts]),
        torch.tensor([text.answer_length for text in texts]),
        torch.tensor([text.has_end for text in texts]),
    )


def batches_of(lengths: Sequence[int], indices: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Divide indices into batches of at most `max_tokens`, padding included."""
    batch, longest = list[int](), 0
    for index in indices:
        longest = max(longest, lengths[index])
        if batch and longest * (len(batch) + 1) > max_tokens:
            yield batch
            batch, longest = [], lengths[index]
        batch.append(index)
    if batch:
        yield batch


@torch.inference_mode()
def _write_shard(target: Target, answers: Sequence[TrainingAnswer], layers: Sequence[int], path: Path) -> None:
    lengths = [len(answer.token_ids) for answer in answers]
    found = dict[int, tuple[Tensor, Tensor]]()
    by_length = sorted(range(len(answers)), key=lambda index: lengths[index])
    for batch in batches_of(lengths, by_length, BATCH_TOKENS):
        token_ids = torch.zeros(len(batch), max(lengths[index] for index in batch), dtype=torch.int64)
        for line, index in enumerate(batch):
            token_ids[line, : lengths[index]] = torch.tensor(answers[index].token_ids)
        states = target.model.model(  # padding comes after the text, so causal attention ignores it
            token_ids.to(target.embedding.device), output_hidden_states=True, use_cache=False
        ).hidden_states
        joined = torch.cat([*(states[layer] for layer in layers), states[-1]], -1).to(torch.bfloat16)
        is_finite = bool(joined.isfinite().all())
        sizes = [joined.shape[-1] - states[-1].shape[-1], states[-1].shape[-1]]
        joined, last = torch.split(joined.cpu(), sizes, dim=-1)
        if not is_finite:
            raise ConfigError(
                f"hidden states of the target in {target.embedding.dtype} are not finite numbers, in answers to "
                f"prompts {min(answers[index].index for index in batch)} to "
                f"{max(answers[index].index for index in batch)}: "
                "a head could not learn from them; try another --dtype"
            )
        for line, index in enumerate(batch):
            found[index] = joined[line, : lengths[index]].clone(), last[line, : lengths[index]].clone()
    table, start = [], 0
    for answer, length in zip(answers, lengths, strict=True):
        has_end = answer.answer_ids[-1] in target.eos_token_ids
        table.append(
            [start, len(answer.prompt_ids), len(answer.answer_ids), has_end, answer.index, answer.temperature == 0]
        )
        start += length
    whole = {
        "texts": torch.tensor(table, dtype=torch.int64),
        "token_ids": torch.tensor(_token_ids(answers), dtype=torch.int32),
        "features": torch.cat([found[index][0] for index in range(len(answers))]),
        "last_hidden": torch.cat([found[index][1] for index in range(len(answers))]),
    }
    unfinished = path.with_suffix(".part")
    with writing(path):
        save_file(whole, unfinished)
        unfinished.replace(path)
