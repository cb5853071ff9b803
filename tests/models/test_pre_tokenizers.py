"""The pre-tokenizers of .gguf files, against those of the original checkpoints' tokenizer.json."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from starspec.errors import ModelError
from starspec.models.loading.pre_tokenizers import CASED, KNOWN, pre_tokenizer_named

TEXTS = st.text(st.sampled_from("aZéß \t\r\n0١9½'sTLl.,$+`_~/<>«！　一日ぁかヴ한ǅªʔ\u0301🚀"), max_size=24)
BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BYTES_OF_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def split(expression: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(expression), behavior="isolated")


ORIGINALS = {
    "gpt-2": [BYTES_OF_GPT2],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), BYTES_OF_GPT2],
    "falcon": [pre_tokenizers.Punctuation("contiguous"), BYTES_OF_GPT2, split("[0-9][0-9][0-9]")],
    "deepseek-coder": [
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split("[一-龥ࠀ-一가-\ud7ff]+"),
        pre_tokenizers.Digits(individual_digits=True),
        BYTES_ONLY,
    ],
    "stablelm2": [split(GGUF_PRE_TOKENIZER_SPLITS["qwen2"]), BYTES_ONLY],
}
ORIGINALS |= {name: [split(each), BYTES_ONLY] for name, each in GGUF_PRE_TOKENIZER_SPLITS.items()}


def pieces(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", ORIGINALS)
@given(text=TEXTS)
def test_pieces_are_those_of_the_original(name: str, text: str) -> None:
    original = pre_tokenizers.Sequence(ORIGINALS[name])
    assert pieces(pre_tokenizer_named(name, "m").build(), text) == pieces(original, text)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gpt-2", ["ab", "ĠcD", "Ġ1234", "'s", "ĠĠ", "Ġx", "!!", "Ċ"]),
        ("default", ["ab", "ĠcD", "Ġ", "123", "4", "'", "s", "ĠĠ", "Ġx", "!!", "Ċ"]),
        ("llama-bpe", ["ab", "ĠcD", "Ġ", "123", "4", "'s", "ĠĠ", "Ġx", "!!Ċ"]),
        ("stablelm2", ["ab", "ĠcD", "Ġ", "1", "2", "3", "4", "'s", "ĠĠ", "Ġx", "!!Ċ"]),
        ("gpt-4o", ["ab", "Ġc", "D", "Ġ", "123", "4", "'s", "ĠĠ", "Ġx", "!!Ċ"]),
        ("deepseek-llm", ["ab", "ĠcD", "Ġ", "1", "2", "3", "4", "'", "s", "ĠĠ", "Ġx", "!!", "Ċ"]),
        ("deepseek-coder", ["ab", "ĠcD", "Ġ", "1", "2", "3", "4", "'", "s", "ĠĠ", "Ġx", "!!", "Ċ"]),
        ("deepseek-v3", ["ab", "ĠcD", "Ġ", "123", "4", "'s", "ĠĠ", "Ġx", "!!Ċ"]),
    ],
)
def test_one_text_has_the_pieces_of_each(name: str, wanted: list[str]) -> None:
    assert pieces(pre_tokenizer_named(name, "m").build(), "ab cD 1234's   x!!\n") == wanted


def test_what_deepseek_llm_calls_cased_are_letters_and_its_ranges_are_in_order() -> None:
    ends = CASED.replace("A-Za-z", "").replace("-", "")
    assert list(ends) == sorted(set(ends))
    assert ends.isalpha()


@pytest.mark.parametrize("name", KNOWN)
def test_every_expression_is_one(name: str) -> None:
    assert "".join(pieces(pre_tokenizer_named(name, "m").build(), "a1 b")) == "a1Ġb"


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ModelError, match=r"'m.gguf' cannot be converted: .* 'invented' is not known.*gpt-2.*qwen2"):
        pre_tokenizer_named("invented", "m.gguf")
