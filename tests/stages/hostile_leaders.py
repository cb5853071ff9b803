"""What a hostile or mad coordinator, or stage before, may send to a stage: multiparts for a raw socket."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count

import msgspec
from msgspec.structs import replace
from toy_stages import MAX_LEN, VOCAB

from starspec.ids import PipeEpoch, RowEpoch, RowLease, TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.wire.codec import encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Attach,
    Beat,
    Detach,
    JudgeOf,
    Judges,
    Message,
    Retract,
    RowChange,
    RowLaw,
    Traversal,
    WindowHead,
)
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES

STATE_BYTES = 8  # of a token's hidden state: a float64
NAME = TargetId("mad")
NOTHING = encode(Judges([]))
Multipart = list[bytes]
Attack = Callable[[PipeEpoch], Iterator[Multipart]]
"""What is sent once the stage is attached in this epoch."""


def attach(epoch: int, following: str = "", lease_s: float = 5.0) -> Attach:
    return Attach(PROTOCOL_VERSION, NAME, PipeEpoch(epoch), lease_s, following)


def raw(message: Message, **changes: object) -> Multipart:
    """A message with fields that its class would refuse."""
    return [msgspec.msgpack.encode({**msgspec.to_builtins(message), **changes})]


def window(num_tokens: int = 3, **changes: object) -> WindowHead:
    head = WindowHead(0, RowLease(1), RowEpoch(0), 0, num_tokens, 0)
    return replace(head, **changes)


def states(num_tokens: int) -> bytes:
    return bytes(STATE_BYTES * num_tokens)


def passed_on(parts: Multipart) -> Multipart:
    """The same, as if the first of two stages had computed it."""
    if len(parts) != 3:
        return parts
    with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        head = msgspec.msgpack.decode(parts[0])
        return [msgspec.msgpack.encode({**head, "work": [[0.0, 0.0, 0, 0, 0, 1]]}), *parts[1:]]
    return parts


LEASE = RowChange("lease", 0, RowLease(1))


def traversal(
    epoch: PipeEpoch,
    *windows: WindowHead,
    number: int = 1,
    changes: Sequence[RowChange] = (LEASE,),
    judges: Sequence[JudgeOf] = (),
    hidden: bytes | None = None,
) -> Multipart:
    sent = Traversal(epoch, number, list(changes), list(windows))
    num_tokens = sum(each.num_tokens for each in windows)
    told = encode(Judges(list(judges)), 2**24)
    return [encode(sent, 2**24), told, states(num_tokens) if hidden is None else hidden]


def judged(epoch: PipeEpoch, judge: JudgeOf, **changes: object) -> Multipart:
    """A traversal whose only window is decided so."""
    num_tokens = len(judge.token_ids)
    return traversal(epoch, window(num_tokens, num_logits=num_tokens, **changes), judges=[judge])


def law(**changes: object) -> JudgeOf:
    return JudgeOf(0, 1, [1], law=RowLaw(SamplingSpec(), **changes))


# ---------------------------------------------------------------- traversals


def rows_that_do_not_exist(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(row=2**31 - 1))


def rows_of_nobody(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(), changes=())


def frees_of_others_rows(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, changes=[LEASE, RowChange("free", 0, RowLease(7))])


def thousands_of_leases(epoch: PipeEpoch) -> Iterator[Multipart]:
    changes = [RowChange(kind, 0, RowLease(each)) for each in range(1, 2048) for kind in ("lease", "free")]
    yield traversal(epoch, changes=changes)


def windows_beyond_a_row(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(MAX_LEN + 1))


def windows_of_millions_of_tokens(epoch: PipeEpoch) -> Iterator[Multipart]:
    changes = [RowChange("lease", row, RowLease(1)) for row in range(4)]
    yield traversal(epoch, *[window(2**20, row=row) for row in range(4)], changes=changes, hidden=b"")


def thousands_of_windows_without_tokens_or_states(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, *[window(2**20, row=row) for row in range(4096)], changes=(), hidden=b"")


def more_states_than_a_stage_takes(epoch: PipeEpoch) -> Iterator[Multipart]:
    num = MAX_HIDDEN_BYTES // STATE_BYTES + 1
    yield traversal(epoch, *[window(num // 9 + 1, row=row) for row in range(9)], hidden=b"")


def positions_that_were_never_written(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(base=2**31 - 1))


def paths_beyond_a_row(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window())
    yield traversal(epoch, window(path=tuple(range(100_000))), number=2, changes=())


def trees_as_long_as_a_row(epoch: PipeEpoch) -> Iterator[Multipart]:
    [head, *rest] = traversal(epoch, window(66))
    told = msgspec.msgpack.decode(head)
    told["windows"][0]["parents"] = [-1] * 66
    yield [msgspec.msgpack.encode(told), *rest]


def states_of_other_tokens(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(), hidden=states(2))


def states_of_another_dtype(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(), hidden=states(3)[::2])


def states_that_are_no_numbers(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(), hidden=b"\xff" * 3 * STATE_BYTES)


def states_of_infinity(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(1), hidden=msgspec.msgpack.encode(math.inf)[:0:-1])


def numbers_that_do_not_follow(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, number=2**53 - 1)


def the_last_epoch(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(PipeEpoch(2**53 - 1))


def very_much_work(epoch: PipeEpoch) -> Iterator[Multipart]:
    [head, *rest] = traversal(epoch)
    told = {**msgspec.msgpack.decode(head), "work": [[0.0, 0.0, 0, 0]] * 100_000}
    yield [msgspec.msgpack.encode(told), *rest]


def traversals_that_are_none(epoch: PipeEpoch) -> Iterator[Multipart]:
    dice = random.Random(3)
    for _ in range(300):
        yield [dice.randbytes(200) for _ in range(3)]


def traversals_of_two_frames(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch)[:2]


# ---------------------------------------------------------------- judges


def judges_that_are_none(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield [*traversal(epoch)[:1], b"\xc1" * 100_000, b""]


def judges_of_other_windows(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(1, num_logits=1), judges=[replace(law(), window=7)])


def logits_that_nobody_judges(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield traversal(epoch, window(1, num_logits=1))


def judges_without_a_law(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield judged(epoch, JudgeOf(0, 1, [1]))


def judges_about_another_position(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield judged(epoch, replace(law(), prefix_len=2**31 - 1))


def laws_with_tokens_for_nothing(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield judged(epoch, law(token_ids=[1] * 1_000_000))


def laws_that_count_without_tokens(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield judged(epoch, JudgeOf(0, 1, [1], law=RowLaw(SamplingSpec(min_tokens=2**31))))


def laws_about_tokens_that_there_are_not(epoch: PipeEpoch) -> Iterator[Multipart]:
    sampling = SamplingSpec(logit_bias={2**62: 9.0}, end_token_ids=(2**62,), bad_words=((2**62,),), min_tokens=3)
    yield judged(epoch, JudgeOf(0, 1, [1], law=RowLaw(sampling, token_ids=[1], num_logprobs=1000)))


def laws_with_numbers_that_are_none(epoch: PipeEpoch) -> Iterator[Multipart]:
    [head, _, hidden] = judged(epoch, law())
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        told = msgspec.to_builtins(Judges([law()]))
        told["judges"][0]["law"]["sampling"][name] = math.nan
        yield [head, msgspec.msgpack.encode(told), hidden]


def roots_outside_the_vocabulary(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield judged(epoch, replace(law(), token_ids=[VOCAB]))


# ---------------------------------------------------------------- control


def retracts_of_rows_that_do_not_exist(epoch: PipeEpoch) -> Iterator[Multipart]:
    for row in (0, 4, 2**31 - 1):
        yield [encode(Retract(epoch, row, RowLease(2**53 - 1), RowEpoch(2**53 - 1)))]


def beats_all_the_time(epoch: PipeEpoch) -> Iterator[Multipart]:
    for number in range(3000):
        yield [encode(Beat(epoch, float(number)))]


def attaches_all_the_time(epoch: PipeEpoch) -> Iterator[Multipart]:
    for number in count(epoch + 1):
        yield [encode(attach(number, "tcp://127.0.0.1:1"))]
        if number > epoch + 300:
            return


def attaches_in_the_last_epoch(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield [encode(attach(2**53 - 1))]


def endpoints_that_are_none(epoch: PipeEpoch) -> Iterator[Multipart]:
    odd = (
        "x",
        "tcp://[::::]:1",
        "tcp://[fe80::1%]:1",
        "tcp://1.2.3.4.5:1",
        "tcp://a:99999",
        "ipc:///tmp/x",
        "tcp://-:1",
    )
    for number, endpoint in enumerate((*odd, "tcp://*:7", "tcp://" + "a" * 1000 + ":7"), 1):
        yield [encode(attach(epoch + number, endpoint))]


def endpoints_that_move_the_cursor(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield raw(attach(epoch + 1), next="tcp://\x1b[2J\r\n:7")


def leases_without_end(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield [encode(attach(epoch + 1, lease_s=1e9))]


def detaches_of_other_epochs(epoch: PipeEpoch) -> Iterator[Multipart]:
    yield [encode(Detach(PipeEpoch(2**53 - 1)))]


def control_that_is_none(epoch: PipeEpoch) -> Iterator[Multipart]:
    dice = random.Random(3)
    for _ in range(300):
        yield [dice.randbytes(100)]
    yield [b"\x81" * 1_000_000]


ATTACKS: list[Attack] = [
    rows_that_do_not_exist,
    rows_of_nobody,
    frees_of_others_rows,
    thousands_of_leases,
    windows_beyond_a_row,
    windows_of_millions_of_tokens,
    thousands_of_windows_without_tokens_or_states,
    more_states_than_a_stage_takes,
    positions_that_were_never_written,
    paths_beyond_a_row,
    trees_as_long_as_a_row,
    states_of_other_tokens,
    states_of_another_dtype,
    states_that_are_no_numbers,
    states_of_infinity,
    numbers_that_do_not_follow,
    the_last_epoch,
    very_much_work,
    traversals_that_are_none,
    traversals_of_two_frames,
    judges_that_are_none,
    judges_of_other_windows,
    logits_that_nobody_judges,
    judges_without_a_law,
    judges_about_another_position,
    laws_with_tokens_for_nothing,
    laws_that_count_without_tokens,
    laws_about_tokens_that_there_are_not,
    laws_with_numbers_that_are_none,
    roots_outside_the_vocabulary,
    retracts_of_rows_that_do_not_exist,
    beats_all_the_time,
    attaches_all_the_time,
    attaches_in_the_last_epoch,
    endpoints_that_are_none,
    endpoints_that_move_the_cursor,
    leases_without_end,
    detaches_of_other_epochs,
    control_that_is_none,
]
