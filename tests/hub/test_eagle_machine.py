"""Random lives of many tags on one EAGLE head: features of one never reach another, and nothing waits for ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from eagle_toys import FEATURE_SIZES, MAX_LEN, EagleStar, EagleTag, HeadMethod, make_head
from hub_toys import GREEDY, PENALIZED, SAMPLED, VOCAB_SIZE, paths_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from starspec.cache.features import MAX_FEATURE, to_bytes
from starspec.config import SampleMethod
from starspec.ids import LinkId, Tag, TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import Fault, Features, HubToTarget, Proposal, Reopen
from starspec.wire.session import TagState

NUM_ROWS = 2
MAX_NODES = 6
WINDOW = 8
METHODS: tuple[SampleMethod, ...] = ("coupled", "rejection")
SAMPLINGS = (GREEDY, SAMPLED, PENALIZED, SamplingSpec(temperature=1.0, seed=3))
HEADS = {each: make_head(each, NUM_ROWS) for each in FEATURE_SIZES}  # what earlier lives left in them is masked
FAR = 2**31 - 2

seeds = st.integers(0, 2**16)
doubts = st.sampled_from((0.0, 0.0, 0.02, 0.3, 1.0))  # p_min
chains = st.builds(DraftBudget.chain, st.integers(0, 5), doubts)
trees = st.builds(DraftBudget, st.integers(1, 9), st.integers(1, 4), st.integers(2, 3), doubts)
wanted = chains | trees


class Life(RuleBasedStateMachine):
    """Up to three targets with a few tags each share a head of two rows.

    The model of a tag is its target's own view; the model of a proposal is a hub that knows of nothing but this tag:
    its tokens, and its features from the position on that the tag's row begins with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.tags: dict[str, dict[int, EagleTag]] = {}
        self.tag_numbers: dict[str, Iterator[int]] = {}
        self.sent: list[tuple[str, object]] = []  # every message ever sent by a target that is still there
        self.torn: set[EagleTag] = set()  # tags of which a verdict was lost on the way to the hub
        self.num_checked = 0

    @initialize(head_method=st.sampled_from(sorted(FEATURE_SIZES)))
    def begin(self, head_method: HeadMethod) -> None:
        self.head_method: HeadMethod = head_method
        head = HEADS[head_method]
        for row in list(head.cache.rows.leased):  # a life that failed
            head.cache.free(row)
        self.star = EagleStar(
            head=head, prefill_chunk=6, max_draft_tokens=MAX_NODES, max_tags=64, feature_window=WINDOW
        )
        self.join()
        self.join()
        for seed in range(NUM_ROWS + 1):
            self._open(seed, seed + 2, SAMPLINGS[seed], DraftBudget(6, 3, 2), METHODS[seed % 2], [1], True)

    # ---------------------------------------------------------------- what targets do

    @precondition(lambda self: len(self.tags) < 3)
    @rule()
    def join(self) -> None:
        name = f"t{next(self.numbers)}"
        self.star.hub.join(LinkId(name), TargetId("target"), VOCAB_SIZE)
        self.tags[name] = {}
        self.tag_numbers[name] = itertools.count(1)

    @precondition(lambda self: self.tags)
    @rule(
        seed=seeds,
        length=st.integers(1, MAX_LEN + 2),
        sampling=st.sampled_from(SAMPLINGS),
        wanted=wanted,
        method=st.sampled_from(METHODS),
        pieces=st.lists(st.integers(0, MAX_LEN), max_size=3),
        is_read=st.booleans(),
    )
    def open(
        self,
        seed: int,
        length: int,
        sampling: SamplingSpec,
        wanted: DraftBudget,
        method: SampleMethod,
        pieces: list[int],
        is_read: bool,
    ) -> None:
        """With the features of the prompt in pieces behind it; or with none of them yet."""
        self._open(seed, length, sampling, wanted, method, pieces, is_read)

    def _open(
        self,
        seed: int,
        length: int,
        sampling: SamplingSpec,
        wanted: DraftBudget,
        method: SampleMethod,
        pieces: list[int],
        is_read: bool,
    ) -> None:
        name, prompt = self._target(seed), random.Random(seed).choices(range(VOCAB_SIZE), k=length)
        number = next(self.tag_numbers[name])  # another target has the same
        tag = EagleTag(number, prompt, sampling, method, head_method=self.head_method, identity=next(self.numbers))
        self.tags[name][tag.session.tag] = tag
        if seed % 5 == 0:  # too early: the hub does not know the tag, and drops them
            self._tell(name, tag, 0, length - 1)
        self._send(name, tag.open(wanted))
        borders = sorted({min(each, length - 1) for each in (0, *pieces, length - 1)})
        for start, stop in itertools.pairwise(borders if is_read else ()):
            self._tell(name, tag, start, stop)

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, start=st.integers(0, MAX_LEN), num=st.integers(1, MAX_LEN))
    def tell(self, seed: int, start: int, num: int) -> None:
        """Any true features: repeated, early, with a hole before them, old."""
        name, tag = self._tag(seed)
        self._tell(name, tag, start, start + num)

    @precondition(lambda self: self._open_tags())
    @rule(
        seed=seeds,
        num_accepted=st.integers(0, 5),
        wanted=wanted,
        is_lucky=st.booleans(),
        has_features=st.sampled_from((True, True, True, False)),
    )
    def verdict(self, seed: int, num_accepted: int, wanted: DraftBudget, is_lucky: bool, has_features: bool) -> None:
        """With or without a proposal in hand; `is_lucky`: the target's own token is the draft's next one too."""
        name, tag = self._tag(seed)
        if not tag.session.is_held:
            return
        features, verdict = tag.told(tag.verdict(self._verdict_ids(tag, seed, num_accepted, is_lucky), wanted))
        if has_features:
            self._send(name, features)
        self._send(name, verdict)

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, wanted=wanted, num_rounds=st.integers(1, 3))
    def go_on(self, seed: int, wanted: DraftBudget, num_rounds: int) -> None:
        """All go on for a while, as they should."""
        for number in range(seed, seed + num_rounds):
            for name, tag in self._open_tags():
                if tag.session.is_held and tag not in self.torn:
                    told = tag.told(tag.verdict(self._verdict_ids(tag, number, number % 4, number % 3 == 0), wanted))
                    for message in told:
                        self._send(name, message)
            self._drain()

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, wanted=wanted, has_features=st.booleans())
    def lose_a_verdict(self, seed: int, wanted: DraftBudget, has_features: bool) -> None:
        name, tag = self._tag(seed)
        if tag.session.is_held:
            features, _ = tag.told(tag.verdict([seed % VOCAB_SIZE], wanted))
            if has_features:
                self._send(name, features)
            self.torn.add(tag)

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, wanted=wanted, tail=st.integers(0, WINDOW + 2), num_more=st.integers(0, 2))
    def open_anew(self, seed: int, wanted: DraftBudget, tail: int, num_more: int) -> None:
        """With the tail of the features only, and with tokens that the hub never heard of."""
        name, tag = self._tag(seed)
        self._open_anew(name, tag, wanted, tail, random.Random(seed).choices(range(VOCAB_SIZE), k=num_more))

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds)
    def close(self, seed: int) -> None:
        name, tag = self._tag(seed)
        self._send(name, tag.close())
        self.torn.discard(tag)
        del self.tags[name][tag.session.tag]

    @precondition(lambda self: len(self.tags) > 1)
    @rule(seed=seeds)
    def leave(self, seed: int) -> None:
        name = self._target(seed)
        self.star.hub.leave(LinkId(name), self.star.clock())
        self.torn -= set(self.tags.pop(name).values())
        self.sent = [each for each in self.sent if each[0] != name]

    @precondition(lambda self: self.sent)
    @rule(seed=seeds)
    def repeat_an_old_message(self, seed: int) -> None:
        self._say(*self.sent[seed % len(self.sent)])

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, kind=st.sampled_from(("wide", "narrow", "odd", "empty", "NaN", "inf", "huge", "beyond", "far")))
    def send_hostile_features(self, seed: int, kind: str) -> None:
        """Refused, and nothing has changed."""
        name, tag = self._tag(seed)
        message = self._hostile(tag, kind)
        before = self._known(name, tag)
        self.star.hub.handle(LinkId(name), message, self.star.clock())
        replies = self.star.step() if before is not None else []
        assert [type(each) for _, each in replies] == ([Fault] if before is not None else [])
        assert self._known(name, tag) == before

    @precondition(lambda self: self.tags)
    @rule(seed=seeds)
    def send_features_of_a_tag_that_is_not_held(self, seed: int) -> None:
        """Of another target's, perhaps."""
        name = self._target(seed)
        others = [each.session.tag for other, each in self._open_tags() if other != name]
        tag = others[seed % len(others)] if others else Tag(99)
        if tag not in self.tags[name]:
            noise = EagleTag(tag, [1] * 9, head_method=self.head_method, identity=10_000 + seed)
            self.star.send(name, noise.past())

    # ---------------------------------------------------------------- what the hub does

    @precondition(lambda self: self.star.hub.has_work)
    @rule()
    def step(self) -> None:
        self.star.clock.advance(1.0)
        self._receive(self.star.step())

    @rule()
    def drain(self) -> None:
        """Whoever still waits misses features; as soon as they come, it does not."""
        self._drain()
        for name, tag in self._open_tags():
            if tag.session.state is TagState.DRAFTING and tag not in self.torn and len(tag.token_ids) > 1:
                tail = self._sequence(name, tag).features
                assert not tail.start <= len(tag.token_ids) - 2 < tail.stop
                self._tell(name, tag, len(tag.token_ids) - 2, len(tag.token_ids) - 1)
                self._drain()
                assert tag.session.state is TagState.PROPOSED or tag in self.torn

    @invariant()
    def rows_are_never_more_than_tags(self) -> None:
        if hasattr(self, "star"):
            self.star.hub.check_integrity()
            assert self.star.num_leased <= min(NUM_ROWS, len(self._open_tags()))

    def teardown(self) -> None:
        if not hasattr(self, "star"):
            return
        for name in self.tags:
            self.star.hub.leave(LinkId(name), self.star.clock())
        self.star.hub.check_integrity()
        assert self.star.num_leased == 0
        assert not self.star.hub.has_work
        STATISTICS.append(self.num_checked)

    # ---------------------------------------------------------------- the model

    def _receive(self, replies: list[tuple[str, HubToTarget]]) -> None:
        """A proposal is checked at once: later messages may change what the hub knows of its tag."""
        for name, message in replies:
            tag = self.tags[name].get(getattr(message, "tag", -1))
            if tag is None:
                assert isinstance(message, Fault | Reopen), "nothing of a closed tag is proposed"
                continue
            asked = tag.budget
            if not tag.receive(message):
                continue
            if isinstance(message, Proposal):
                self._check(name, tag, message)
            else:
                assert tag in self.torn, "a tag whose messages all arrived is never asked to open again"
                self._open_anew(name, tag, asked, WINDOW, [])

    def _check(self, name: str, tag: EagleTag, proposal: Proposal) -> None:
        if not proposal.token_ids and len(tag.token_ids) >= MAX_LEN:
            return
        first = self.star.first_position(name, tag)
        assert first is not None
        assert paths_of(proposal) == tag.alone(first, MAX_NODES)
        self.num_checked += 1

    def _drain(self) -> None:
        while self.star.hub.has_work:
            self._receive(self.star.step())

    def _send(self, name: str, message: object) -> None:
        self.sent.append((name, message))
        self._say(name, message)

    def _say(self, name: str, message: object) -> None:
        self.star.send(name, message)
        if self.star.hub._outbox:  # what was known already: a step only hands it over
            self._receive(self.star.step())

    def _tell(self, name: str, tag: EagleTag, start: int, stop: int) -> None:
        if start < stop:
            self._send(name, tag.features(start, stop))

    def _open_anew(self, name: str, tag: EagleTag, wanted: DraftBudget, tail: int, more: list[int]) -> None:
        self.torn.discard(tag)
        tag.token_ids += more
        self._send(name, tag.open(wanted))
        num = len(tag.token_ids)
        self._tell(name, tag, max(0, num - 1 - tail), num - 1)

    def _hostile(self, tag: EagleTag, kind: str) -> Features:
        size, num = tag.truth.shape[1], len(tag.token_ids)
        good = tag.truth[:3].clone()
        bad = {"NaN": float("nan"), "inf": float("-inf"), "huge": 2 * MAX_FEATURE}.get(kind)
        if bad is not None:
            good[1, size // 2] = bad
        data = {
            "wide": to_bytes(good)[:2] * (3 * (size + 1)),
            "narrow": to_bytes(good)[: 6 * (size - 1)],
            "odd": to_bytes(good)[:-1],
            "empty": b"",
        }.get(kind, to_bytes(good))
        start = {"beyond": num, "far": FAR}.get(kind, 0)
        return Features(tag.session.tag, start, 3, data)

    def _known(self, name: str, tag: EagleTag) -> object:
        """What the hub knows of the tag; None if it does not hold it."""
        sequence = self._sequence(name, tag)
        if sequence is None:
            return None
        length = -1 if sequence.row is None else self.star.head.cache.lengths[sequence.row]
        tree = sequence.tree
        return (
            sequence.features.start,
            sequence.features.stop,
            sequence.row,
            length,
            list(tree.token_ids),
            tree.is_rooted,
        )

    def _sequence(self, name: str, tag: EagleTag):  # type: ignore[no-untyped-def]
        found = [each for key, each in self.star.hub._sequences.items() if key == (name, tag.session.tag)]
        return found[0] if found else None

    def _verdict_ids(self, tag: EagleTag, seed: int, num_accepted: int, is_lucky: bool) -> list[int]:
        """Down a random path of the proposal, and then a token that is in the tree too, or any."""
        paths = sorted(paths_of(tag.proposal)) if tag.proposal else []
        path = list(paths[seed % len(paths)]) if paths else []
        accepted = path[:num_accepted]
        following = path[len(accepted) :]
        return [*accepted, following[0] if is_lucky and following else seed % VOCAB_SIZE]

    def _target(self, seed: int) -> str:
        return sorted(self.tags)[seed % len(self.tags)]

    def _open_tags(self) -> list[tuple[str, EagleTag]]:
        return [(name, tag) for name, tags in self.tags.items() for tag in tags.values()]

    def _tag(self, seed: int) -> tuple[str, EagleTag]:
        tags = self._open_tags()
        return tags[seed % len(tags)]


STATISTICS: list[int] = []


def test_every_tag_lives_as_if_it_were_alone() -> None:
    STATISTICS.clear()
    run_state_machine_as_test(Life, settings=settings(max_examples=180, stateful_step_count=20, deadline=None))
    assert sum(STATISTICS) > 2 * len(STATISTICS), "the lives are dull"
