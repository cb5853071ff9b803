"""The target's log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.gateway.replies import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenAlternative
from starspec.gateway.token_text import TokenText
from starspec.wire.messages import TokenLogprob


def chat_logprobs(entries: Sequence[TokenLogprob], tokens: TokenText, num_top: int) -> ChatLogprobs:
    """One entry a token, with its `num_top` most likely alternatives."""
    return ChatLogprobs(
        [
            ChatTokenLogprob(
                token=tokens.text_of(entry.token_id),
                logprob=entry.logprob,
                bytes=list(tokens.bytes_of(entry.token_id)),
                top_logprobs=[_alternative(token_id, lp, tokens) for token_id, lp in entry.top[:num_top]],
            )
            for entry in entries
        ]
    )


def completion_logprobs(
    entries: Sequence[TokenLogprob], tokens: TokenText, offset: int
) -> tuple[CompletionLogprobs, int]:
    """Parallel lists; the emitted token is always among its `top_logprobs`, as OpenAI promises.

    Args:
        offset: characters of the answer's tokens before these.
    Returns: the lists, and the offset after them.
    """
    texts = [tokens.text_of(entry.token_id) for entry in entries]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    top = [
        {tokens.text_of(token_id): lp for token_id, lp in entry.top} | {text: entry.logprob}
        for entry, text in zip(entries, texts, strict=True)
    ]
    return CompletionLogprobs(texts, [entry.logprob for entry in entries], top, offsets), offset


def _alternative(token_id: int, logprob: float, tokens: TokenText) -> TokenAlternative:
    return TokenAlternative(tokens.text_of(token_id), logprob, list(tokens.bytes_of(token_id)))
