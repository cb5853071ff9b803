"""Requests that ask for relaxed verification: who may, what is asked of the hub, what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

import pytest
from toy import WordTokenizer
from toy_hub import CHAINS_OF_FOUR, SlowRunner, Star, ToyHub, VirtualClock

from starspec.config import ModelConfig, Policy, ProcessConfig, SpeculativeConfig, TargetConfig, TargetProcess
from starspec.engine.drafts import NgramDrafts
from starspec.engine.engine import TargetEngine
from starspec.engine.predicted_drafts import with_predictions
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import ConfigError, RequestError, outcome
from starspec.ids import LinkId, RequestId
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import NUM_STATED
from starspec.stats import TargetStats
from starspec.windows.local import LocalVerifier
from starspec.wire.codec import encode
from starspec.wire.messages import PROTOCOL_VERSION, Open, RequestSpec, Submit, TargetToHub, Verdict, Welcome

GREEDY = SamplingSpec(temperature=0.0)
RELAXED = RequestSpec([1, 2, 3], GREEDY, max_tokens=9, relaxed_tau=0.2)


class NotingHub(ToyHub):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.asked: list[Open | Verdict] = []

    def send(self, messages: Sequence[TargetToHub]) -> None:
        self.asked += [each for each in messages if isinstance(each, Open | Verdict) and each.num_draft_tokens]
        super().send(messages)


def test_a_target_that_was_not_told_to_refuses_relaxed_requests_and_takes_strict_ones() -> None:
    engine = Star().engine
    with pytest.raises(RequestError, match="start it with --allow-relaxed") as refusal:
        engine.submit(RequestId("a"), RELAXED)
    assert (refusal.value.param, refusal.value.status) == ("speculative.relaxed", 400)
    engine.submit(RequestId("b"), RequestSpec([1, 2, 3], GREEDY, max_tokens=9))


def test_a_length_policy_that_does_not_fit_the_drafts_is_refused_by_name() -> None:
    star = Star()
    engine = TargetEngine(
        star.engine.verifier, WordTokenizer(), star.engine.drafts, TargetConfig(), TargetStats(), policies=["fixed"]
    )
    with pytest.raises(RequestError, match="'dsde' does not fit this target's drafts: choose one of fixed") as refusal:
        engine.submit(RequestId("a"), RequestSpec([1], GREEDY, length_policy="dsde"))
    assert (refusal.value.param, refusal.value.status) == ("speculative.length.policy", 400)
    engine.submit(RequestId("a"), RequestSpec([1], GREEDY, length_policy="fixed"))


@pytest.mark.parametrize("hub_method", ["ngram", "draft_model", "eagle3", "of another release", "", None])
def test_what_a_hub_of_ngrams_cannot_do_is_refused_while_it_is_known(hub_method: str | None) -> None:
    star = Star()
    if hub_method is not None:
        star.hub.welcome = Welcome(PROTOCOL_VERSION, LinkId("l"), 1, "toy", 64, 10.0, draft_method=hub_method)
    drafts = with_predictions(star.drafts, SpeculativeConfig(), 8, TargetStats())
    config = TargetConfig(allow_relaxed=True)
    engine = TargetEngine(star.engine.verifier, WordTokenizer(), drafts, config, TargetStats())
    asked = [RequestSpec([1], GREEDY, length_policy=each) for each in get_args(Policy)]
    asked += [RELAXED, RequestSpec([1], GREEDY, relaxed_tau=0.5, length_policy="fixed"), RequestSpec([1], GREEDY)]
    errors = [outcome(partial(engine.check, spec)) for spec in asked]
    pairs = zip(asked, errors, strict=True)
    refused = [(error.param, spec.length_policy) for spec, error in pairs if isinstance(error, RequestError)]
    policies = ["confidence", "adaedl", "dsde"] if hub_method == "ngram" else []
    relaxed = [None, "fixed"] if hub_method == "ngram" else []
    names = ("speculative.length.policy", "speculative.relaxed")
    assert refused == [*((names[0], each) for each in policies), *((names[1], each) for each in relaxed)]
    for error in filter(None, errors):
        assert "this target's hub drafts by method 'ngram'" in str(error)
    star.hub.welcome = None  # it is gone, and nobody knows how the next one drafts
    for spec in asked:
        engine.check(spec)


def test_only_for_relaxed_requests_the_hub_is_asked_to_state_tokens() -> None:
    clock, stats = VirtualClock(), TargetStats()
    hub = NotingHub(clock)
    drafts = RemoteDrafts(hub, CHAINS_OF_FOUR, stats, clock)
    config = TargetConfig(prefill_chunk=5, allow_relaxed=True)
    engine = TargetEngine(LocalVerifier(SlowRunner(clock)), WordTokenizer(), drafts, config, stats, clock)
    lossless = {}
    for name, tau, num_stated in (("strict", 0.0, 0), ("relaxed", 0.2, NUM_STATED)):
        hub.asked.clear()
        engine.submit(RequestId(name), RequestSpec([1, 2, 3], GREEDY, max_tokens=9, relaxed_tau=tau))
        while engine.has_work:
            for output in engine.step().values():
                if output.stats is not None:
                    lossless[name] = output.stats.is_lossless
        assert len(hub.asked) > 1
        assert {each.budget.num_stated for each in hub.asked} == {num_stated}
    assert lossless == {"strict": True, "relaxed": False}
    assert stats.acceptance.num_relaxed_tokens == 0  # this hub states nothing


@pytest.mark.parametrize(
    ("speculative", "complaint"),
    [(SpeculativeConfig(method="ngram"), "method 'ngram' has none"), (None, "nothing drafts here")],
)
def test_without_the_drafts_probabilities_no_target_is_started(
    speculative: SpeculativeConfig | None, complaint: str
) -> None:
    settings = {"model": ModelConfig(model="toy"), "process": ProcessConfig(), "speculative": speculative}
    TargetProcess(target=TargetConfig(), **settings)
    with pytest.raises(ConfigError, match=complaint):
        TargetProcess(target=TargetConfig(allow_relaxed=True), **settings)


def test_thresholds_for_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="no effect without --allow-relaxed"):
        TargetConfig(relaxed_thresholds="file.json")


def test_prompt_lookup_states_nothing_so_its_guesses_are_verified_strictly() -> None:
    clock, stats = VirtualClock(), TargetStats()
    config = TargetConfig(prefill_chunk=5, allow_relaxed=True)
    drafts = NgramDrafts(CHAINS_OF_FOUR, 1, 3, stats)
    engine = TargetEngine(LocalVerifier(SlowRunner(clock)), WordTokenizer(), drafts, config, stats, clock)
    found: dict[str, list[int]] = {"strict": [], "relaxed": []}
    for name, tau in (("strict", 0.0), ("relaxed", 0.9)):
        engine.submit(RequestId(name), RequestSpec([1, 2, 1, 2], GREEDY, max_tokens=20, relaxed_tau=tau))
    while engine.has_work:
        for output in engine.step().values():
            found[output.request_id] += output.token_ids
    assert found["strict"] == found["relaxed"]


def test_strict_requests_are_on_the_wire_as_before() -> None:
    assert b"relaxed" not in encode(Submit(RequestId("a"), RequestSpec([1], GREEDY)))
    assert b"relaxed_tau" in encode(Submit(RequestId("a"), RELAXED))
