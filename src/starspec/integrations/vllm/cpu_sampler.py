"""A fault of vLLM's CPU build that spoils sampled requests wherever it speculates, found and mended at start.

vLLM 0.32 spreads each request's temperature, top-k and top-p over its draft tokens with `expand_batch_to_tokens`. On
CPU that writes into a copy unless the numbers are 64-bit integers, and hands out memory that nobody wrote to: with any
drafts, vLLM's own as well, tokens are accepted and drawn at a temperature of chance. Greedy requests do not notice.
"""

from __future__ import annotations

from typing import Any

import structlog

log = structlog.get_logger()


def mend_sampler() -> bool:
    """Put a working `expand_batch_to_tokens` into vLLM's rejection sampler, if this process has the broken one.

    Returns: whether it had. Effects: that one function of vLLM, in this process; says so in the log.
    """
    from vllm.platforms import current_platform  # noqa: PLC0415 (the unit tests bring their own)
    from vllm.v1.sample import rejection_sampler  # noqa: PLC0415

    if not current_platform.is_cpu() or _is_sound(rejection_sampler.expand_batch_to_tokens):
        return False
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    log.warning("this vLLM loses the temperature of sampled requests when it speculates on CPU; starspec mends that")
    return True


def expand_batch_to_tokens(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> Any:
    """As vLLM's: x [B] of each request -> [num_tokens] of each token, where `replace_from` became `replace_to`.

    Args:
        cu_num_tokens: [B] tokens of the requests up to each, itself included.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return expanded.masked_fill_(expanded == replace_from, replace_to)


def _is_sound(expand: Any) -> bool:
    import torch  # noqa: PLC0415 (the package does without until vLLM has imported it)

    x, cu_num_tokens = torch.tensor([0.5, 2.0, 0.0]), torch.tensor([2, 3, 4], dtype=torch.int32)
    try:
        found = expand(x, cu_num_tokens, 4, replace_from=0, replace_to=1)
    except Exception:  # a kernel that is not there, in a process that does not sample
        return True
    return bool(torch.equal(found, torch.tensor([0.5, 0.5, 2.0, 1.0])))
