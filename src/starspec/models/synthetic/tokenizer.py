"""The tokenizer of synthetic models. Every token is a short word, so text works as with a real model."""

from __future__ import annotations

from typing import Any

from starspec.models.synthetic.spec import EOS_TOKEN_ID, NUM_SPECIAL_TOKENS, parse_synthetic

SPECIAL_TOKENS = ("<eos>", "<unk>", "<user>", "<assistant>")
SYLLABLES = [consonant + vowel for consonant in "bdfghklmnprstvz" for vowel in "aeiou"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ 'assistant' if message['role'] == 'assistant' else 'user' }}> "
    "{{ message['content'] }} {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def synthetic_tokenizer(model: str) -> Any:
    """The tokenizer of `synthetic:...`: words are separated by spaces, and unknown words become `<unk>`.

    Returns: a transformers tokenizer with a chat template.
    Raises: ConfigError if the name has an error.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 (with transformers a second to import; runners do without)
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer(WordLevel(synthetic_vocabulary(model), unk_token="<unk>"))  # noqa: S106 (no password)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[EOS_TOKEN_ID],
        unk_token="<unk>",  # noqa: S106
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def synthetic_vocabulary(model: str) -> dict[str, int]:
    """Token -> id, of `synthetic:...`. Raises: ConfigError if the name has an error."""
    return {word(token_id): token_id for token_id in range(parse_synthetic(model).vocab)}


def word(token_id: int) -> str:
    """The text of one token: at least two syllables, different for every id."""
    if token_id < NUM_SPECIAL_TOKENS:
        return SPECIAL_TOKENS[token_id]
    rest, last = divmod(token_id, len(SYLLABLES))
    text = SYLLABLES[last]
    while True:
        rest, digit = divmod(rest, len(SYLLABLES))
        text = SYLLABLES[digit] + text
        if rest == 0:
            return text
