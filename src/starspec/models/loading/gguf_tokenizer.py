"""The tokenizer of a .gguf file: built from what the file says, and compared with it, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starspec.models.loading.pre_tokenizers import pre_tokenizer_named

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # llama.cpp's types of tokens that a text may spell out
SPECIAL_TOKENS: Final = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
SPACE_PIECE: Final = "\u2581"  # the space of SentencePiece


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What a .gguf file says about its tokenizer."""

    kind: str  # "gpt2" for byte-level BPE, "llama" for SentencePiece
    pre_tokenizer: str | None
    tokens: list[str]  # by id
    types: list[int]  # of each token; empty if the file has none
    merges: list[str]
    special: dict[str, int]  # transformers' name -> id
    adds_space: bool | None  # before a text, of SentencePiece; None stands for yes
    adds_bos: bool | None
    adds_eos: bool | None
    chat_template: str | None


def read_vocabulary(value: Callable[[str], Any]) -> GgufVocabulary:
    """Read it from a file's metadata.

    Args:
        value: gives the value of a key, or None.
    Raises: ValueError if there are no tokens, or if a special token is not one of them.
    """
    tokens = value("tokenizer.ggml.tokens")
    if not tokens:
        raise ValueError("it has no tokenizer")
    special = {name: token_id for name, key in SPECIAL_TOKENS.items() if (token_id := value(key)) is not None}
    for name, token_id in special.items():
        if token_id >= len(tokens):
            raise ValueError(f"its {name} has id {token_id}, but its last token has id {len(tokens) - 1}")
    return GgufVocabulary(
        kind=value("tokenizer.ggml.model"),
        pre_tokenizer=value("tokenizer.ggml.pre"),
        tokens=tokens,
        types=value("tokenizer.ggml.token_type") or [],
        merges=value("tokenizer.ggml.merges") or [],
        special=special,
        adds_space=value("tokenizer.ggml.add_space_prefix"),
        adds_bos=value("tokenizer.ggml.add_bos_token"),
        adds_eos=value("tokenizer.ggml.add_eos_token"),
        chat_template=value("tokenizer.chat_template"),
    )


def byte_level_tokenizer(vocabulary: GgufVocabulary, model: str) -> Any:
    """The tokenizer of a byte-level BPE vocabulary, with the file's own spelling of every token.

    transformers would split control tokens with characters outside the byte alphabet, and it reads a pre-tokenizer that
    it does not know as GPT-2's.

    Args:
        model: name for the error message.
    Returns: a transformers tokenizer.
    Raises: ModelError if the pre-tokenizer is not known; ValueError if a merge is not one of two tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models  # noqa: PLC0415 (slow to import)
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    pre_tokenizer = pre_tokenizer_named(vocabulary.pre_tokenizer, model)
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in vocabulary.merges)]
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre_tokenizer.ignores_merges))
    backend.pre_tokenizer = pre_tokenizer.build()
    backend.decoder = decoders.ByteLevel()
    typed = list(zip(vocabulary.tokens, vocabulary.types, strict=False))
    control = [token for token, kind in typed if kind in (UNKNOWN, CONTROL)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    user_defined = [token for token, kind in typed if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_defined])
    has_bos = "bos_token" in vocabulary.special
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        add_bos_token=pre_tokenizer.adds_bos and has_bos if vocabulary.adds_bos is None else vocabulary.adds_bos,
        add_eos_token=bool(vocabulary.adds_eos),
        chat_template=vocabulary.chat_template,
        clean_up_tokenization_spaces=False,
        **{name: vocabulary.tokens[token_id] for name, token_id in vocabulary.special.items()},
    )


def check_tokenizer(vocabulary: GgufVocabulary, tokenizer: Any, num_rows: int) -> None:
    """Compare a converted tokenizer with the file.

    Args:
        tokenizer: a transformers tokenizer, as it will be loaded.
        num_rows: of the model's embedding.
    Raises: ValueError with the first difference.
    """
    tokens = vocabulary.tokens
    if num_rows != len(tokens):
        raise ValueError(f"it has {len(tokens)} tokens, but its embedding has {num_rows} rows")
    for token_id, (token, found) in enumerate(
        zip(tokens, tokenizer.convert_ids_to_tokens(list(range(len(tokens)))), strict=True)
    ):
        if token != found and (vocabulary.kind == "gpt2" or found is None or _spelled(token) != _spelled(found)):
            raise ValueError(f"token {token_id} is {token!r} in the file and {found!r} in the converted tokenizer")
    largest, last = max((token_id, token) for token, token_id in tokenizer.get_vocab().items())
    if largest >= len(tokens):
        raise ValueError(f"the converted tokenizer has a token {largest}, {last!r}, behind the file's last one")
    for name, token_id in vocabulary.special.items():
        if (found := getattr(tokenizer, f"{name}_id")) != token_id:
            raise ValueError(f"its {name} has id {token_id} in the file and {found} in the converted tokenizer")
    if vocabulary.kind == "llama" and vocabulary.adds_space is False and tokenizer.tokenize("a")[0] != "a":
        raise ValueError("a text gets no space before it in the file, and one in the converted tokenizer")


def _spelled(token: str) -> str:
    """transformers spells the spaces of some SentencePiece vocabularies in the other of two ways."""
    return token.replace(SPACE_PIECE, " ")
