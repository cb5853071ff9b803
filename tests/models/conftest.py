import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))  # for `tiny`


@pytest.fixture
def save_with_tokenizer():
    """Save a model as a folder that has a tokenizer too, whose end token is id 0."""

    def save(model, folder):
        model.save_pretrained(folder)
        words = {f"w{index}": index for index in range(model.config.vocab_size)}
        tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(folder)
        return folder

    return save
