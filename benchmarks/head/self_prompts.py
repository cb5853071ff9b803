"""Prompts that a chat model makes up itself: `python self_prompts.py MODEL OUT.jsonl NUM SEED [all|chat [cpu|cuda]]`.

Given only the beginning of a user's turn, it writes what it believes that users ask (Magpie, Xu et al., 2024). That is
as varied as what it was tuned on, and nobody's text: neither a benchmark nor a data set is looked at. Some turns are
begun with a few words, so that functions (not with `chat`) and tasks are asked for more often than they come by chance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from starspec import LLM, SamplingParams

MIN_CHARS, MAX_TOKENS = 12, 160
AT_ONCE = {"cpu": 64, "cuda": 256}
MIN_P = 0.05  # cheaper than top-p, which sorts
MARK = "@@@"
CODE = ("def ", "def ", "from typing import List\n\n\ndef ", "from typing import ", "import math\n\n\ndef ")
WORDS = ("Write a", "Write a", "Explain", "Imagine", "Pretend", "Given", "Describe", "Draft", "Suppose", "Compose")
WORDS += ("What is", "How many", "Compare", "Implement", "Provide", "Discuss", "Help me", "Read the", "Please", "A")
CHAT = ("",) * 20 + WORDS
BEGINNINGS = {"all": CHAT + CODE + CODE, "chat": CHAT}


def main(model: str, out: Path, num: int, seed: int, kind: str = "all", device: str = "cpu") -> None:
    """Write the prompts as they come; those that do not end, or come twice, are left out."""
    at_once = AT_ONCE[device]
    llm = LLM(
        model=model,
        dtype="bfloat16",
        device=device,
        num_threads=1,
        numerics="fast",
        max_num_seqs=at_once,
        max_model_len=256,
    )
    chat = llm.tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    opening = chat[: chat.index(MARK)]
    begun = {
        each: llm.tokenizer.encode(opening + each.rstrip(" "), add_special_tokens=False) for each in BEGINNINGS[kind]
    }
    seen = set[str]()
    with out.open("w") as file:
        for start in range(0, num, 4 * at_once):
            places = range(start, min(num, start + 4 * at_once))
            beginnings = [BEGINNINGS[kind][place % len(BEGINNINGS[kind])] for place in places]
            params = [
                SamplingParams(temperature=1.0, min_p=MIN_P, max_tokens=MAX_TOKENS, seed=1_000_000 * seed + place)
                for place in places
            ]
            results = llm.generate([begun[beginning] for beginning in beginnings], params)
            for place, beginning, result in zip(places, beginnings, results, strict=True):
                said = result.outputs[0]
                text = asked(beginning, said.text, has_ended=said.finish_reason == "stop")
                if text and text not in seen:
                    seen.add(text)
                    file.write(json.dumps({"id": f"self/{seed}/{place}", "category": "self", "turns": [text]}) + "\n")
            file.flush()


def asked(beginning: str, said: str, *, has_ended: bool) -> str | None:
    """The whole turn, or None if it is of no use; a function is asked for with its head and docstring."""
    text = beginning.rstrip(" ") + said
    if beginning in CODE:
        head, *docstring = text.split('"""', 2)
        if len(docstring) == 2:
            return f'{head}"""{docstring[0]}"""\n'
    return text.strip() if has_ended and len(text.strip()) >= MIN_CHARS else None


if __name__ == "__main__":
    model, out, num, seed, *kind_and_device = sys.argv[1:]
    main(model, Path(out), int(num), int(seed), *kind_and_device)
