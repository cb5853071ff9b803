"""Random lives of many tags: whatever happens, rows are accounted for and each proposal is its own tag's.

A seed is one example of one of the machines below: one random life of a hub with up to three targets. Some are there
from the first, with up to six tags; then come up to NUM_STEPS messages, lost messages, repeated messages, rounds of all
tags and draft steps in virtual time. `LIVES` says how many each setting of the hub has; they are MIN_SEEDS or more in
all, the same in every run.

In each of them: epochs never go back, a message that is stale changes nothing, no tag sees another's tokens (a proposal
is that of a fresh drafter that knows this tag alone), and so what a target emits is what it would emit alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
from hub_toys import GREEDY, PENALIZED, SAMPLED, VOCAB_SIZE, ReferenceTree, ToyStar, ToyTag, by_paths, paths_of
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

from starspec.cache.prefixes import PREFIX_BLOCK, PrefixNames
from starspec.config import MAX_DRAFT_TOKENS, RunAhead, SampleMethod
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.policy.backoff import FAILURE_PAUSE_S
from starspec.policy.capacity import MIN_ROUNDS
from starspec.policy.draft_batch import TagKey
from starspec.policy.run_ahead import NUM_OUTCOMES
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import DraftTree
from starspec.wire.messages import Close, HubToTarget, Proposal, Verdict
from starspec.wire.session import TagState

MAX_LEN = 40
SAMPLINGS = (GREEDY, SAMPLED, PENALIZED, SamplingSpec(temperature=1.0, seed=3))

MAX_NODES = 6
DOUBTS = (0.0, 0.02, 0.3, 1.0)  # p_min
CHAINS = [DraftBudget.chain(*each) for each in itertools.product(range(6), DOUBTS)]
TREES = [DraftBudget(*each) for each in itertools.product((1, 2, 4, 6, 9), (1, 2, 3, 4), (2, 3), DOUBTS)]

EVICTION = "an eviction"
HIT = "a hit"
AHEAD = "a node drafted ahead"
IN_PART = "a chain in part"
ANSWERED_AHEAD = "an answer while a draft step runs"
OTHERS_WAIT = "a draft step that goes on while others wait"
RATE_LIMITED = "a proposal beyond the rate"
DECLINED = "a tag declined"
FORECAST = "a forecast"
TAKEN_OVER = "a prompt taken over"
CUT = "a proposal cut short"

EVERYTHING = DraftBudget(MAX_DRAFT_TOKENS, MAX_DRAFT_TOKENS, 4)

BUDGETS = [*CHAINS, *CHAINS, *CHAINS, *TREES]
wanted = st.sampled_from(BUDGETS)  # one draw: most of an example's time is drawing
seeds = st.integers(0, 2**16)


class _Known(NamedTuple):
    """What the hub knows of a tag."""

    epoch: Epoch
    token_ids: tuple[int, ...]
    tree: DraftTree


class Life(RuleBasedStateMachine):
    """Up to three targets with a few tags each share a hub of three rows.

    The model of a tag is its target's own view; the model of a proposal is `reference_tree`, which knows no other
    tag, no cache and no history.
    """

    run_ahead: RunAhead = "off"
    limits: ClassVar[dict[str, Any]] = {}
    max_len: ClassVar[int] = MAX_LEN
    num_rows: ClassVar[int] = 3
    must_meet: ClassVar[set[str]] = {EVICTION}  # in some life of a kind, or it proves less than it says
    has_met: ClassVar[set[tuple[type[Life], str]]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.star = ToyStar(
            num_rows=self.num_rows,
            max_len=self.max_len,
            prefill_chunk=6,
            max_draft_tokens=MAX_NODES,
            max_tags=64,
            run_ahead=self.run_ahead,
            **self.limits,
        )
        self.numbers = itertools.count(1)
        self.tags: dict[str, dict[int, ToyTag]] = {}
        self.sent: list[tuple[str, object]] = []  # every message ever sent by a target that is still there
        self.epochs: dict[TagKey, Epoch] = {}
        self.torn: set[ToyTag] = set()  # tags of which a message was lost on the way to the hub
        self.overtaken: list[tuple[str, ToyTag, Verdict]] = []  # these messages
        self.arrived_s = 0.0  # the last message

    @initialize(
        step_s=st.sampled_from((0.0, 0.3, 0.9)), num_targets=st.integers(1, 3), num_tags=st.integers(0, 6), seed=seeds
    )
    def begin(self, step_s: float, num_targets: int, num_tags: int, seed: int) -> None:
        """Targets that are there from the first, with more tags than rows in many a life."""
        self.star.runner.step_s = step_s
        for _ in range(num_targets):
            self.join()
        chance = random.Random(seed)
        for _ in range(num_tags):
            self.open(chance.randrange(2**16), chance.choice(BUDGETS))

    # ---------------------------------------------------------------- what targets do

    @precondition(lambda self: len(self.tags) < 3)
    @rule()
    def join(self) -> None:
        name = f"t{next(self.numbers)}"
        self.star.hub.join(LinkId(name), TargetId(name), VOCAB_SIZE)
        self.tags[name] = {}

    @precondition(lambda self: self.tags)
    @rule(seed=seeds, wanted=wanted)
    def open(self, seed: int, wanted: DraftBudget) -> None:
        name, chance = self._target(seed), random.Random(seed)
        prompt = self._prompt(chance)
        method: SampleMethod = chance.choice(("coupled", "rejection"))
        tag = ToyTag(next(self.numbers), prompt, chance.choice(SAMPLINGS), method)
        self.tags[name][tag.session.tag] = tag
        self._send(name, tag.open(wanted))

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, num_accepted=st.integers(0, 5), wanted=wanted, is_lucky=st.booleans())
    def verdict(self, seed: int, num_accepted: int, wanted: DraftBudget, is_lucky: bool) -> None:
        """With or without a proposal in hand; `is_lucky`: the target's own token is the draft's next one too."""
        name, tag = self._tag(seed)
        if tag.session.is_held:
            self._send(name, tag.verdict(self._verdict_ids(tag, seed, num_accepted, is_lucky), wanted))

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, num_rounds=st.integers(1, 2))
    def go_on(self, seed: int, num_rounds: int) -> None:
        """What mostly happens: whoever waits for nothing says something, and some draft steps follow."""
        chance = random.Random(seed)
        for _ in range(num_rounds):
            self.star.clock.advance(chance.choice((0.01, 0.1, 1.0)))
            for name, tag in self._open_tags():
                if tag.session.is_held and tag.session.state is not TagState.DRAFTING and chance.random() < 0.7:
                    ids = self._verdict_ids(tag, chance.randrange(2**16), chance.randint(0, 5), chance.random() < 0.7)
                    keeps = tag.budget.num_draft_tokens and chance.random() < 0.9
                    self._send(name, tag.verdict(ids, tag.budget if keeps else chance.choice(BUDGETS)))
            for _ in range(chance.randint(1, 5)):
                self._draft_step()

    @precondition(lambda self: self._open_tags() and self.star.hub.has_work)
    @rule(seed=seeds, num_accepted=st.integers(0, 5), wanted=wanted, is_lucky=st.booleans())
    def verdict_while_a_draft_step_runs(
        self, seed: int, num_accepted: int, wanted: DraftBudget, is_lucky: bool
    ) -> None:
        """The hub gives the draft step up if the verdict makes it worthless, and takes the verdict in when it has
        ended.

        If the verdict's proposal is there already, it is sent at once, and not again.
        """
        name, tag = self._tag(seed)
        if not tag.session.is_held:
            return
        hub, answers = self.star.hub, list[HubToTarget]()
        verdict = tag.verdict(self._verdict_ids(tag, seed, num_accepted, is_lucky), wanted)

        def arrives() -> bool:
            now = self.star.clock()
            answers.extend(answer for _, answer in hub.answer_early(LinkId(name), verdict, now, now))
            return hub.is_obsolete([(LinkId(name), verdict)])

        self._draft_step(arrives)
        for answer in answers:
            self._meets(ANSWERED_AHEAD)
            assert tag.session.state is TagState.DRAFTING
            self._receive(name, answer)
        self._send(name, verdict)
        if answers:  # even if its target has lost its place meanwhile
            assert hub._sequences[TagKey(LinkId(name), tag.session.tag)].round.request is None
            assert (LinkId(name), tag.session.tag) not in [(to, message.tag) for to, message in hub._outbox]

    @precondition(lambda self: self._open_tags() and self.star.hub.has_work)
    @rule(seed=seeds, num_messages=st.integers(2, 6))
    def many_messages_while_a_draft_step_runs(self, seed: int, num_messages: int) -> None:
        """Verdicts of several tags, some of them twice, some followed by another or by Close. Some draft steps fail
        then.
        """
        chance, hub = random.Random(seed), self.star.hub
        early: list[tuple[str, Verdict | Close]] = []
        answered_early: set[tuple[LinkId, Tag, Epoch]] = set()

        def arrives() -> bool:
            for _ in range(num_messages):
                able = [each for each in self._open_tags() if each[1].session.is_held]
                if able:
                    answered_early.update(self._comes_early(*chance.choice(able), chance, early))
            if chance.random() < 0.1:
                raise RuntimeError("the accelerator is on fire")
            return hub.is_obsolete([(LinkId(name), message) for name, message in early])

        try:
            self._draft_step(arrives)
        except RuntimeError:
            hub.abandon_step(self.star.clock())
            self.star.clock.advance(FAILURE_PAUSE_S)
            self.torn |= {
                tag for name, tag in self._open_tags() if TagKey(LinkId(name), tag.session.tag) not in hub._sequences
            }
        for name, message in early:
            self._send(name, message)
            if isinstance(message, Close):
                self.torn.discard(self.tags[name].pop(message.tag))
        assert all(sequence.round.early_proposal is None for sequence in hub._sequences.values())
        told = {(to, each.tag, each.epoch) for to, each in hub._outbox if isinstance(each, Proposal)}
        assert not told & answered_early, "told twice"

    def _comes_early(
        self, name: str, tag: ToyTag, chance: random.Random, early: list[tuple[str, Verdict | Close]]
    ) -> set[tuple[LinkId, Tag, Epoch]]:
        """A message that is handled after the draft step. Returns: what is promised by the hub."""
        if chance.random() < 0.1:
            early.append((name, tag.close()))
            return set()
        ids = self._verdict_ids(tag, chance.randrange(2**16), chance.randint(0, 5), chance.random() < 0.7)
        verdict = tag.verdict(ids, tag.budget if chance.random() < 0.8 else chance.choice(BUDGETS))
        early += [(name, verdict)] * chance.choice((1, 1, 2))
        now = self.star.clock()
        answers = [answer for _ in range(2) for answer in self.star.hub.answer_early(LinkId(name), verdict, now, now)]
        for to, answer in answers:
            self._meets(ANSWERED_AHEAD)
            self._receive(str(to), answer)
            assert tag.session.state is TagState.PROPOSED
        return {(to, answer.tag, answer.epoch) for to, answer in answers}

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, wanted=wanted)
    def lose_a_verdict(self, seed: int, wanted: DraftBudget) -> None:
        name, tag = self._tag(seed)
        if tag.session.is_held:
            self.overtaken.append((name, tag, tag.verdict([seed % VOCAB_SIZE], wanted)))
            self.torn.add(tag)

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds, wanted=wanted)
    def open_anew(self, seed: int, wanted: DraftBudget) -> None:
        name, tag = self._tag(seed)
        self.torn.discard(tag)
        self._send(name, tag.open(wanted))

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds)
    def close(self, seed: int) -> None:
        name, tag = self._tag(seed)
        self._send(name, tag.close())
        self.torn.discard(tag)
        del self.tags[name][tag.session.tag]

    @precondition(lambda self: self.tags)
    @rule(seed=seeds)
    def leave(self, seed: int) -> None:
        name = self._target(seed)
        self.star.hub.leave(LinkId(name), self.star.clock())
        self.torn -= set(self.tags.pop(name).values())
        self.sent = [each for each in self.sent if each[0] != name]

    @precondition(lambda self: self.overtaken)
    @rule(seed=seeds)
    def what_was_lost_comes_late(self, seed: int) -> None:
        """After the tag was opened anew, or closed."""
        name, tag, message = self.overtaken[seed % len(self.overtaken)]
        if name in self.tags and tag not in self.torn:
            before = self._known()
            self.star.send(name, message)
            assert self._known() == before

    @precondition(lambda self: self.sent)
    @rule(seed=seeds)
    def repeat_an_old_message(self, seed: int) -> None:
        before = self._known()
        self.star.send(*self.sent[seed % len(self.sent)])
        assert self._known() == before

    # ---------------------------------------------------------------- what the hub does

    @precondition(lambda self: self.star.hub.has_work)
    @rule()
    def step(self) -> None:
        self.star.clock.advance(1.0)
        self._draft_step()

    @precondition(lambda self: self.star.hub.has_work)
    @rule()
    def abort_a_draft_step(self) -> None:
        """If it is one that nobody waits for: then nothing has happened."""
        self._draft_step(lambda: True)

    @precondition(lambda self: self.star.hub.has_work)
    @rule()
    def drain(self) -> None:
        while self.star.hub.has_work:
            self._draft_step()
        assert not self._waits()

    @precondition(lambda self: self._waits())
    @rule()
    def answer_all(self) -> None:
        """The same, but what follows their proposals need not be prepared."""
        while self._waits():
            assert self.star.hub.has_work
            self._draft_step()

    @invariant()
    def epochs_never_go_back(self) -> None:
        known = {key: sequence.session.epoch for key, sequence in self.star.hub._sequences.items()}
        assert all(epoch >= self.epochs.get(key, epoch) for key, epoch in known.items())
        self.epochs |= known

    @invariant()
    def rows_are_never_more_than_tags(self) -> None:
        self.star.hub.check_integrity()
        self._look_at_rows()

    def teardown(self) -> None:
        self._note_what_was_met()
        for name in self.tags:
            self.star.hub.leave(LinkId(name), self.star.clock())
        self.star.hub.check_integrity()
        assert self.star.num_leased == 0
        assert not self.star.hub.has_work

    # ---------------------------------------------------------------- the model

    def _prompt(self, chance: random.Random) -> list[int]:
        """Mostly short, so that a proposal comes soon and many can follow."""
        longest = chance.choice((4, 12, self.max_len + 2))
        return chance.choices(range(VOCAB_SIZE), k=chance.randint(1, longest))

    def _draft_step(self, is_obsolete: Callable[[], bool] | None = None) -> None:
        """One draft step of the hub; or what was ready to be sent."""
        for name, message in self.star.step(is_obsolete):
            self._receive(name, message)
        self._look_at_rows()

    def _look_at_rows(self) -> None:
        hub = self.star.hub
        if 0 < len(hub._scheduler._repeating) < hub._buffer.num_waiting:
            self._meets(OTHERS_WAIT)
        assert self.star.num_leased <= min(self.num_rows, len(self._open_tags()))

    def _receive(self, name: str, message: HubToTarget) -> None:
        tag = self.tags[name].get(getattr(message, "tag", -1))
        if tag is None:
            return  # closed while the reply was on its way
        asked = tag.budget
        if not tag.receive(message):
            return
        if isinstance(message, Proposal) and message.retry_after_s:
            assert "admission" in self.limits
            assert not message.token_ids
            tag.session.lose()
        elif isinstance(message, Proposal):
            self._check(by_paths(message), tag, is_chain=asked.is_chain)
        else:
            assert tag in self.torn or "admission" in self.limits, (
                "a tag whose messages all arrived is never asked to open again"
            )
            self.torn.discard(tag)
            self._send(name, tag.open(asked))

    def _check(self, told: ReferenceTree, tag: ToyTag, is_chain: bool) -> None:
        """The proposal is that of a fresh drafter; of one that runs ahead a chain may be told before it is complete."""
        expected = tag.expected_tree(MAX_NODES, self.max_len)
        if self.run_ahead == "off" or not is_chain:
            assert told == expected
            return
        assert told.nodes <= expected.nodes
        if len(told.nodes) < len(expected.nodes):
            self._meets(IN_PART)
        assert bool(told.nodes) == bool(expected.nodes)
        assert told.drafts.items() <= expected.drafts.items()

    def _meets(self, event: str) -> None:
        self.has_met.add((type(self), event))

    def _note_what_was_met(self) -> None:
        stats = self.star.hub.status(self.star.clock()).stats
        counts = {
            EVICTION: stats.num_evictions,
            HIT: stats.num_hits,
            AHEAD: stats.num_ahead_nodes,
            DECLINED: stats.num_declined,
            RATE_LIMITED: stats.num_rationed,
            TAKEN_OVER: stats.num_shared_tokens,
            CUT: stats.num_cut,
        }
        for event, count in counts.items():
            if count:
                self._meets(event)

    def _verdict_ids(self, tag: ToyTag, seed: int, num_accepted: int, is_lucky: bool) -> list[int]:
        """Down a random path of the proposal, and then a token that the draft thinks likely or likeliest, or any."""
        paths = sorted(paths_of(tag.proposal)) if tag.proposal else []
        accepted = list(paths[seed % len(paths)][:num_accepted]) if paths else []
        if not is_lucky:
            return [*accepted, seed % VOCAB_SIZE]
        width = 1 if seed % 3 else NUM_OUTCOMES
        following = tag.expected_after(accepted, DraftBudget(width, 1, width), self.max_len)
        return [*accepted, *(random.Random(seed).choice(sorted(following.nodes)) if following.nodes else (0,))]

    def _known(self) -> dict[TagKey, _Known]:
        sequences = self.star.hub._sequences
        return {
            key: _Known(each.session.epoch, tuple(each.token_ids), each.tree.best(EVERYTHING))
            for key, each in sequences.items()
        }

    def _send(self, name: str, message: object) -> None:
        """Some messages have arrived while a draft step ran, one after the other."""
        ago_s = self.star.runner.step_s * (len(self.sent) % 3) / 3
        self.arrived_s = max(self.arrived_s, self.star.clock() - ago_s)
        self.sent.append((name, message))
        self.star.send(name, message, arrived_s=self.arrived_s)

    def _target(self, seed: int) -> str:
        return sorted(self.tags)[seed % len(self.tags)]

    def _open_tags(self) -> list[tuple[str, ToyTag]]:
        return [(name, tag) for name, tags in self.tags.items() for tag in tags.values()]

    def _waits(self) -> bool:
        """Whether a tag waits for a proposal, and the hub knows of it."""
        return any(tag.session.state is TagState.DRAFTING and tag not in self.torn for _, tag in self._open_tags())

    def _tag(self, seed: int) -> tuple[str, ToyTag]:
        tags = self._open_tags()
        return tags[seed % len(tags)]


class LifeAlongTheChain(Life):
    """As above, with a hub that drafts what follows if all is accepted."""

    run_ahead = "chain"
    must_meet: ClassVar[set[str]] = {EVICTION, HIT, AHEAD, IN_PART, ANSWERED_AHEAD}


class LifeOfOutcomes(Life):
    """As above, with a hub that drafts what follows each likely outcome."""

    run_ahead = "outcomes"
    must_meet: ClassVar[set[str]] = {EVICTION, HIT, AHEAD, IN_PART, ANSWERED_AHEAD}

    @precondition(lambda self: self._open_tags())
    @rule(seed=seeds)
    def likely_outcomes_come_true(self, seed: int) -> None:
        """Of one tag, each after two draft steps that may run ahead of it: some of the next chain is there then."""
        name, tag = self._tag(seed)
        for _ in range(3):
            if tag in self.torn or not tag.session.is_held:
                return
            self._send(name, tag.verdict(self._verdict_ids(tag, 3 * seed, 0, is_lucky=True), DraftBudget.chain(4)))
            self.answer_all()
            for _ in range(2):
                self._draft_step()


class LifeOfTrials(Life):
    """As above, with a hub that tries for each tag whether running ahead pays; here it tries whenever it is told to."""

    run_ahead = "auto"
    must_meet: ClassVar[set[str]] = {EVICTION, AHEAD}

    @precondition(lambda self: self.tags)
    @rule(seed=seeds)
    def change_the_mode(self, seed: int) -> None:
        """Of some sequences, and of some that will be opened: as many rounds as that takes. Then all go on in it."""
        chance, hub = random.Random(seed), self.star.hub
        choices = [sequence.round.ahead_choice for sequence in hub._sequences.values()]
        choices += [hub._links[LinkId(name)].ahead_choice for name in self.tags]
        for choice in chance.sample(choices, chance.randint(1, len(choices))):
            before = choice.mode
            while choice.mode == before:
                choice.add_round(1.0, 1.0 + seed % 7)
        self.go_on(seed, 1)
        self.drain()


class LifeInTurns(Life):
    """As above, with room for two sequences in a draft step, and one target of more weight than the others."""

    must_meet: ClassVar[set[str]] = {EVICTION, OTHERS_WAIT}
    limits: ClassVar[dict[str, Any]] = {"max_batch": 2, "weights": {"t1": 4.0}}


class LifeWithEarlyProposals(Life):
    """As above, where one target is always behind its objective, another soon beyond its rate, and rows are two."""

    num_rows = 2
    run_ahead = "outcomes"
    must_meet: ClassVar[set[str]] = {EVICTION, OTHERS_WAIT, RATE_LIMITED}
    limits: ClassVar[dict[str, Any]] = {
        "max_batch": 1,
        "slo_round_ms": {"t2": 1e-3},
        "rate_limits": {"t1": 1.0, "t3": 0.1},
    }

    def _check(self, told: ReferenceTree, tag: ToyTag, is_chain: bool) -> None:
        if told.nodes:
            super()._check(told, tag, is_chain)


class LifeOfDearLaws(Life):
    """As above, where drawing takes so long that targets get what is drafted already while others ask."""

    run_ahead = "outcomes"
    must_meet: ClassVar[set[str]] = {EVICTION, HIT, AHEAD, CUT}

    @precondition(lambda self: len(self.tags) < 3)
    @rule()
    def join(self) -> None:
        super().join()
        newest = list(self.star.hub._links._links.values())[-1]
        newest.law_timer._clock = itertools.count(step=0.4).__next__  # so long takes each draw

    def _check(self, told: ReferenceTree, tag: ToyTag, is_chain: bool) -> None:
        """Each node is a child that a fresh drafter would draw, below one that is told, too."""
        width = DraftBudget(tag.budget.top_k, 1, tag.budget.top_k)
        assert {path[:-1] for path in told.nodes} <= told.nodes | {()}
        assert len(told.nodes) <= MAX_NODES
        for above in {path[:-1] for path in told.nodes} | told.drafts.keys():
            expected = tag.expected_after(above, width, self.max_len)
            assert {path[-1:] for path in told.nodes if path[:-1] == above} <= expected.nodes
            assert told.drafts.get(above) == expected.drafts.get(())


class LifeWithAdmission(Life):
    """As above, where two of three targets are drafted for."""

    must_meet: ClassVar[set[str]] = {EVICTION, DECLINED}
    limits: ClassVar[dict[str, Any]] = {"max_batch": 2, "admission": 2}


class LifeWithPredictedAdmission(LifeWithAdmission):
    """As above, for as many targets as the hub predicts to gain by it."""

    run_ahead = "outcomes"
    limits: ClassVar[dict[str, Any]] = {"max_batch": 1, "admission": "n_max"}
    must_meet: ClassVar[set[str]] = {EVICTION, HIT, DECLINED, FORECAST}

    @precondition(lambda self: self._open_tags())
    @rule()
    def work_undisturbed(self) -> None:
        """As many rounds of the shortest tag as make its target known."""
        name, tag = min(self._open_tags(), key=lambda each: len(each[1].token_ids))
        for _ in range(2 * MIN_ROUNDS):
            self.answer_all()
            if tag in self.torn or not tag.session.is_held:
                return
            self.star.clock.advance(0.2)
            self._send(name, tag.verdict(tag.told_otherwise(0) if tag.proposal else [0], DraftBudget.chain(3)))

    @invariant()
    def whoever_has_a_place_is_there(self) -> None:
        admission = self.star.hub._links._admission
        assert admission._admitted.keys() <= {LinkId(name) for name in self.tags}
        if self.star.hub.status(self.star.clock()).stats.num_max:
            self._meets(FORECAST)


class LifeOfLikeBeginnings(Life):
    """As above, where tags begin like others did, open or closed: most of what is read is taken over, some of it lost.

    Each proposal is still that of a fresh drafter, so that no slot of another's tokens was ever read.
    """

    run_ahead = "outcomes"
    must_meet: ClassVar[set[str]] = {EVICTION, HIT, AHEAD, TAKEN_OVER}
    limits: ClassVar[dict[str, Any]] = {"share_prefixes": "hub"}
    max_len = 80  # five blocks

    def __init__(self) -> None:
        super().__init__()
        self.texts = [random.Random(1).choices(range(VOCAB_SIZE), k=60)]  # what tags may begin with

    @invariant()
    def what_is_known_of_rows_is_what_they_hold(self) -> None:
        """Read back from the toy's cache: the blocks that the index knows, in free rows too."""
        sharing, runner = self.star.hub._drafter._sharing, self.star.runner
        for row in range(self.num_rows):
            known = sharing._index.names(row)
            tokens = runner.cache.keys[0][row, 0, : len(known) * PREFIX_BLOCK, 0].int().tolist()
            assert list(PrefixNames(b"").of(tokens)) == known

    def _prompt(self, chance: random.Random) -> list[int]:
        begins = chance.choice([self.texts[0], self.texts[-1], chance.choice(self.texts)])
        kept = chance.choice([len(begins), chance.randint(1, len(begins))])
        prompt = [*begins[:kept], *chance.choices(range(VOCAB_SIZE), k=chance.randint(1, 20))]
        self.texts.append(prompt)
        return prompt

    def _send(self, name: str, message: object) -> None:
        super()._send(name, message)
        if isinstance(message, Verdict):
            self.texts.append(list(self.tags[name][message.tag].token_ids))


MIN_SEEDS, NUM_STEPS = 1_300, 30
LIVES: dict[type[Life], int] = {
    Life: 200,
    LifeAlongTheChain: 300,
    LifeOfOutcomes: 300,
    LifeOfTrials: 120,
    LifeInTurns: 100,
    LifeWithEarlyProposals: 100,
    LifeOfDearLaws: 100,
    LifeWithAdmission: 100,
    LifeWithPredictedAdmission: 100,
    LifeOfLikeBeginnings: 180,
}


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__)
def test_all_goes_well_in(life: type[Life]) -> None:
    run_state_machine_as_test(
        life, settings=settings(max_examples=LIVES[life], stateful_step_count=NUM_STEPS, deadline=None)
    )
    assert life.must_meet <= {event for kind, event in life.has_met if kind is life}


def test_there_are_as_many_seeds_as_promised() -> None:
    assert sum(LIVES.values()) >= MIN_SEEDS
