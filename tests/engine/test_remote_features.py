"""A hub that reads features gets each of them once, in time and in frames that it takes; nobody waits for them."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late import LANDINGS
from torch import Tensor
from toy import VOCAB_SIZE
from toy_hub import CHAINS_OF_FOUR, FULL_S, MOODS, SlowRunner, Star, ToyHub, VirtualClock

from starspec.cache.features import from_bytes
from starspec.engine.sequence_at_hub import MAX_DATA_BYTES
from starspec.ids import LinkId, RequestId, Tag
from starspec.models.runner import ForwardOutput, Segment
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.snapshot import Choice, LengthPolicy, RoundSnapshot
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import PROTOCOL_VERSION, Features, Open, RequestSpec, TargetToHub, Verdict, Welcome
from starspec.wire.session import TagSession

LAYERS, OTHER_LAYERS = (0, 2), (1,)
WINDOW = 16


def feature_of(path: Sequence[int], layers: Sequence[int], size: int) -> Tensor:
    """What the toy thinks after `path`: a hash of all of it, in numbers that bfloat16 holds."""
    hashed = zlib.crc32(bytes(path))
    numbers = [[float(layer), float(len(path)), float(hashed % 251), float(hashed // 251 % 251)] for layer in layers]
    return torch.tensor(numbers).repeat(1, size // 4).flatten()


class FeatureRunner(SlowRunner):
    """Gives features of every new token, as a real model does."""

    def __init__(self, clock: VirtualClock, size: int) -> None:
        super().__init__(clock)
        self.size = size

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> Any:
        output = super().forward(segments)
        if not feature_layers:
            return output
        rows = [feature_of(path, feature_layers, self.size) for each in segments for path in self._paths(each)]
        return ForwardOutput(output.logits, torch.stack(rows).bfloat16())

    def _paths(self, segment: Segment) -> list[list[int]]:
        length = self.cache.lengths[segment.row]
        prefix = self.cache.keys[0][segment.row, 0, :length, 0].long().tolist()
        parents = segment.parents or range(-1, len(segment.token_ids) - 1)
        paths: list[list[int]] = []
        for token_id, parent in zip(segment.token_ids, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prefix), token_id])
        return paths


class FeatureHub(ToyHub):
    """Proposes only what it has features for, and takes offence at any that are false, told twice, or of no use.

    Less patient than the real one: an Open makes it forget all features of the tag.
    """

    def __init__(self, clock: VirtualClock, size: int) -> None:
        super().__init__(clock)
        self.size = size
        self.known: dict[Tag, dict[int, Tensor]] = {}
        self.owed: dict[Tag, tuple[TagSession, int, float]] = {}
        self.asked: set[Tag] = set()  # a verdict wants a draft whose features did not come in front of it
        self.torn: set[Tag] = set()  # features of theirs, or a verdict, were lost on the way
        self.num_holes = 0
        self.frames: list[Features] = []
        self.log: list[TargetToHub] = []
        self.is_honest = True
        self.become(LAYERS)

    def become(self, layers: tuple[int, ...], window: int = WINDOW) -> None:
        """Send these layers from the next link on."""
        self.layers, self.window = layers, window
        self.welcome = Welcome(PROTOCOL_VERSION, LinkId("s"), 1, "toy head", 8, 10.0, layers, window)

    def kill(self) -> None:
        super().kill()
        self.known, self.owed = {}, {}
        self.asked.clear()

    def send(self, messages: Sequence[TargetToHub]) -> None:
        super().send(messages)
        late = [tag for tag in self.owed if tag in self.asked]
        assert not late or not self.is_honest, "a verdict asks for a draft that its features do not allow"
        if self.mood == "frozen":
            self.torn |= {message.tag for message in messages if isinstance(message, Features | Verdict)}

    def _handle(self, message: TargetToHub) -> None:
        self.log.append(message)
        match message:
            case Features(tag=tag):
                if tag not in self.ids:
                    return
                self._learn(message)
                self.asked.discard(tag)
                if tag in self.owed and self._is_ready(tag):
                    super()._propose(*self.owed.pop(tag))
            case Open(tag=tag):
                self.known[tag] = {}
                self.torn.discard(tag)
                self.asked.discard(tag)
                self.owed.pop(tag, None)
                super()._handle(message)
            case Verdict(tag=tag):
                self.owed.pop(tag, None)
                self.asked.discard(tag)
                super()._handle(message)
                if tag in self.owed and tag not in self.torn:
                    self.asked.add(tag)
            case _:
                super()._handle(message)

    def _learn(self, message: Features) -> None:
        assert self.layers, "a hub that wants none gets none"
        assert len(message.data) <= max(MAX_DATA_BYTES, 2 * self.size * len(self.layers))
        self.frames.append(message)
        known, num_tokens = self.known[message.tag], len(self.ids[message.tag])
        if message.start >= num_tokens:
            assert message.tag in self.torn, "the hub refuses features of tokens that it has not heard of"
            return
        if known and message.start > max(known) + 1:
            known.clear()
            self.num_holes += message.tag not in self.torn
        features = from_bytes(message.data, message.num_positions)
        assert features.shape[1] == self.size * len(self.layers)
        for position, feature in enumerate(features, start=message.start):
            assert position not in known, "told twice"
            assert position >= num_tokens - 1 - self.window, "too old to be of use"
            known[position] = feature

    def _is_ready(self, tag: Tag) -> bool:
        return not self.layers or len(self.ids[tag]) - 2 in self.known[tag]

    def _propose(self, session: TagSession, num: int, delay_s: float) -> None:
        self.check(session.tag)
        if self._is_ready(session.tag):
            super()._propose(session, num, delay_s)
        else:
            self.owed[session.tag] = (session, num, delay_s)

    def check(self, tag: Tag) -> None:
        """All that is known of the tag is what its target thought of just these tokens."""
        ids = self.ids[tag]
        for position, feature in self.known[tag].items():
            if position < len(ids):
                assert torch.equal(feature.float(), feature_of(ids[: position + 1], self.layers, self.size))

    def positions(self, tag: int = 1) -> list[int]:
        return sorted(self.known[Tag(tag)])


class FeatureStar(Star):
    def __init__(
        self,
        fallback: bool = False,
        size: int = 4,
        policy: LengthPolicy = CHAINS_OF_FOUR,
        late: tuple[int, int] | None = None,
    ) -> None:
        self.size = size
        super().__init__(fallback, policy, late)

    def make_hub(self) -> FeatureHub:
        self.reader = FeatureHub(self.clock, self.size)
        return self.reader

    def make_runner(self) -> FeatureRunner:
        return FeatureRunner(self.clock, self.size)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, VOCAB_SIZE - 2), k=length)


def test_every_round_is_drafted_from_features_that_came_before_its_verdict() -> None:
    star = FeatureStar()
    star.submit("a", prompt_of(11), 21)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 16
    kinds = [type(message) for message in star.reader.log if isinstance(message, Features | Verdict)]
    verdicts = [index for index, kind in enumerate(kinds) if kind is Verdict]
    assert all(kinds[index - 1] is Features for index in verdicts)


class Switched:
    """As LengthPolicy: chains, or no drafts."""

    def __init__(self) -> None:
        self.is_on = True

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        return [Choice.of(DraftBudget.chain(4 * self.is_on)) for _ in snapshot.sequences]


def test_features_wait_at_the_target_while_no_draft_is_wanted() -> None:
    policy = Switched()
    star = FeatureStar(policy=policy)
    star.submit("a", prompt_of(11), 60)
    while star.stats.acceptance.num_accepted_tokens < 8:
        star.step()
    policy.is_on = False
    star.step()
    star.step()  # the verdict of the last draft
    num_messages = len(star.reader.log)
    for _ in range(6):
        star.step()
    assert len(star.reader.log) == num_messages
    policy.is_on, before = True, star.stats.acceptance.num_accepted_tokens
    star.finish()  # the hub compares all that it is told then
    assert star.stats.acceptance.num_accepted_tokens > before + 20


def test_of_a_tree_the_features_of_the_accepted_path_are_told() -> None:
    star = FeatureStar(policy=FixedLength(DraftBudget(num_draft_tokens=6, num_steps=3, top_k=2)))
    star.reader.mood = "bushy"
    star.submit("a", prompt_of(11), 21)
    star.finish()  # the hub compares all that it was told
    assert star.stats.acceptance.num_accepted_tokens > 12


def test_only_the_last_features_of_a_prompt_are_sent_and_each_once() -> None:
    star = FeatureStar()
    star.submit("a", prompt_of(60), 3)
    for _ in range(13):  # the whole prompt, five tokens a step
        star.step()
    first, *_ = star.reader.frames
    assert first.start >= 60 - 1 - WINDOW - 5  # what is out of the window when it is computed stays here
    assert {59 - WINDOW, 58} <= set(star.reader.positions())
    star.finish()


def test_long_features_travel_in_frames_that_the_hub_takes() -> None:
    size = 2**16  # numbers of one layer: a position of two layers has 256 KiB
    star = FeatureStar(size=size)
    star.submit("a", prompt_of(9), 6)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > 0
    assert {len(frame.data) for frame in star.reader.frames} == {2**18, 2**19}
    star = FeatureStar(size=2 * size)  # a single position fills a frame
    star.submit("a", prompt_of(9), 6)
    star.finish()
    assert {frame.num_positions for frame in star.reader.frames} == {1}


def test_a_hub_that_reads_token_ids_alone_is_sent_no_features() -> None:
    star = FeatureStar()
    star.reader.become((), 0)
    star.submit("a", prompt_of(11), 21)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens == 16


def test_a_hub_whose_window_is_empty_costs_its_drafts_and_no_token() -> None:
    star = FeatureStar()
    star.reader.become(LAYERS, 0)
    star.reader.is_honest = False
    star.submit("a", prompt_of(11), 21)
    star.finish()
    assert star.stats.acceptance.num_draft_tokens == 0


@pytest.mark.parametrize("is_killed", [False, True], ids=["reopen", "restart"])
def test_a_tag_that_is_opened_anew_brings_all_of_its_tail(is_killed: bool) -> None:
    star = FeatureStar()
    star.submit("a", prompt_of(11), 70)
    for _ in range(9):
        star.step()
    if is_killed:
        star.reader.kill()
        star.step()
        star.reader.revive()
    else:
        star.reader.mood = "reopening"
        star.step()
        star.reader.mood = "good"
    before = star.stats.acceptance.num_accepted_tokens
    opened = len(star.reader.log)
    while not any(isinstance(each, Open) for each in star.reader.log[opened:]):
        star.step()
    (index, message), *_ = [
        pair for pair in enumerate(star.reader.log) if isinstance(pair[1], Open) and pair[0] >= opened
    ]
    features = star.reader.log[index + 1]
    assert isinstance(features, Features)  # at once, behind the Open
    last = len(message.token_ids) - 1
    assert range(features.start, features.start + features.num_positions) == range(last - WINDOW, last)
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > before


def star_whose_hub_is_killed() -> FeatureStar:
    star = FeatureStar()
    star.submit("a", prompt_of(11), 70)
    for _ in range(9):
        star.step()
    star.reader.kill()
    star.step()
    return star


def test_a_hub_that_comes_back_with_another_head_is_sent_what_that_one_reads() -> None:
    star = star_whose_hub_is_killed()
    star.reader.become(OTHER_LAYERS)
    star.reader.revive()
    before, num_frames = star.stats.acceptance.num_accepted_tokens, len(star.reader.frames)
    star.finish()
    assert len(star.reader.frames) > num_frames
    assert star.stats.acceptance.num_accepted_tokens > before


def test_a_hub_that_comes_back_without_a_head_is_sent_nothing_more() -> None:
    star = star_whose_hub_is_killed()
    star.reader.become((), 0)
    star.reader.revive()
    before = star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > before


def test_a_prompt_of_one_token_is_drafted_from_its_second_round_on() -> None:
    star = FeatureStar()
    star.submit("a", [5], 21)
    star.finish()
    opened = next(each for each in star.reader.log if isinstance(each, Open))
    assert opened.num_draft_tokens == 0  # there is no feature that a draft could begin with
    assert star.stats.acceptance.num_accepted_tokens == 16


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 5])
def test_a_hub_found_in_the_middle_of_a_prompt_or_answer_drafts_from_what_comes_then(num_steps: int) -> None:
    star = FeatureStar()
    star.reader.is_connected, star.reader.num_connects = False, 0
    star.reader.welcome = None
    star.submit("a", prompt_of(20), 40)
    for _ in range(num_steps):
        star.step()
    star.reader.become(LAYERS)
    star.reader.revive()
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > 20
    assert star.stats.num_late_rounds <= 1  # the first proposal may wait for the end of the prompt


def test_what_was_committed_while_an_open_was_under_way_comes_with_its_features() -> None:
    star = FeatureStar()
    star.submit("a", prompt_of(11), 12)
    star.finish()
    star.reader.mood = "prefilling"
    star.submit("b", prompt_of(9), 70)
    while star.reader.mood == "prefilling":
        verdicts = [each for each in star.reader.log if isinstance(each, Verdict) and each.tag == 2]
        if verdicts:
            star.reader.mood = "good"
        star.step()
    assert len(verdicts[0].token_ids) > WINDOW  # so much that only the end of it is of use
    before = star.stats.acceptance.num_accepted_tokens
    star.finish()
    assert star.reader.num_holes == 1
    assert star.stats.acceptance.num_accepted_tokens > before


def test_a_full_hub_gets_the_tail_when_it_has_room() -> None:
    star = FeatureStar()
    star.reader.mood = "full"
    star.submit("a", prompt_of(11), 60)
    started_s = star.clock.now
    while star.clock.now < started_s + 2.5 * FULL_S:
        star.step()
    star.reader.mood = "good"
    star.finish()
    assert star.stats.acceptance.num_accepted_tokens > 0


def test_a_request_that_does_not_speculate_sends_nothing() -> None:
    star = FeatureStar()
    spec = RequestSpec(prompt_of(11), SamplingSpec(temperature=0.0), max_tokens=9, num_draft_tokens=0)
    star.engine.submit(RequestId("a"), spec)
    while star.engine.has_work:
        star.engine.step()
    assert star.reader.frames == []


@pytest.mark.parametrize("mood", MOODS)
def test_a_bad_hub_with_a_head_costs_no_token_and_little_time(mood: str) -> None:
    star = FeatureStar()
    star.submit("a", prompt_of(11), 30)
    for _ in range(6):
        star.step()
    recent_round_s = star.stats.round.value
    star.reader.mood = mood
    star.longest_gap_s = 0.0
    star.finish()
    assert star.longest_gap_s <= max(0.25, 2 * recent_round_s)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.booleans(), st.sampled_from(LANDINGS))
def test_no_interleaving_of_faults_tells_a_feature_twice_or_a_false_one(
    seed: int, fallback: bool, late: tuple[int, int] | None
) -> None:
    chance = random.Random(seed)
    star = FeatureStar(fallback, late=late)
    for step in range(80):
        if step % 9 == 0:
            star.submit(f"r{step}", prompt_of(chance.randrange(1, 40), seed + step), chance.randrange(1, 30))
        roll = chance.random()
        if roll < 0.10:
            star.reader.mood = chance.choice(["good", *MOODS])
        elif roll < 0.14:
            star.reader.kill()
        elif roll < 0.22 and not star.reader.is_connected:
            star.reader.become(*chance.choice([(LAYERS, WINDOW), (LAYERS, WINDOW), (OTHER_LAYERS, 9), ((), 0)]))
            star.reader.revive()
        elif roll < 0.26 and star.reader.mail:  # a message arrives twice
            star.reader.mail.append(chance.choice(star.reader.mail))
        star.step()
        for tag in star.reader.sessions:
            star.reader.check(tag)
    star.finish()
