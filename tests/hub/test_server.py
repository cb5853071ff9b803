"""The whole draft server over loopback sockets."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hub_toys import ToyTag
from structlog.testing import capture_logs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from starspec.config import HubConfig, LengthConfig, ModelConfig, RemoteConfig, SpeculativeConfig, TargetConfig
from starspec.engine.build import make_drafts
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.gateway.hub_status import HubStatusClient
from starspec.hub.build import load_drafter
from starspec.hub.checks import suited_to
from starspec.hub.server import DraftServer
from starspec.ids import TargetId
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.resolve import resolve_draft
from starspec.models.runner import ModelInfo
from starspec.stats import TargetStats
from starspec.wire.messages import PROTOCOL_VERSION, Hello, HubStatus, HubToTarget, Proposal
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_target import ZmqTarget

VOCAB_SIZE = 40
PATIENCE_S = 20.0  # of a test; nothing waits this long unless it fails
NGRAM = SpeculativeConfig(method="ngram")
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB_SIZE, max_position_embeddings=128, initializer_range=0.3, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w1"))).save_pretrained(folder)
    return folder


@contextmanager
def serving(config: HubConfig, speculative: SpeculativeConfig, model: ModelConfig | None) -> Iterator[DraftServer]:
    server = DraftServer(config, speculative, model)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20.0)
        assert not thread.is_alive()


@contextmanager
def target(server: DraftServer, fingerprint: str = "any") -> Iterator[ZmqTarget]:
    """A target that the hub has answered, one way or the other."""
    link = ZmqTarget(server.address, Hello(PROTOCOL_VERSION, TargetId("t"), VOCAB_SIZE, fingerprint))
    try:
        until(lambda: link.is_connected or "the hub refused" in link.problem, link)
        yield link
    finally:
        link.close()


def until(condition: Callable[[], object], *links: ZmqTarget) -> list[HubToTarget]:
    """Let targets drive their connections until the condition holds. Returns: what they received meanwhile."""
    received: list[HubToTarget] = []
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, "the condition never held"
        time.sleep(0.001)  # whoever wants the turn gets it
        for link in links:
            received += link.receive(0.0)
    return received


def proposal_of(link: ZmqTarget) -> Proposal:
    (proposal,) = link.receive(PATIENCE_S)
    assert isinstance(proposal, Proposal)
    return proposal


def ask(server: DraftServer) -> HubStatus:
    async def once() -> HubStatus:
        asker = HubStatusClient(server.address)
        try:
            return await asker()
        finally:
            asker.close()

    return asyncio.run(once())


def test_a_model_drafts_over_sockets_what_transformers_says_next(tiny_llama: Path) -> None:
    model = ModelConfig(model=str(tiny_llama), dtype="float32", num_rows=2)
    tag = ToyTag(1, [5, 6, 7])
    reference = LlamaForCausalLM.from_pretrained(tiny_llama)
    fingerprint = vocab_fingerprint(load_tokenizer(str(tiny_llama)))
    with serving(HubConfig(port=0), SpeculativeConfig(), model) as server, target(server, fingerprint) as link:
        for answer in (lambda: tag.open(4), lambda: tag.verdict([9, 2], 4)):
            link.send([answer()])
            expected = reference.generate(
                torch.tensor([tag.token_ids]), max_new_tokens=4, do_sample=False, eos_token_id=None
            )
            assert proposal_of(link).token_ids == expected[0, len(tag.token_ids) :].tolist()


def test_a_hub_tells_what_its_cache_takes_if_it_has_one(tiny_llama: Path) -> None:
    model = ModelConfig(model=str(tiny_llama), dtype="float32", num_rows=2)
    with serving(HubConfig(port=0), SpeculativeConfig(), model) as server:
        assert re.fullmatch("2 cache rows, at most [0-9]+ MiB", server.memory)
    with serving(HubConfig(port=0), NGRAM, None) as server:
        assert server.memory == ""


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"length": LengthConfig(policy="dsde")}, "length.policy 'dsde' needs a draft that knows probabilities"),
        ({"draft_p_min": 0.3}, "method 'ngram' knows no probabilities: leave draft_p_min out"),
        ({"eagle_topk": 2}, "method 'ngram' drafts chains: leave eagle_topk at 1"),
        ({"num_speculative_tokens": 9}, "a proposal of the hub has at most 5 draft tokens, and 9 are asked for"),
        ({"num_speculative_tokens": 5}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_a_target_warns_of_what_its_hub_cannot_do(tiny_llama: Path, told: dict[str, Any], problem: str) -> None:
    info, tokenizer = ModelInfo("tiny", VOCAB_SIZE, 128, 2, 32, ()), load_tokenizer(str(tiny_llama))
    with serving(HubConfig(port=0, max_draft_tokens=5), NGRAM, None) as server, capture_logs() as logs:
        speculative = SpeculativeConfig(remote=RemoteConfig(endpoint=server.address), **told)
        drafts = make_drafts(TargetConfig(), speculative, info, tokenizer, TargetStats(), Waiting())
        try:
            until(lambda: drafts.poll() or drafts.is_connected)
        finally:
            drafts.shutdown()
    warnings = [each for each in logs if each["log_level"] == "warning"]
    assert len(warnings) == bool(problem), warnings
    assert all(problem in each["problem"] for each in warnings)


def test_a_target_of_another_vocabulary_is_refused_and_told_why(tiny_llama: Path) -> None:
    model = ModelConfig(model=str(tiny_llama), dtype="float32", num_rows=2)
    with serving(HubConfig(port=0), SpeculativeConfig(), model) as server, target(server, "another") as link:
        assert "does not share the target's tokenizer" in link.problem


def test_prompt_lookup_serves_any_vocabulary_and_the_status_counts_it() -> None:
    with serving(HubConfig(port=0), NGRAM, None) as server, target(server) as link:
        link.send([ToyTag(1, [1, 2, 3, 4, 1, 2]).open(2)])
        assert proposal_of(link).token_ids == [3, 4]
        until(lambda: ask(server).stats.num_proposals == 1)
        status = ask(server)
    assert (status.draft_name, status.stats.num_targets, status.stats.num_tags) == ("ngram", 1, 1)


def test_a_target_that_says_goodbye_is_forgotten() -> None:
    with serving(HubConfig(port=0), NGRAM, None) as server:
        with target(server) as link:
            link.send([ToyTag(1, [1, 2]).open(1)])
            proposal_of(link)
        until(lambda: ask(server).stats.num_targets == 0)
        assert ask(server).stats.num_tags == 0


def test_a_port_in_use_is_said_in_one_sentence() -> None:
    with serving(HubConfig(port=0), NGRAM, None) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=str(port)):
            DraftServer(HubConfig(port=port), NGRAM, None)


def test_a_port_that_is_taken_is_known_before_the_draft_is_loaded() -> None:
    with serving(HubConfig(port=0), NGRAM, None) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"the hub cannot listen on 127.0.0.1:{port}: the port is in use"):
            DraftServer(HubConfig(port=port), SpeculativeConfig(model="/nowhere"), ModelConfig(model="/nowhere"))


def test_an_address_that_is_not_loopback_needs_keys() -> None:
    with pytest.raises(ConfigError, match="keygen"):
        DraftServer(HubConfig(host="0.0.0.0", port=0), NGRAM, None)


def test_a_draft_model_that_is_not_given_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="needs a draft"):
        load_drafter(resolve_draft(SpeculativeConfig()), None, 1)


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_drafts_that_have_nothing_to_prepare_refuse_to_run_ahead(method: Literal["ngram", "eagle3"]) -> None:
    speculative = SpeculativeConfig(method=method)
    for run_ahead in ("chain", "outcomes"):
        with pytest.raises(ConfigError, match=f"--run-ahead {run_ahead} is for draft models: this draft .* leave the"):
            suited_to(resolve_draft(speculative), HubConfig(run_ahead=run_ahead))
    assert suited_to(resolve_draft(speculative), HubConfig(run_ahead="auto")).run_ahead == "off"
    assert suited_to(resolve_draft(SpeculativeConfig()), HubConfig(run_ahead="auto")).run_ahead == "auto"


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_drafts_that_have_no_prefix_to_share_refuse_to_share_between_targets(
    method: Literal["ngram", "eagle3"],
) -> None:
    speculative = SpeculativeConfig(method=method)
    with pytest.raises(ConfigError, match=r"--share-prefixes hub is for draft models: this draft .* leave the"):
        suited_to(resolve_draft(speculative), HubConfig(share_prefixes="hub"))
    for unsaid in ("target", "off"):
        assert suited_to(resolve_draft(speculative), HubConfig(share_prefixes=unsaid)).share_prefixes == unsaid
    assert suited_to(resolve_draft(SpeculativeConfig()), HubConfig(share_prefixes="hub")).share_prefixes == "hub"
