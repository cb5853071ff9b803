"""A target of a few thousand weights with a tokenizer of bytes, heads for it, and texts with random features."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from starspec.train.head import TrainedHead
from starspec.train.unroll import Batch

sys.path.insert(0, str(Path(__file__).parent))  # for `train_toys` and `slow_head`

from train_toys import HIDDEN, VOCAB, make_head, write_prompts

END = 257
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=END,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", [f"What is {number} times {number}?" for number in range(40)])


@pytest.fixture(params=["eagle", "eagle3"])
def head(request: pytest.FixtureRequest) -> TrainedHead:
    return make_head(request.param)


@pytest.fixture
def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(6))


MakeBatch = Callable[..., Batch]


@pytest.fixture
def make_batch() -> MakeBatch:
    """Texts of random tokens, prompts and answers of unequal length."""

    def make(head: TrainedHead, prompts: tuple[int, ...] = (3, 6, 2), answers: tuple[int, ...] = (7, 4, 8)) -> Batch:
        rng = torch.Generator().manual_seed(8)
        longest = max(map(sum, zip(prompts, answers, strict=True)))
        return Batch(
            torch.randint(0, VOCAB, (len(prompts), longest), generator=rng),
            torch.randn(len(prompts), longest, head.spec.feature_size, generator=rng),
            torch.randn(len(prompts), max(answers), HIDDEN, generator=rng),
            torch.tensor(prompts),
            torch.tensor(answers),
            torch.tensor([False] * len(prompts)),
        )

    return make
