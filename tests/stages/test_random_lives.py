"""Random lives of a pipe in virtual time: whatever crosses or is lost, tokens are those of plain decoding."""

from __future__ import annotations

import random

import pytest
from memory_pipe import MemoryPipe
from stage_driver import Driven, Driver
from toy_stages import VOCAB, plain, toy_stages

from starspec.errors import PeerLost
from starspec.ids import TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import DraftTree
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.windows.window import Law

NUM_SEEDS = 2000
NUM_SHARDS = 8
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
        slow_s = self.rng.choice((0.0, 0.1))
        self.pipe = MemoryPipe(toy_stages(self.num_stages, 3), lambda: self.rng.random() * slow_s)
        self.expected: dict[int, list[int]] = {}
        self.driver = Driver(self.attached(), self.draft, chunk=self.rng.choice((2, 5)))
        self.num_losses = 0

    def attached(self) -> RemoteVerifier:
        names = [f"stage {index}" for index in range(self.num_stages)]
        pipe = attach(self.pipe, names, TargetId("t"), lease_s=1.0, timeout_s=9.0, clock=self.pipe.clock)
        return RemoteVerifier(self.pipe, pipe, self.pipe.runners[0].info, depth=4, clock=self.pipe.clock)

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
        elif dice < 0.64:
            self.pipe.lose_next = self.rng.randrange(self.num_stages)
        elif dice < 0.65:
            self.pipe.restart(self.rng.randrange(self.num_stages))
        elif dice < 0.655:
            self.pipe.receive(1.5)  # the coordinator sleeps, and the stages leave
        else:
            driver.poll(self.rng.choice((0.0, 0.02, 0.3)))

    def launch(self, ready: list[Driven]) -> None:
        batch = self.rng.sample(ready, self.rng.randint(1, len(ready)))
        for each in batch:  # one launch each, as the guesses differ
            truth, at = self.expected[id(each)], len(each.presumed)
            if each.flights:
                at += each.flights[-1].tree.num_draft_tokens
            self.driver.launch([each], truth[at] if at < len(truth) and self.rng.random() < 0.8 else 1)

    def run(self) -> None:
        for _ in range(40):
            self.guarded(self.step)
        while self.driver.running or self.driver.num_in_flight:
            self.guarded(self.finish)
        self.guarded(self.settle)

    def finish(self) -> None:
        ready = [each for each in self.driver.running if not each.flights]
        if ready:
            self.driver.launch(ready)
        if not self.driver.poll(5.0) and self.driver.num_in_flight:
            raise PeerLost("nothing lands")

    def settle(self) -> None:
        self.pipe.lose_next = None
        for _ in range(3):
            self.driver.poll(0.9)

    def guarded(self, action) -> None:
        try:
            action()
        except PeerLost:
            self.num_losses += 1
            self.pipe.lose_next = None
            self.pipe.drain()
            self.driver.lose_all(self.attached())

    def check(self) -> None:
        for each in self.driver.sequences:
            truth = self.expected[id(each)]
            assert each.token_ids == truth[: len(each.token_ids)]
            assert each.is_done
        self.pipe.drain()
        for worker in self.pipe.workers:
            worker.rows.check_integrity()
            assert not worker.rows.cache.rows.leased
        self.driver.verifier.cache.check_integrity()


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_tokens_are_those_of_plain_decoding_whatever_crosses_or_is_lost(shard: int) -> None:
    num_stale = num_losses = num_dropped = 0
    for seed in range(shard, NUM_SEEDS, NUM_SHARDS):
        life = Life(seed)
        life.run()
        life.check()
        num_stale += life.driver.num_stale
        num_losses += life.num_losses
        num_dropped += sum(worker.num_dropped for worker in life.pipe.workers[:-1])
    assert num_stale > 50  # windows on refused tokens came to their end
    assert num_losses > 10
    assert num_dropped > 10  # some of them without computing before the last stage
