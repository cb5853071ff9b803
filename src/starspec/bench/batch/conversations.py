"""Whole conversations as requests: each turn with all turns and answers before it ("Batch Speculative Decoding Done
Right", section 4.4).

The answers inside a prompt are those of plain decoding. So a request does not depend on the methods that are compared,
and every method can be checked against one reference.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starspec.engine.drafts import NoDrafts
from starspec.harness.datasets import CONTINUED, Prompt, prompt_token_ids
from starspec.harness.decode import Job, decode, make_engine
from starspec.harness.workbench import Sampling, Workbench
from starspec.models.loading.tokenizer import prompt_ids_of_chat

SHUFFLE_SEED = 0


@dataclass(slots=True)
class _Conversation:
    prompt: Prompt
    text: str = ""  # all turns so far, for text to continue and for models without a chat template
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, tokenizer: Any, turn: int) -> list[int]:
        """The tokens of a turn's prompt, and of all before it."""
        said = (self.prompt.text, *self.prompt.later_turns)[turn]
        if turn == 0:
            self.text, self.messages = said, [{"role": "user", "content": said}]
            return prompt_token_ids(tokenizer, self.prompt)
        self.text += f"\n{said}"
        self.messages.append({"role": "user", "content": said})
        if self.prompt.category == CONTINUED or not tokenizer.chat_template:
            return list(tokenizer.encode(self.text))
        return prompt_ids_of_chat(tokenizer, self.messages)

    def hear(self, answer: str) -> None:
        self.text += answer
        self.messages.append({"role": "assistant", "content": answer})


def conversation_jobs(
    bench: Workbench, prompts: Sequence[Prompt], sampling: Sampling, max_tokens: int, max_prompt_tokens: int
) -> list[Job]:
    """One request for each turn of each prompt, shuffled, so that lengths are mixed.

    Args:
        max_prompt_tokens: a conversation ends before a turn whose prompt would be longer.
    Raises: RequestError if the chat template cannot process a conversation.
    Effects: decodes every turn plainly.
    """
    jobs: list[Job] = []
    talking = [_Conversation(prompt) for prompt in prompts]
    for turn in range(max(len(prompt.later_turns) for prompt in prompts) + 1):
        asked = [(each, each.ask(bench.tokenizer, turn)) for each in talking if turn <= len(each.prompt.later_turns)]
        asked = [(each, token_ids) for each, token_ids in asked if len(token_ids) <= max_prompt_tokens]
        talking = [each for each, _ in asked]
        now = [
            Job(f"{each.prompt.name}/{turn + 1}", tuple(ids), bench.sampling_spec(sampling, len(jobs) + i), max_tokens)
            for i, (each, ids) in enumerate(asked)
        ]
        jobs += now
        engine = make_engine(bench.runner, bench.tokenizer, NoDrafts())
        for each, answer in zip(talking, decode(engine, now, batch_size=bench.runner.cache.num_rows), strict=True):
            each.hear(bench.tokenizer.decode(answer.token_ids, skip_special_tokens=True))
    random.Random(SHUFFLE_SEED).shuffle(jobs)  # noqa: S311 (not for secrets)
    return jobs
