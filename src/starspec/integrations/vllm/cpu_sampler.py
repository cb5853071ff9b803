"""A bug in vLLM's CPU build that gives sampled requests a wrong temperature when vLLM speculates, and its fix.

vLLM 0.32 copies each request's temperature, top-k and top-p to its draft tokens with `expand_batch_to_tokens`. On CPU
this function writes into a copy, unless the values are 64-bit integers, and returns uninitialised memory. So tokens are
accepted and drawn at a random temperature, with any drafter, vLLM's own included. Greedy requests are not affected.
"""

from __future__ import annotations

from typing import Any

import structlog

log = structlog.get_logger()


def patch_sampler() -> bool:
    """Replace `expand_batch_to_tokens` in vLLM's rejection sampler, if this process has the broken one.

    Returns: whether it was broken. Effects: replaces this one function of vLLM in this process, and logs it.
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
    """As vLLM's function of this name: repeat each request's value for each of its tokens.

    Args:
        x: [B], one value for each request.
        cu_num_tokens: [B], tokens of each request and all before it.
        num_tokens: the last of `cu_num_tokens`.
        replace_from, replace_to: values of `replace_from` become `replace_to`.
    Returns: [num_tokens].
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return expanded.masked_fill_(expanded == replace_from, replace_to)


def _is_sound(expand: Any) -> bool:
    import torch  # noqa: PLC0415 (loaded late: vLLM has imported it by then)

    x, cu_num_tokens = torch.tensor([0.5, 2.0, 0.0]), torch.tensor([2, 3, 4], dtype=torch.int32)
    try:
        found = expand(x, cu_num_tokens, 4, replace_from=0, replace_to=1)
    except Exception:  # its kernel is missing in a process that does not sample
        return True
    return bool(torch.equal(found, torch.tensor([0.5, 0.5, 2.0, 1.0])))
