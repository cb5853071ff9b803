"""The process: its port, its end, what it says at start, and the routes about itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from starspec import __version__
from starspec.config import GatewayConfig
from starspec.errors import ConfigError, PeerLost
from starspec.gateway.server import GatewayServer, listen
from starspec.stats import HubStats
from starspec.wire.messages import HubStatus


def samples_of(text: str) -> dict[tuple[str, str], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="in use") as refused:
            listen("127.0.0.1", taken.getsockname()[1], has_key=False)
        assert "\n" not in str(refused.value)


def test_an_address_that_this_machine_does_not_have_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.7"):
        listen("203.0.113.7", 0, has_key=False)


def test_listening_beyond_loopback_is_warned_about() -> None:
    with capture_logs() as logs:
        listen("127.0.0.1", 0, has_key=False).close()
        assert not logs
        listen("0.0.0.0", 0, has_key=False).close()
        listen("0.0.0.0", 0, has_key=True).close()
    without_key, with_key = (each["event"] for each in logs)
    assert "plain HTTP" in without_key
    assert "set an API key" in without_key
    assert "plain HTTP" in with_key
    assert "key" not in with_key  # it has one


def test_connections_send_small_chunks_at_once() -> None:
    with listen("127.0.0.1", 0, has_key=False) as listening, socket.create_connection(listening.getsockname()) as _:
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_which_generation_defaults_apply_is_said_at_start(model_folder: Path) -> None:
    for setting, applied in (("auto", "temperature=0.6, top_k=20"), ("ignore", "none")):
        with capture_logs() as logs:
            server = GatewayServer(GatewayConfig(port=0, model=str(model_folder), generation_config=setting))
        server.close()
        assert logs[0]["applied"] == applied


@pytest.mark.parametrize(("setting", "temperature"), [("auto", 0.6), ("ignore", 1.0)])
async def test_the_models_defaults_reach_the_target_unless_ignored(
    start_gateway: Any, setting: str, temperature: float
) -> None:
    gateway = await start_gateway(generation_config=setting)
    await gateway.post("/v1/completions", prompt="hi")
    (spec,) = gateway.target.submitted.values()
    assert spec.sampling.temperature == temperature
    assert spec.sampling.end_token_ids == (257,)


async def test_requests_spread_over_two_targets_and_survive_the_loss_of_one(start_gateway: Any) -> None:
    gateway = await start_gateway(num_targets=2)
    one, other = gateway.targets
    for _ in range(4):
        assert (await gateway.post("/v1/completions", prompt="hi")).status_code == 200
    assert (len(one.submitted), len(other.submitted)) == (2, 2)
    one.lose()
    await gateway.healthy(1)
    for _ in range(2):
        assert (await gateway.post("/v1/completions", prompt="hi")).status_code == 200
    assert len(other.submitted) == 4


async def test_version_and_fingerprint_name_the_release(gateway: Any) -> None:
    assert (await gateway.http.get("/version")).json() == {"version": __version__}
    reply = (await gateway.post("/v1/completions", prompt="hi")).json()
    prefix, _, digest = reply["system_fingerprint"].rpartition("-")
    assert prefix == f"starspec-{__version__}"
    assert len(digest) == 8


async def test_tokenize_and_detokenize_are_inverse(gateway: Any, tokenizer: Any) -> None:
    text = "Grüße, 漢字 €"
    tokenized = (await gateway.post("/tokenize", prompt=text, return_token_strs=True)).json()
    assert tokenized["tokens"] == tokenizer.encode(text)
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 64
    assert tokenized["token_strs"][:3] == ["G", "r", r"bytes:\xc3"]
    assert (await gateway.post("/detokenize", tokens=tokenized["tokens"])).json() == {"prompt": text}


async def test_tokenize_shows_what_the_chat_template_makes(gateway: Any, tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    opened = (await gateway.post("/tokenize", messages=messages)).json()["tokens"]
    closed = (await gateway.post("/tokenize", messages=messages, add_generation_prompt=False)).json()["tokens"]
    assert tokenizer.decode(opened) == "<s>user\nhi</s><s>assistant\n"
    assert tokenizer.decode(closed) == "<s>user\nhi</s>"
    await gateway.post("/v1/chat/completions", messages=messages)
    (spec,) = gateway.target.submitted.values()
    assert spec.prompt_token_ids == opened


async def test_tokenize_refuses_what_it_would_have_to_leave_out(gateway: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "f"}}
    reply = await gateway.post("/tokenize", messages=messages, tools=[tool])
    assert reply.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}])
async def test_tokenize_wants_either_a_prompt_or_messages(gateway: Any, body: dict[str, Any]) -> None:
    assert (await gateway.post("/tokenize", **body)).json()["error"]["param"] == "prompt"


async def test_detokenize_refuses_ids_outside_the_vocabulary(gateway: Any) -> None:
    assert (await gateway.post("/detokenize", tokens=[258])).json()["error"]["param"] == "tokens"


async def test_metrics_show_targets_hub_and_the_gateways_own_work(start_gateway: Any) -> None:
    hub_answers = True

    async def fetch_hub_status() -> HubStatus:
        if not hub_answers:
            raise PeerLost("silent")
        return HubStatus("tiny", HubStats(num_tags=3))

    gateway = await start_gateway(num_targets=2, fetch_hub_status=fetch_hub_status)
    await gateway.post("/v1/completions", prompt="hi")
    await gateway.post("/v1/completions", prompt="")
    read = samples_of((await gateway.http.get("/metrics")).text)
    assert read["starspec_spec_decode_num_accepted_tokens_total", "t0"] == 2
    assert read["starspec_spec_decode_num_accepted_tokens_total", "t1"] == 2
    assert read["starspec_hub_tags", "tiny"] == 3
    assert read["starspec_gateway_requests_total", "/v1/completions,200"] == 1
    assert read["starspec_gateway_requests_total", "/v1/completions,400"] == 1
    assert read["starspec_gateway_requests_in_flight", ""] == 1  # this one
    assert read["starspec_time_to_first_token_seconds_count", ""] == 1
    assert read["starspec_e2e_request_latency_seconds_count", ""] == 1
    assert read["starspec_prompt_tokens_total", ""] == 2


async def test_openapi_describes_every_route(gateway: Any) -> None:
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize"} <= paths.keys()


WITHOUT_TORCH = """
import sys
from starspec.cli.serve import _load
from starspec.config import GatewayConfig, GatewayProcess, ProcessConfig
server = _load(GatewayProcess(gateway=GatewayConfig(model=sys.argv[1], port=0), process=ProcessConfig()), None)
assert server._models[0].codec.vocab_size > 200
sys.exit("torch" in sys.modules)
"""


@pytest.mark.parametrize("model", ["a folder", "synthetic:"])
def test_a_gateway_process_starts_without_torch(model: str, model_folder: Path) -> None:
    """Importing it takes seconds, and it holds hundreds of megabytes."""
    command = [sys.executable, "-c", WITHOUT_TORCH, str(model_folder) if model == "a folder" else model]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
