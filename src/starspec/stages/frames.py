"""What travels between stages: a traversal, its judges and its hidden states, as three frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from starspec.config.stages import HiddenDtype
from starspec.errors import PeerProtocolError, StarspecError
from starspec.quoting import readable
from starspec.sampling.logprobs import TopLogprobs
from starspec.speculation.verify import VerifyResult
from starspec.windows.window import Verdict
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.messages import Judges, Traversal, VerdictOf

INT8_MAX: Final = 127
SCALE_BYTES: Final = 4  # of a token
TINY: Final = 1e-30  # instead of the scale of a token whose states are all 0
Bytes = bytes | memoryview
"""Of a frame: as they lie where they arrived, or where they were computed."""


class Frame(NamedTuple):
    """A traversal on its way. A stage that is not the last passes the judges on unread."""

    traversal: Traversal
    judges: Bytes
    hidden: Bytes  # empty at the first stage
    num_bytes: int = 0  # of all frames as they arrived; 0: it was made here

    @property
    def parts(self) -> list[Bytes]:
        """As frames of one multipart. Raises: LocalProtocolError if one is too large."""
        return [encode(self.traversal, MAX_TRAVERSAL_BYTES), self.judges, self.hidden]


class FrameDecoder:
    """Decodes traversals. Args: vocab_size: token ids must be below it."""

    def __init__(self, vocab_size: int) -> None:
        self._traversals = Decoder[Traversal](Traversal, vocab_size, MAX_TRAVERSAL_BYTES)
        self._judges = Decoder[Judges](Judges, vocab_size, MAX_TRAVERSAL_BYTES)

    def decode(self, parts: Sequence[Bytes]) -> Frame:
        """Raises: PeerProtocolError if the parts are not a traversal. The judges are not looked at."""
        if len(parts) != 3:
            raise PeerProtocolError(f"a traversal has 3 frames, not {len(parts)}")
        return Frame(self._traversals.decode(parts[0]), parts[1], parts[2], sum(map(len, parts)))

    def judges(self, frame: Frame) -> Judges:
        """Raises: PeerProtocolError if they cannot be decoded, or do not fit the windows."""
        judges, windows = self._judges.decode(frame.judges), frame.traversal.windows
        wanted = [index for index, window in enumerate(windows) if window.num_logits]
        if [each.window for each in judges.judges] != wanted:
            raise PeerProtocolError(f"windows {wanted} want logits, but there are other judges")
        for each in judges.judges:
            window, shape = windows[each.window], parents_of(each.tree.parents)
            is_same = shape == (window.parents or parents_of(range(-1, window.num_tokens - 2)))
            if window.num_logits != window.num_tokens or len(each.token_ids) != window.num_tokens or not is_same:
                raise PeerProtocolError(f"the judge of window {each.window} has another tree")
            if each.prefix_len != window.base + len(window.path) + 1:
                raise PeerProtocolError(f"the judge of window {each.window} is about another position")
        return judges


def parents_of(nodes: Sequence[int]) -> tuple[int, ...]:
    """Parents of the tokens of a window: the root, then the nodes of a tree with these parents."""
    return (-1, *(parent + 1 for parent in nodes))


def pack(hidden: Tensor, dtype: HiddenDtype = "model") -> memoryview:
    """The bytes of hidden states [T, C], where they lie if they stay in their own dtype in the CPU's memory."""
    hidden = hidden.contiguous().cpu()
    if dtype == "int8":
        scales = hidden.abs().amax(1, keepdim=True).float() / INT8_MAX  # [T, 1]
        rounded = (hidden.float() / scales.clamp_min(TINY)).round().to(torch.int8)  # [T, C]
        return torch.cat([_bytes_of(scales), _bytes_of(rounded)]).numpy().data
    return _bytes_of(hidden).numpy().data


def unpack(data: Bytes, num_tokens: int, hidden_size: int, like: Tensor, dtype: HiddenDtype = "model") -> Tensor:
    """Hidden states [T, C], where their bytes lie if they are in their own dtype and the device is the CPU.

    Args:
        like: has the dtype and the device of what is returned.
        dtype: of the bytes.
    Raises: PeerProtocolError for another size.
    """
    a_token = hidden_size + SCALE_BYTES if dtype == "int8" else hidden_size * like.element_size()
    if len(data) != num_tokens * a_token:
        raise PeerProtocolError(
            f"hidden states of {num_tokens} tokens have {num_tokens * a_token} bytes, not {len(data)}"
        )
    if not data:
        return like.new_empty(0, hidden_size)
    changeable = bytearray(data) if isinstance(data, bytes) else data  # torch warns of constant ones
    if dtype == "int8":
        scales = torch.frombuffer(changeable, dtype=torch.float32, count=num_tokens).view(num_tokens, 1)
        rounded = torch.frombuffer(changeable, dtype=torch.int8, offset=num_tokens * SCALE_BYTES)
        return (rounded.view(num_tokens, hidden_size) * scales).to(like.device, like.dtype)
    return torch.frombuffer(changeable, dtype=like.dtype).view(num_tokens, hidden_size).to(like.device)


def _bytes_of(values: Tensor) -> Tensor:
    return values.view(torch.uint8).reshape(-1)


def told(verdict: Verdict) -> VerdictOf:
    """A verdict as the last stage sends it."""
    if verdict.error is not None:
        return VerdictOf(error=readable(f"{type(verdict.error).__name__}: {verdict.error}"))
    result = verdict.result
    logprobs = [(each.logprob, each.top) for each in verdict.logprobs] or None
    return VerdictOf(list(result.token_ids), result.accepted_nodes, result.relaxed, logprobs, verdict.divergences)


def heard(verdict: VerdictOf) -> Verdict:
    """A verdict as the coordinator gets it."""
    result = VerifyResult(verdict.nodes, tuple(verdict.token_ids), verdict.relaxed)
    logprobs = [TopLogprobs(logprob, top) for logprob, top in verdict.logprobs or ()]
    error = StarspecError(f"the last stage could not judge a window: {verdict.error}") if verdict.error else None
    return Verdict(result, logprobs, verdict.divergences, None, error=error)
