"""The target's hidden states (features) at the last positions of one sequence, for both ends of the wire."""

from __future__ import annotations

from collections import deque
from typing import Final

import torch
from torch import Tensor

MAX_FEATURE: Final = 1e6  # larger numbers could overflow, and a NaN would stay in the cache row for the next tag


def are_readable(features: Tensor) -> Tensor:
    """Which of the features [T, F] a head can use: finite, and at most MAX_FEATURE. Returns: [T] bool."""
    return (features.abs() <= MAX_FEATURE).all(-1)  # false for NaN


class FeatureTail:
    """Features of consecutive positions: the last `max_len` of them, or a few more.

    The feature of a committed position never changes, so no stored feature is ever stale. If new features do not
    connect to the stored ones, the tail starts again from the new ones, because a head needs consecutive positions.

    Args:
        max_len: positions that are kept, at least, once they were added.
    """

    def __init__(self, max_len: int) -> None:
        self._max_len = max(1, max_len)  # the last part is always kept
        self._parts: deque[Tensor] = deque()  # [T, F] each, in order
        self.start = self.stop = 0  # positions start..stop are stored

    def add(self, start: int, features: Tensor) -> None:
        """Add the features [T, F] of positions `start ..`; positions that are stored already are skipped.

        Effects: discards everything before a gap, and what is further back than `max_len`.
        """
        stop = start + len(features)
        if stop <= self.stop and start >= self.start:
            return
        if not self.start <= start <= self.stop:
            self._parts.clear()
            self.start = self.stop = start
        new = features[self.stop - start :]
        self._parts.append(new if start == self.stop else new.clone())  # a view would keep the skipped part alive
        self.stop = stop
        while self.stop - self.start - len(self._parts[0]) >= self._max_len:
            self.start += len(self._parts.popleft())

    def since(self, position: int, stop: int) -> Tensor:
        """The features [stop - position, F] of positions `position..stop`, which must be stored."""
        assert self.start <= position <= stop <= self.stop, f"{position}..{stop} of {self.start}..{self.stop}"
        parts, end = list[Tensor](), self.stop
        for part in reversed(self._parts):  # callers mostly want the newest
            first = end - len(part)
            if first < stop:
                parts.append(part[max(0, position - first) : stop - first])
            end = first
            if first <= position:
                break
        return parts[0] if len(parts) == 1 else torch.cat(parts[::-1])


def to_bytes(features: Tensor) -> bytes:
    """Features [T, F] in wire format: bfloat16, row by row."""
    return features.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()


def from_bytes(data: bytes, num_positions: int) -> Tensor:
    """Features [num_positions, F] bfloat16 on the CPU. Raises: ValueError if the bytes are not whole rows."""
    if not data or len(data) % (2 * num_positions):
        raise ValueError(f"{len(data)} bytes are not the features of {num_positions} positions")
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(num_positions, -1)
