"""The pre-tokenizers of byte-level BPE that .gguf files name in `tokenizer.ggml.pre`, as llama.cpp defines them.

A text is split by each expression in turn, and merges happen only within the pieces. So a tokenizer with another
expression gives other token ids, and the model answers worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starspec.errors import ModelError
from starspec.quoting import quoted

# the letters with upper and lower case that DeepSeek LLM's expression lists
CASED: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
CJK: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"  # ideographs, Hiragana, Katakana
EAST_ASIAN: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# words with the character before them, then digits one by one (Qwen 2) or in groups of three (Llama 3)
UNCONTRACTED: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2: Final = CONTRACTIONS + "|" + UNCONTRACTED
LLAMA3: Final = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
QWEN35: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
# words are also split before capitals
LOWER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
SYMBOLS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
TEKKEN: Final = f"{LOWER}|{UPPER}|\\p{{N}}|{SYMBOLS}"
GPT4O: Final = f"{LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?|\\p{{N}}{{1,3}}|{SYMBOLS}"
DEEPSEEK_V3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES
)
BAILING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED: Final = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text becomes the pieces within which merges happen."""

    splits: tuple[str, ...]  # expressions; every match and everything between matches is a piece
    ignores_merges: bool = False  # a piece that is a token is that token, even where no merges lead to it
    adds_bos: bool = False  # where the file does not say whether a text begins with the BOS token

    def build(self) -> Any:
        """The same as a pre-tokenizer of the `tokenizers` library, for a byte-level vocabulary."""
        from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415 (a converted model needs none of this)

        splits = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in self.splits]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, to_bytes])


FAMILIES: Final = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling": PreTokenizer((GPT2,)),
    "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2": PreTokenizer((r"\p{N}", GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (LLAMA3,), ignores_merges=True, adds_bos=True
    ),
    "dbrx smaug-bpe glm4 chatglm-bpe": PreTokenizer((LLAMA3,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")), ignores_merges=True),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer((QWEN2,)),
    "ufakzeka": PreTokenizer((UNCONTRACTED,)),
    "qwen35": PreTokenizer((QWEN35,)),
    "tekken": PreTokenizer((TEKKEN,), ignores_merges=True, adds_bos=True),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((GPT4O,)),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            EAST_ASIAN,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}")),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer((r"\p{N}{1,3}", CJK, DEEPSEEK_V3)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((BAILING,)),
    "seed-coder": PreTokenizer((SEED,)),
}
KNOWN: Final = {name: found for names, found in FAMILIES.items() for name in names.split()}


def pre_tokenizer_named(name: str | None, model: str) -> PreTokenizer:
    """The pre-tokenizer of that name.

    Args:
        name: as a file has it. None stands for llama.cpp's default.
        model: name for the error message.
    Raises: ModelError that lists the known names.
    """
    found = KNOWN.get(name or "default")
    if found is None:
        raise ModelError(
            f"'{model}' cannot be converted: its pre-tokenizer {quoted(name)} is not known; give the original "
            f"checkpoint, or a file with one of these: {', '.join(sorted(KNOWN))}"
        )
    return found
