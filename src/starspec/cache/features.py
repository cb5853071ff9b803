"""The target's hidden states of the last positions of one sequence, at whichever end of the wire."""

from __future__ import annotations

from collections import deque
from typing import Final

import torch
from torch import Tensor

MAX_FEATURE: Final = 1e6  # a larger number could overflow, and one row's NaN would stay in the cache for the next tag


def are_readable(features: Tensor) -> Tensor:
    """Which of the features [T, F] a head reads: finite, and at most MAX_FEATURE. Returns: [T] bool."""
    return (features.abs() <= MAX_FEATURE).all(-1)  # false for NaN


class FeatureTail:
    """Features of consecutive positions, the last `max_len` of them or a few more.

    A feature of a committed position never changes, so nothing here is ever stale; what may be is the place where it
    continues. After a hole the tail begins anew: a head that reads features wants neighbours.

    Args:
        max_len: positions that are kept at least, once they were added.
    """

    def __init__(self, max_len: int) -> None:
        self._max_len = max(1, max_len)  # the last part is always kept
        self._parts: deque[Tensor] = deque()  # [T, F] each, in order
        self.start = self.stop = 0  # positions start..stop are known

    def add(self, start: int, features: Tensor) -> None:
        """Add the features [T, F] of positions `start ..`; what is known of them already is skipped.

        Effects: forgets all before a hole, and what is further back than `max_len`.
        """
        stop = start + len(features)
        if stop <= self.stop and start >= self.start:
            return
        if not self.start <= start <= self.stop:
            self._parts.clear()
            self.start = self.stop = start
        new = features[self.stop - start :]
        self._parts.append(new if start == self.stop else new.clone())  # a view would keep what is known already
        self.stop = stop
        while self.stop - self.start - len(self._parts[0]) >= self._max_len:
            self.start += len(self._parts.popleft())

    def since(self, position: int, stop: int) -> Tensor:
        """Features [stop - position, F] of positions `position..stop`. They must be known."""
        assert self.start <= position <= stop <= self.stop, f"{position}..{stop} of {self.start}..{self.stop}"
        parts, end = list[Tensor](), self.stop
        for part in reversed(self._parts):  # what is wanted mostly came last
            first = end - len(part)
            if first < stop:
                parts.append(part[max(0, position - first) : stop - first])
            end = first
            if first <= position:
                break
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1])


def to_bytes(features: Tensor) -> bytes:
    """Features [T, F] as they cross the wire: bfloat16, row by row."""
    return features.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, num_positions: int) -> Tensor:
    """Features [num_positions, F] bfloat16 on the CPU. Raises: ValueError if the bytes do not make up whole rows."""
    if not data or len(data) % (2 * num_positions):
        raise ValueError(f"{len(data)} bytes are no features of {num_positions} positions")
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(num_positions, -1)
