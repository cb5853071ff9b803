"""Random lives of a pipe in virtual time: whatever crosses, dies or is lost, tokens are those of plain decoding."""

from __future__ import annotations

import random

import pytest
from memory_pipe import MemoryPipe
from stage_driver import Driven, Driver
from toy_stages import VOCAB, plain, toy_stages

from starspec.ids import TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import StageTimes
from starspec.stages.open import LEASE_S
from starspec.windows.window import Law

NUM_SEEDS = 2000
NUM_SHARDS = 8
WAIT_S = 20.0  # of the coordinator, for a stage that is gone
HUNG_S = 400.0
SAMPLINGS = (
    SamplingSpec(temperature=0.0),
    SamplingSpec(temperature=0.8, seed=5),
    SamplingSpec(temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
)


class Life:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.num_stages = self.rng.choice((2, 2, 3, 4))
        self.num_faults = 0
        runners = toy_stages(self.num_stages, 3)
        spares = self.rng.sample(toy_stages(self.num_stages, 3), self.rng.choice((0, 0, 1)))
        slow_s = self.rng.choice((0.0, 0.1, 0.1, 3.0))
        self.pipe = MemoryPipe([*runners, *spares], lambda: self.rng.random() * slow_s)
        self.expected: dict[int, list[int]] = {}
        self.verifier = self.attached(len(spares))
        self.driver = Driver(self.verifier, self.draft, chunk=self.rng.choice((2, 5)))

    def attached(self, num_spares: int) -> RemoteVerifier:
        names, info = self.pipe.names[: self.num_stages], self.pipe.runners[0].info
        pipe = attach(self.pipe, names, TargetId("t"), lease_s=LEASE_S, timeout_s=9.0, clock=self.pipe.clock)
        spares = self.pipe.names[self.num_stages :]
        return RemoteVerifier(
            self.pipe, pipe, info, depth=4, clock=self.pipe.clock, spares=spares, times=StageTimes(wait_s=WAIT_S)
        )

    def draft(self, sequence: Driven, token_ids: list[int]) -> DraftTree:
        """True tokens, mostly; a chain or a tree."""
        num, truth = self.rng.randrange(4), self.expected[id(sequence)]
        here = truth[len(token_ids) : len(token_ids) + num]
        true = [*here, *[0] * (num - len(here))]
        ids = [token if self.rng.random() < 0.8 else self.rng.randrange(VOCAB) for token in true]
        if num < 2 or self.rng.random() < 0.6:
            return DraftTree.chain(ids)
        return DraftTree((ids[0], (ids[0] + 1) % VOCAB, *ids[1:]), (-1, -1, *([0] if num == 2 else [0, 2])))

    def begin(self) -> None:
        prompt = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(1, 9))]
        law, num_tokens = Law(self.rng.choice(SAMPLINGS), None, None), self.rng.randint(1, 9)
        sequence = Driven(prompt, len(prompt), law, len(prompt) + num_tokens)
        self.expected[id(sequence)] = plain(self.num_stages, prompt, law.sampling, num_tokens)
        self.driver.sequences.append(sequence)
        self.driver.admit(sequence)

    def step(self) -> None:
        driver, dice = self.driver, self.rng.random()
        ready = [each for each in driver.running if driver.can_launch(each)]
        if dice < 0.2 and driver.verifier.cache.num_free_rows:
            self.begin()
        elif dice < 0.6 and ready:
            self.launch(ready)
        elif dice < 0.63 and driver.running:
            driver.abort(self.rng.choice(driver.running))
        elif dice < 0.68:
            self.break_something()
        elif dice < 0.7:
            self.mend()
        elif dice < 0.705:
            self.pipe.now += 1.5 * LEASE_S  # the coordinator sleeps, and the stages leave
        else:
            driver.poll(self.rng.choice((0.0, 0.02, 0.3)))

    def break_something(self) -> None:
        self.num_faults += 1
        stage = self.rng.randrange(len(self.pipe.workers))
        match self.rng.randrange(7):
            case 0:
                self.pipe.lose_next = stage
            case 1:
                self.pipe.restart(stage)
            case 2:
                self.pipe.kill(stage)
            case 3:
                self.pipe.pause(stage)
            case 4:
                self.pipe.cut.add(stage)
            case 5:
                self.pipe.cut_link(stage, self.rng.randrange(len(self.pipe.workers)))
            case 6:
                self.pipe.cut_traversals.add((stage, self.rng.randrange(len(self.pipe.workers))))

    def mend(self) -> None:
        """What is paused or cut off goes on; what was killed starts again, unless it is the last fault of this life."""
        for link in list(self.pipe.cut_links):
            self.pipe.heal_link(*link)
        self.pipe.cut_traversals.clear()
        for stage in list(self.pipe.cut):
            self.pipe.heal(stage, are_frames_lost=self.rng.random() < 0.5)
        for stage in list(self.pipe.paused):
            self.pipe.resume(stage)
        for stage in list(self.pipe.killed):
            if self.rng.random() < 0.8:
                self.pipe.restart(stage)

    def launch(self, ready: list[Driven]) -> None:
        batch = self.rng.sample(ready, self.rng.randint(1, len(ready)))
        for each in batch:  # one launch each, as the guesses differ
            truth, at = self.expected[id(each)], len(each.presumed)
            if each.flights:
                at += each.flights[-1].tree.num_draft_tokens
            self.driver.launch([each], truth[at] if at < len(truth) and self.rng.random() < 0.8 else 1)

    def run(self) -> None:
        for _ in range(40):
            self.step()
        self.driver.poll(self.rng.choice((0.0, 1.0, 4.0)))
        self.mend()
        end_s = self.pipe.now + HUNG_S
        while self.driver.running:
            assert self.pipe.now < end_s, "requests hang"
            ready = [each for each in self.driver.running if not each.flights]
            if ready:
                self.driver.launch(ready)
            self.driver.poll(1.0)

    def settle(self) -> None:
        """Everything is whole again, and nothing is to be done: all rows are free soon, and new requests run."""
        self.pipe.lose_next = None
        self.mend()
        for stage in list(self.pipe.killed):
            self.pipe.restart(stage)
        end_s = self.pipe.now + HUNG_S
        while not self.verifier.depth or self.verifier.num_in_flight:
            assert self.pipe.now < end_s, "the pipe does not come back"
            self.driver.poll(1.0)
        self.begin()
        self.driver.decode_all()
        assert not self.driver.sequences[-1].why_failed
        while any(worker.rows.cache.rows.leased for worker in self.pipe.workers):
            assert self.pipe.now < end_s, "rows are not freed"
            self.driver.poll(1.0)

    def check(self) -> None:
        for each in self.driver.sequences:
            truth = self.expected[id(each)]
            assert each.token_ids == truth[: len(each.token_ids)]
            assert each.is_done
        for worker in self.pipe.workers:
            worker.rows.check_integrity()
        self.verifier.cache.check_integrity()


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_tokens_are_those_of_plain_decoding_whatever_crosses_dies_or_is_lost(shard: int) -> None:
    num_stale = num_losses = num_dropped = num_failed = num_faults = 0
    for seed in range(shard, NUM_SEEDS, NUM_SHARDS):
        life = Life(seed)
        life.run()
        life.settle()
        life.check()
        num_stale += life.driver.num_stale
        num_losses += life.verifier.num_losses
        num_faults += life.num_faults
        num_dropped += sum(worker.num_dropped for worker in life.pipe.workers)
        num_failed += sum(bool(each.why_failed) for each in life.driver.sequences)
    assert num_stale > 50  # windows on refused tokens came to their end
    assert num_dropped > 10
    assert num_losses > 50
    assert num_faults > 50
    assert num_failed > 0  # nobody took the place of a dead stage
