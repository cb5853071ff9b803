"""Encodes messages as MessagePack frames and decodes them with every bound checked.

One message is one frame. Messages that are sent together are the frames of one ZeroMQ multipart.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from starspec.config import MAX_DRAFT_TOKENS, MAX_STOP_LEN, MAX_TOP_K
from starspec.errors import LocalProtocolError, PeerProtocolError
from starspec.quoting import readable
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import MAX_STATED, MAX_SUPPORT
from starspec.wire.messages import (
    EngineOutput,
    Fault,
    Gap,
    Goodbye,
    HubStatus,
    JudgeOf,
    Judges,
    Landing,
    LongOpen,
    Message,
    Open,
    Proposal,
    Refused,
    Rejected,
    TargetStatus,
    Traversal,
    Verdict,
    Welcome,
)
from starspec.wire.messages.base import Count, EpochNumber, TagNumber

MAX_FRAME_BYTES: Final = 1024 * 1024  # an Open of 128k token ids is 640 KiB at most
MAX_TRAVERSAL_BYTES: Final = 16 * MAX_FRAME_BYTES  # laws of requests that begin together may list whole prompts
MAX_PUBLIC_FRAME_BYTES: Final = 4096  # on the hub's public port, from a peer that is not known yet
SHORT_FRAME_BYTES: Final = 4096  # an answer without draft tokens: its longest part is the reason of a Fault
NODE_BYTES: Final = 10  # of a proposal: a token id and a parent
HEAD_BYTES: Final = 16  # of what is said about one node: its number, and the lengths of lists
TOKEN_BYTES: Final = 5
PROB_BYTES: Final = 9
DRAWN_BYTES: Final = HEAD_BYTES + TOKEN_BYTES * MAX_TOP_K + (TOKEN_BYTES + PROB_BYTES) * MAX_SUPPORT  # of a `Drawn`
MAX_MESSAGES: Final = 1024  # frames of one multipart: a verdict, a close and an open for each of many sequences
MAX_LISTED: Final = 256  # values of a list in statistics: of draft tokens there are at most 65, and stages are fewer
MAX_TARGETS: Final = 1024  # in a hub's status
MAX_MODEL_NAME: Final = 1024  # characters

T = TypeVar("T", bound=Message)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Encode a message as one frame. Raises: LocalProtocolError if the frame is larger than a peer accepts."""
    frame = _encoder.encode(message)
    if len(frame) > max_frame_bytes:
        name = type(message).__name__
        raise LocalProtocolError(
            f"{name} of {len(frame)} bytes is larger than the {max_frame_bytes} that a peer accepts"
        )
    return frame


def size_of(message: Message) -> int:
    """Bytes of its frame, however large."""
    return len(_encoder.encode(message))


def fits_a_frame(message: Message) -> bool:
    """Whether a message fits in a frame. An `Open` with a very long context does not."""
    return size_of(message) <= MAX_FRAME_BYTES


def max_answer_bytes(budget: DraftBudget, *, is_drawn: bool) -> int:
    """The longest frame with which a hub can answer a request.

    Args:
        is_drawn: the target verifies by rejection sampling, so the proposal states probabilities.
    """
    num_nodes = budget.num_draft_tokens
    drawn = (1 + num_nodes) * DRAWN_BYTES if is_drawn else 0
    tops = (1 + num_nodes) * (HEAD_BYTES + budget.num_stated * (TOKEN_BYTES + PROB_BYTES)) if budget.num_stated else 0
    logprobs = num_nodes * PROB_BYTES if budget.has_logprobs else 0
    return SHORT_FRAME_BYTES + num_nodes * NODE_BYTES + drawn + tops + logprobs


MAX_ANSWER_BYTES: Final = max_answer_bytes(
    DraftBudget(MAX_DRAFT_TOKENS, 1, MAX_TOP_K, has_logprobs=True, num_stated=MAX_STATED), is_drawn=True
)


class Decoder(Generic[T]):
    """Decodes the frames of one direction of a link into messages that are safe to use.

    Args:
        union: the union of message types that this direction carries.
        vocab_size: token ids of drafts and of committed tokens must be below it; None = any.
        max_frame_bytes: longest frame accepted. It is checked before anything is decoded, and may be changed.
        max_len: an Open of more tokens becomes a `LongOpen`: its tokens are skipped and take no memory.
    """

    def __init__(
        self,
        union: Any,
        vocab_size: int | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_len: int = MAX_FRAME_BYTES,
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._vocab_size = vocab_size
        self._max_len = max_len
        self.max_frame_bytes = max_frame_bytes

    def decode(self, frame: bytes | memoryview) -> T:
        """Decode one frame.

        Raises: PeerProtocolError if the bytes are anything but a valid message of this direction.
        """
        if len(frame) > self.max_frame_bytes:
            raise PeerProtocolError(f"frame of {len(frame)} bytes: the limit is {self.max_frame_bytes}")
        if len(frame) > self._max_len and (opened := _long_open(frame, self._max_len)) is not None:
            return cast("T", opened)
        try:
            message = self._decoder.decode(frame)
            self._check(message)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            complaint = readable(str(error))  # it may quote the frame, at any length
            raise PeerProtocolError(f"frame of {len(frame)} bytes is not a message: {complaint}") from error
        return message

    def decode_all(self, frames: Sequence[bytes]) -> list[T]:
        """Decode one multipart. Raises: PeerProtocolError as `decode`, or if there are too many frames."""
        _check_count(frames)
        return [self.decode(frame) for frame in frames]

    def _check(self, message: Message) -> None:
        """Raises: ValueError if the message is not valid. Effects: makes its texts for people readable."""
        match message:
            case Proposal(token_ids=token_ids):
                drafts = message.tree.drafts  # raises unless the parents form a tree and the drafts can have been drawn
                self._check_vocabulary(token_ids)
                for draft in drafts.values():
                    self._check_vocabulary(draft.token_ids)
                for top in message.tree.tops.values():
                    self._check_vocabulary(top.token_ids)
            case Verdict(token_ids=token_ids):
                self._check_vocabulary(token_ids)
            case Open(token_ids=token_ids, prompt_len=prompt_len):
                if prompt_len > len(token_ids):
                    raise ValueError(f"prompt of {prompt_len} tokens in {len(token_ids)} committed ones")
                self._check_vocabulary(token_ids)
            case Traversal() | Judges() | Landing():
                self._check_stage_message(message)
            case TargetStatus():
                _check_target_status(message)
            case EngineOutput():
                _check_output(message)
            case Fault() | Gap() | Goodbye() | Refused() | Rejected() | Welcome():
                _make_readable(message)
            case HubStatus():
                _check_hub_status(message)

    def _check_stage_message(self, message: Traversal | Judges | Landing) -> None:
        match message:
            case Traversal(windows=windows):
                for window in windows:
                    self._check_vocabulary(window.token_ids)
            case Judges(judges=judges):
                for judge in judges:
                    self._check_judge(judge)
            case Landing(verdicts=verdicts):
                for verdict in verdicts:
                    self._check_vocabulary(verdict.token_ids)
                    msgspec.structs.force_setattr(verdict, "error", readable(verdict.error))

    def _check_judge(self, judge: JudgeOf) -> None:
        self._check_vocabulary(judge.token_ids)
        for stated in (*(judge.drawn or ()), *(judge.tops or ())):
            self._check_vocabulary(stated.token_ids)
        if judge.law is not None:
            self._check_vocabulary(judge.law.token_ids)

    def _check_vocabulary(self, token_ids: Sequence[int]) -> None:
        if self._vocab_size is not None and token_ids and max(token_ids) >= self._vocab_size:
            raise ValueError(f"token id {max(token_ids)} is outside the vocabulary of {self._vocab_size}")


class _OpenHead(msgspec.Struct, tag_field="type", tag="open"):
    """The parts of an Open that are needed to answer it without a draft."""

    tag: TagNumber
    epoch: EpochNumber
    token_ids: msgspec.Raw  # not decoded
    num_draft_tokens: Count


_head_decoder = msgspec.msgpack.Decoder(_OpenHead)


def _long_open(frame: bytes | memoryview, max_len: int) -> LongOpen | None:
    """The Open in this frame if it has more tokens than that; a token takes a byte at least. None for all others."""
    try:
        head = _head_decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    num_tokens = _array_len(bytes(memoryview(head.token_ids)[:5]))
    if num_tokens <= max_len:
        return None
    return LongOpen(head.tag, head.epoch, [], 0, SamplingSpec(), head.num_draft_tokens, num_tokens=num_tokens)


def _array_len(head: bytes) -> int:
    """The length of the MessagePack array that begins so; 0 for anything else."""
    match head[0]:
        case 0xDC:
            return int.from_bytes(head[1:3])
        case 0xDD:
            return int.from_bytes(head[1:5])
        case first:
            return first & 0x0F if first & 0xF0 == 0x90 else 0


def _check_listed(*lists: Sized) -> None:
    """Raises: ValueError if one of these statistics is longer than any of ours."""
    if (longest := max(map(len, lists))) > MAX_LISTED:
        raise ValueError(f"statistics list {longest} values; {MAX_LISTED} are allowed")


def _check_output(message: EngineOutput) -> None:
    """Raises: ValueError if it says more than an answer can. Effects: makes the reason of a failure readable."""
    if message.finish_reason in ("abort", "error") and isinstance(message.stop_reason, str):
        msgspec.structs.force_setattr(message, "stop_reason", readable(message.stop_reason))
    elif isinstance(message.stop_reason, str) and len(message.stop_reason) > MAX_STOP_LEN:
        raise ValueError(f"a stop string of {len(message.stop_reason)} characters; {MAX_STOP_LEN} are allowed")
    if (stats := message.stats) is not None:
        _check_listed(stats.acceptance.num_accepted_tokens_per_pos, stats.acceptance_histogram)
        _check_listed(range(min(stats.num_spec_tokens, MAX_LISTED + 1)))  # the gateway makes a list of so many


def _check_target_status(message: TargetStatus) -> None:
    """Who asks for `/metrics` or watches a dashboard gets all that a status lists, again and again.

    Raises: ValueError if it lists more than a target of ours can, or if the name of its model is none.
    Effects: makes its other names readable.
    """
    lengths, pipe = message.stats.lengths, message.stats.pipe
    stages = [] if pipe is None else pipe.stages
    per_pos = message.stats.acceptance.num_accepted_tokens_per_pos
    _check_listed(per_pos, lengths.num_by_length, lengths.num_by_reason, stages)
    if len(message.model) > MAX_MODEL_NAME or not message.model.isprintable():
        raise ValueError(f"no model has this name: {message.model}")
    msgspec.structs.force_setattr(message, "target_id", readable(message.target_id))
    lengths.num_by_reason = {readable(reason): number for reason, number in lengths.num_by_reason.items()}
    for stage in stages:
        stage.endpoint, stage.layers = readable(stage.endpoint), readable(stage.layers)


def _check_hub_status(message: HubStatus) -> None:
    """Raises: ValueError if it lists too many targets. Effects: makes their names and the draft's readable."""
    if len(message.targets) > MAX_TARGETS:
        raise ValueError(f"a status lists {len(message.targets)} targets; {MAX_TARGETS} are allowed")
    targets = {readable(name): stats for name, stats in message.targets.items()}
    msgspec.structs.force_setattr(message, "targets", targets)
    msgspec.structs.force_setattr(message, "draft_name", readable(message.draft_name))


def _make_readable(message: Fault | Gap | Goodbye | Refused | Rejected | Welcome) -> None:
    """Texts of a peer end in logs, in errors and on terminals."""
    for name in ("message", "param", "reason", "draft_name"):
        text = getattr(message, name, None)
        if text is not None:
            msgspec.structs.force_setattr(message, name, readable(text))


def _check_count(frames: Sequence[bytes]) -> None:
    if len(frames) > MAX_MESSAGES:
        raise PeerProtocolError(f"{len(frames)} frames in one multipart: the limit is {MAX_MESSAGES}")
