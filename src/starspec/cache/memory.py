"""The memory that caches take, and that the machine has."""

from __future__ import annotations

import os

from starspec.errors import ConfigError


def machine_bytes() -> int:
    """The physical memory of this machine in bytes, whoever uses it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_rows(num_rows: int, max_len: int, num_row_bytes: int, memory_bytes: int) -> None:
    """Check the cache of one model.

    Args:
        max_len: positions of a row.
        num_row_bytes: of a row when every slot of it has been used.
        memory_bytes: of the machine.
    Raises: ConfigError if the memory does not hold it.
    """
    if num_rows * num_row_bytes > memory_bytes:
        raise ConfigError(
            f"the KV cache of {num_rows} sequences of {max_len} tokens (with drafts) takes {num_rows * num_row_bytes} "
            f"bytes, more than this machine's memory of {memory_bytes} bytes; lower the number of sequences "
            "(max_num_seqs of a server, batch sizes or ExSpec's window of a measurement) or max_model_len"
        )


def check_budget(num_bytes: int, max_len: int, num_row_bytes: int, memory_bytes: int | None) -> None:
    """Check a KV budget, which cache rows divide.

    Args:
        max_len: positions of a row.
        num_row_bytes: of a row when every slot of it has been used.
        memory_bytes: of the machine; None = the budget is for other memory.
    Raises: ConfigError if the memory does not hold it, or if it does not hold one row.
    """
    if memory_bytes is not None and num_bytes > memory_bytes:
        raise ConfigError(
            f"a KV budget of {num_bytes} bytes is more than this machine's memory of {memory_bytes} bytes; lower it"
        )
    if num_bytes < num_row_bytes:
        raise ConfigError(
            f"a KV budget of {num_bytes} bytes holds no sequence: one of {max_len} tokens (with drafts) "
            f"takes {num_row_bytes} bytes; raise the budget or lower max_model_len"
        )


def check_together(target_bytes: int, draft_bytes: int, memory_bytes: int, num_targets: int = 1) -> None:
    """Check the caches of targets and of a draft beside them, each of which fits alone.

    Args:
        target_bytes: of each target.
        draft_bytes: 0 = there is no draft, or it has no cache here.
        memory_bytes: of the machine.
    Raises: ConfigError if the memory does not hold all of them.
    """
    if num_targets * target_bytes + draft_bytes <= memory_bytes:
        return
    targets, times = ("target", "") if num_targets == 1 else (f"{num_targets} targets", f"{num_targets} times ")
    draft, its_bytes = (" and draft", f" and {draft_bytes}") if draft_bytes else ("", "")
    fewer = "" if num_targets == 1 else ", the number of targets"
    raise ConfigError(
        f"the KV caches of {targets}{draft} take {times}{target_bytes}{its_bytes} bytes, together more than this "
        f"machine's memory of {memory_bytes} bytes; lower the number of sequences (max_num_seqs of LLM or a server, "
        f"batch sizes or ExSpec's window of a measurement){fewer} or max_model_len"
    )


def memory_of(num_rows: int, num_bytes: int) -> str:
    """A text for people: what a cache takes once every slot of every row is in use."""
    return f"{num_rows} cache rows, at most {num_bytes / 2**20:,.0f} MiB"
