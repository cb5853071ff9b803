"""A target in stages emits the tokens of the model that is not cut: its own, by every rule, with any draft."""

from __future__ import annotations

import math
import random
import struct

import pytest
from memory_pipe import COORDINATOR, MemoryPipe
from stage_driver import Driven, Driver, no_draft

from stages import Chain, Whole, config_of, saved
from starspec.ids import TargetId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import KeyThresholds, Relaxation
from starspec.speculation.tree import DraftTree, Drawing, DrawnCandidates, TopTokens
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.windows.local import LocalVerifier
from starspec.windows.window import Law

NUM_ROWS = 8
NUM_TOKENS = 10
CUTS = ((2,), (1, 3), (1, 2, 3))
FAMILIES = ("llama", "qwen2", "GPT-2")
VOCAB = 64
LAWS = {
    "greedy": Law(SamplingSpec(temperature=0.0), None, None),
    "greedy with penalties": Law(
        SamplingSpec(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.3, min_tokens=4, end_token_ids=(2,)),
        None,
        2,
    ),
    "sampled": Law(SamplingSpec(temperature=0.9, top_p=0.95, seed=11), None, None),
    "sampled with penalties": Law(
        SamplingSpec(temperature=1.2, top_k=30, seed=7, presence_penalty=0.7, repetition_penalty=1.2), None, 0
    ),
}
NO_KEYS = KeyThresholds(lambda_1=1e9, lambda_2=1.0, lambda_3=0.0)
RELAXED = Law(SamplingSpec(temperature=0.8, seed=5), Relaxation(1.0, NO_KEYS), None)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that loads a tiny model, whole and in stages, the first time it is asked for it."""
    made = {}

    def load(family):
        if family not in made:
            config = config_of(
                saved(family, tmp_path_factory.mktemp("deep") / "tiny"), num_rows=NUM_ROWS, numerics="invariant"
            )
            made[family] = (Whole.load(config).runners[0], [Chain.cut(config, *cut).runners for cut in CUTS])
        return made[family]

    return load


def piped(runners, rng, hidden_dtype="model") -> tuple[MemoryPipe, RemoteVerifier]:
    pipe = MemoryPipe(runners, rng.random)
    names = [f"s{index}" for index in range(len(runners))]
    attached = attach(
        pipe, names, TargetId("t"), lease_s=1e6, timeout_s=100.0, clock=pipe.clock, hidden_dtype=hidden_dtype
    )
    return pipe, RemoteVerifier(pipe, attached, runners[0].info, depth=4, clock=pipe.clock)


def prompts(num: int, rng: random.Random) -> list[list[int]]:
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(num)]


def decode(verifier, draft, batch, laws, *, is_ahead: bool = False) -> list[list[int]]:
    driver = Driver(verifier, draft, chunk=20)
    sequences = [driver.begin(prompt, law, NUM_TOKENS) for prompt, law in zip(batch, laws, strict=True)]
    driver.decode_all(is_ahead)
    while driver.poll(9.0):
        pass
    return [each.token_ids for each in sequences]


def guesser(truths: list[list[int]], rng: random.Random):
    """Drafts of mostly true tokens: chains and trees."""

    def draft(sequence: Driven, token_ids: list[int]) -> DraftTree:
        prompt = sequence.token_ids[: sequence.prompt_len]
        truth = next(each for each in truths if each[: len(prompt)] == prompt)
        num = rng.randrange(6)
        known = truth[len(token_ids) : len(token_ids) + num]
        ids = [token if rng.random() < 0.85 else rng.randrange(VOCAB) for token in [*known, *[5] * (num - len(known))]]
        if num < 3 or rng.random() < 0.5:
            return DraftTree.chain(ids)
        return DraftTree(((ids[0] + 1) % VOCAB, *ids), (-1, -1, *range(1, num)))

    return draft


def check_drained(pipe: MemoryPipe, verifier: RemoteVerifier) -> None:
    """All rows are free everywhere, once what was on its way has arrived."""
    pipe.now += 10.0
    verifier.poll(0.0)
    pipe.drain()
    verifier.cache.check_integrity()
    for worker in pipe.workers:
        worker.rows.check_integrity()
        assert worker.rows.cache.lengths == [0] * NUM_ROWS
        assert not worker.rows.cache.rows.leased


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_plain_decoding_by_the_whole_model(family, law, models) -> None:
    whole, cuts = models(family)
    rng = random.Random(f"{family} {law}")
    for number, size in enumerate((1, 2, 5, 8), FAMILIES.index(family)):
        batch, laws = prompts(size, rng), [LAWS[law]] * size
        truths = decode(LocalVerifier(whole), no_draft, batch, laws)
        for num_cuts, runners in enumerate(cuts):
            is_ahead = (number + num_cuts) % 2 == 1  # each size and each cut meets both; other families the other ones
            pipe, verifier = piped(runners, rng)
            assert decode(verifier, guesser(truths, rng), batch, laws, is_ahead=is_ahead) == truths
            check_drained(pipe, verifier)


def test_hidden_states_in_eight_bits_take_fewer_bytes_and_drafts_still_change_no_token(models) -> None:
    """A token's scale is its own. So its states do not depend on what it travels with, but they are not exact."""
    whole, cuts = models("llama")
    rng = random.Random(8)
    batch, laws = prompts(6, rng), [LAWS["greedy"]] * 6
    pipe, verifier = piped(cuts[0], rng, "int8")
    truths = decode(verifier, no_draft, batch, laws)
    stats = verifier.pipe
    num_positions = sum(len(prompt) - 1 + NUM_TOKENS for prompt in batch)
    a_token = whole.info.hidden_size + 4
    assert [each.num_hidden_bytes for each in stats.stages] == [0, *[num_positions * a_token] * (len(cuts[0]) - 1)]
    for is_ahead in (False, True):
        pipe, verifier = piped(cuts[0], rng, "int8")
        assert decode(verifier, guesser(truths, rng), batch, laws, is_ahead=is_ahead) == truths
        check_drained(pipe, verifier)


def seeded_tree(sequence: Driven, token_ids: list[int], *, is_drawn: bool) -> DraftTree:
    """A draft that depends on nothing but the tokens, with the draft's probabilities."""
    rng = random.Random(f"{sequence.prompt_len} {token_ids}")
    ids = rng.sample(range(VOCAB), 12)
    candidates, probs = tuple(ids[:3]), tuple(1 / 12 for _ in ids)
    tree_ids, parents = (*candidates, ids[5]), (-1, -1, -1, 0)
    if is_drawn:
        drawn = DrawnCandidates(candidates, tuple(ids), probs, Drawing.WITHOUT_REPLACEMENT)
        return DraftTree(tree_ids, parents, {-1: drawn})
    return DraftTree(tree_ids, parents, tops={-1: TopTokens(tuple(ids), tuple(-1.0 - rank for rank in range(12)))})


@pytest.mark.parametrize(("law", "is_drawn"), [(LAWS["sampled with penalties"], True), (RELAXED, False)])
def test_tokens_by_rejection_and_relaxed_verification_are_those_of_the_whole_model(law, is_drawn, models) -> None:
    """They depend on the drafts, which are the same here."""
    whole, cuts = models("llama")
    rng = random.Random(3)
    batch, laws = prompts(4, rng), [law] * 4

    def draft(sequence: Driven, token_ids: list[int]) -> DraftTree:
        return seeded_tree(sequence, token_ids, is_drawn=is_drawn)

    expected = decode(LocalVerifier(whole), draft, batch, laws)
    assert expected != decode(LocalVerifier(whole), no_draft, batch, laws)
    for runners in cuts:
        pipe, verifier = piped(runners, rng)
        assert decode(verifier, draft, batch, laws) == expected
        check_drained(pipe, verifier)


def test_verdicts_carry_the_same_log_probabilities_and_divergences(models) -> None:
    whole, cuts = models("llama")
    law = Law(SamplingSpec(temperature=0.0), None, 3)
    prompt = prompts(1, random.Random(8))[0]

    def verdicts(verifier) -> list[object]:
        found: list[object] = []
        driver = Driver(verifier, lambda *asked: seeded_tree(*asked, is_drawn=False))
        land = driver._land
        driver._land = lambda flight, verdict: (found.append(verdict), land(flight, verdict))
        driver.begin(prompt, law, NUM_TOKENS)
        driver.decode_all()
        return found

    expected = verdicts(LocalVerifier(whole))
    assert all(len(each.logprobs) == len(each.result.token_ids) and each.divergences for each in expected)
    for runners in cuts:
        assert verdicts(piped(runners, random.Random(1))[1]) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_hidden_states_that_are_no_numbers_break_the_pipe_and_do_not_stay_in_the_rows(value, models) -> None:
    whole, cuts = models("llama")
    rng = random.Random(11)
    batch, laws = prompts(NUM_ROWS, rng), [LAWS["greedy"]] * NUM_ROWS
    truths = decode(LocalVerifier(whole), no_draft, batch, laws)
    pipe, verifier = piped(cuts[0], rng)
    send, is_mad = pipe.send, True

    def send_nonsense(parts, stage=0, sender=COORDINATOR) -> None:
        if is_mad and stage == 1:
            parts = [*parts[:2], struct.pack("<f", value) * (len(parts[2]) // 4)]
        send(parts, stage, sender)

    pipe.send = send_nonsense
    driver = Driver(verifier, no_draft, chunk=60)
    sequences = [driver.begin(range(3, 63), LAWS["greedy"], NUM_TOKENS) for _ in range(NUM_ROWS)]
    while verifier.num_losses < 2:
        driver.poll(1.0)
    is_mad = False
    for each in sequences:
        driver.abort(each)
    assert decode(verifier, no_draft, batch, laws) == truths
