"""Findings about a running vLLM server, from what it serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from starspec.cli import run
from starspec.doctor.vllm import check_vllm
from starspec.errors import ConfigError
from starspec.harness.vllm_client import status_of, vllm_status

METRICS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 200.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 30.0
"""
PAGES = {
    "/version": json.dumps({"version": "0.32.0"}),
    "/metrics": METRICS,
    "/v1/models": json.dumps({"data": [{"id": "m"}]}),
}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_gateway_of_ours_is_called_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "/v1/models", json.dumps({"data": [{"id": "m", "owned_by": "starspec"}]}))
    with pytest.raises(ConfigError, match="is a gateway of starspec: `starspec top` shows its drafts"):
        vllm_status(url)


def test_a_server_is_read_over_all_its_engines(url: str) -> None:
    reading = vllm_status(f"{url}/v1/")
    assert reading.models == ("m",)
    assert reading.acceptance_length == pytest.approx(3.0)
    assert [each.severity for each in check_vllm(reading)] == ["ok", "ok", "ok"]
    assert "50% of their tokens accepted: 3.00 tokens a step" in check_vllm(reading)[-1].sentence


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ("", "does not speculate"),
        ("vllm:spec_decode_num_drafts_total 0.0", "no draft"),
        ("vllm:spec_decode_num_drafts_total 9\nvllm:spec_decode_num_accepted_tokens_total 1", "hardly pays"),
    ],
)
def test_drafts_that_are_missing_or_wrong_are_noted(metrics: str, sentence: str) -> None:
    check = check_vllm(status_of("0.32.0", ("m",), metrics))[-1]
    assert check.severity == "warning"
    assert sentence in check.sentence


def test_a_version_outside_the_tested_range_is_fatal() -> None:
    assert check_vllm(status_of("0.30.1", (), ""))[0].severity == "fatal"


def test_names_of_a_server_are_shown_as_they_are_and_command_no_terminal(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAGES, "/v1/models", json.dumps({"data": [{"id": "[/]a\x1b[2J"}, {"id": "[red]b"}]}))
    assert run(["doctor", "--vllm", url]) == 0
    assert "ok model: [/]a\\x1b[2J, [red]b\n" in capsys.readouterr().out


def test_nobody_and_somebody_else_are_said_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        vllm_status("http://127.0.0.1:9")
    monkeypatch.setitem(PAGES, "/metrics", "vllm:spec_decode_num_drafts_total +Inf")
    with pytest.raises(ConfigError, match="is not a vLLM server"):
        vllm_status(url)
    monkeypatch.setitem(PAGES, "/version", "{}")
    with pytest.raises(ConfigError, match="is not a vLLM server"):
        vllm_status(url)


def test_an_api_key_that_no_header_can_carry_is_one_sentence(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY must be of ASCII characters"):
        vllm_status(url)
