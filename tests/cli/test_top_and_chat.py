"""`top` and `chat` tell what a gateway says, and say plainly when there is none. The gateway has canned answers."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replaced

from starspec.ids import TargetId
from starspec.observe.view import EventView, HubView, StarView, TargetView
from starspec.stats import AcceptanceStats, HubStats, PipeStats, StageStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus

STATUS = TargetStatus(
    target_id=TargetId("left"),
    model="toy",
    max_model_len=128,
    num_running=3,
    num_waiting=1,
    num_rows=8,
    num_free_rows=5,
    is_draft_connected=True,
    stats=TargetStats(acceptance=AcceptanceStats(num_drafts=10, num_draft_tokens=40, num_accepted_tokens=25)),
)
VIEW = StarView(
    time_s=7.0,
    models=["toy"],
    version="1",
    is_ready=True,
    shows_text=False,
    targets=[
        TargetView(name="left at tcp://a:1", state="ready", for_s=1.0, status=STATUS),
        TargetView(name="left at tcp://b:1", state="ready", for_s=1.0, status=STATUS),
        TargetView(name="right", state="silent", for_s=1.0),
    ],
    hubs=[HubView(name="hub", state="lost", for_s=1.0)],
    requests=[],
    events=[EventView(time_s=7.0, kind="bad", text="right does not answer")],
)
METRICS = {
    "tokens_per_second": 12.34,
    "speculative_decoding": {
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 5,
        "mean_acceptance_length": 3.5,
    },
}

HOSTILE = "a\x1b[2J\x9b\r\ud800"
ESCAPED = r"a\x1b[2J\x9b\r\ud800"


class Gateway:
    """Answers with one view, and each chat with the words of its last message, in reverse."""

    def __init__(self) -> None:
        self.view = VIEW
        self.usage: dict[str, Any] = {"completion_tokens": 9}
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.choices: list[dict[str, Any]] = []  # of the next answers, in place of the words
        self.error: dict[str, Any] | None = None  # how the next answers end
        self.pages: dict[str, bytes] = {}  # path -> what a server that is no gateway answers there

    def stream(self, path: str, body: bytes) -> Iterator[bytes]:
        if path == "/dashboard/events":
            yield msgspec.json.encode(self.view)
            return
        self.bodies.append(asked := json.loads(body))
        words = [{"delta": {"content": f"{each} "}} for each in reversed(asked["messages"][-1]["content"].split())]
        for choice in self.choices or words:
            yield json.dumps({"choices": [choice]}).encode()
        if self.error is not None:
            yield json.dumps({"error": self.error}).encode()
            return
        metrics = METRICS if asked["speculative"] else {"tokens_per_second": 6.0, "speculative_decoding": {}}
        yield json.dumps({"choices": [], "usage": self.usage, "metrics": metrics}).encode()
        yield b"[DONE]"


@pytest.fixture
def gateway() -> Iterator[tuple[Gateway, str]]:
    canned = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            canned.keys.append(self.headers["authorization"])
            if self.path == "/v1/models":
                self._send(json.dumps({"data": [{"id": "toy"}, {"id": "second"}]}).encode())
            else:
                self._send(b"".join(b"data: " + each + b"\n\n" for each in canned.stream(self.path, b"")))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._send(b"".join(b"data: " + each + b"\n\n" for each in canned.stream(self.path, body)))

        def _send(self, content: bytes) -> None:
            content = canned.pages.get(self.path, content)
            self.send_response(200 if canned.keys[-1:] != ["Bearer wrong"] else 401)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield canned, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_top_shows_every_target_and_the_last_events(gateway: Any, starspec: Callable[..., Any]) -> None:
    _, url = gateway
    outcome = starspec("top", f"{url}/dashboard", "--once")
    assert outcome.code == 0
    first, second, right = (line for line in outcome.out.splitlines() if "left" in line or "│ right" in line)
    assert "3.50" in first
    assert "3.50" in second
    assert "silent" in right
    assert "right does not answer" in outcome.out


def test_top_in_a_pipe_prints_lines_until_the_gateway_stops(gateway: Any, starspec: Callable[..., Any]) -> None:
    _, url = gateway
    outcome = starspec("top", f"{url}/v1")
    assert outcome.out.startswith("left at tcp://a:1: 0.0 tokens/s, acceptance length 3.50")
    assert "| left at tcp://b:1: 0.0 tokens/s, acceptance length 3.50" in outcome.out
    assert (outcome.code, outcome.err) == (1, f"starspec: the gateway at {url} has stopped\n")


def test_top_tells_a_target_that_is_named_as_the_hub_from_the_hub(gateway: Any, starspec: Callable[..., Any]) -> None:
    canned, url = gateway
    canned.view = replaced(VIEW, targets=[replaced(VIEW.targets[2], name=name) for name in ("hub", "gateway")])
    lines = starspec("top", url, "--once").out.splitlines()
    for name in ("hub", "gateway"):
        assert any(line.startswith(f"│ {name}") and "silent" in line for line in lines)
    assert [line.rstrip() for line in lines if line.startswith("hub")] == ["hub    lost"]


@pytest.mark.parametrize("options", [("--once",), ()])
def test_what_top_reads_commands_no_terminal(
    gateway: Any, starspec: Callable[..., Any], options: tuple[str, ...]
) -> None:
    canned, url = gateway
    target, hostile = VIEW.targets[0], "[/]a\x1b[2J\x9b\r"
    stats = TargetStats(pipe=PipeStats(stages=[StageStats(endpoint="a", layers=hostile, index=0)]))
    canned.view = replaced(
        VIEW,
        models=[hostile],
        targets=[
            replaced(target, name=hostile, status=replaced(STATUS, stats=stats, is_draft_connected=False)),
            TargetView(name=f"b{hostile}", state=hostile, for_s=1.0),
        ],
        hubs=[HubView(name=hostile, state=hostile, for_s=1.0, status=HubStatus(hostile, HubStats()))],
        events=[EventView(time_s=7.0, kind=hostile, text=hostile)],
    )
    outcome = starspec("top", url, *options)
    assert outcome.out.replace("\n", "").isprintable()
    shown = "".join(outcome.out.split())
    assert shown.count(r"[/]a\x1b[2J\x9b\r") >= 3


@pytest.mark.parametrize("command", ["top", "chat"])
def test_why_a_gateway_refuses_commands_no_terminal(gateway: Any, starspec: Callable[..., Any], command: str) -> None:
    canned, url = gateway
    error = json.dumps({"error": {"message": HOSTILE}}).encode()
    canned.pages = dict.fromkeys(("/v1/models", "/dashboard/events"), error)
    outcome = starspec(command, url, "--api-key", "wrong")
    assert outcome.err == f"starspec: the gateway refuses: {ESCAPED}\n"


@pytest.mark.parametrize("command", ["top", "chat"])
def test_a_gateway_that_is_not_there_is_one_sentence(command: str, starspec: Callable[..., Any]) -> None:
    outcome = starspec(command, "127.0.0.1:1")
    assert outcome.code == 1
    assert outcome.err.startswith("starspec: the gateway at http://127.0.0.1:1 does not answer: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_of_a_chat_has_the_bounds_that_generate_has(seed: str, starspec: Callable[..., Any]) -> None:
    outcomes = [starspec("chat", "--seed", seed), starspec("generate", "hi", "--target", "synthetic:", "--seed", seed)]
    assert [outcome.err for outcome in outcomes] == [f"starspec: --seed must be in [0, 2**63), got {seed}\n"] * 2


@pytest.mark.parametrize("command", ["top", "chat"])
def test_a_wrong_key_is_one_sentence(command: str, gateway: Any, starspec: Callable[..., Any]) -> None:
    canned, url = gateway
    outcome = starspec(command, url, "--api-key", "wrong")
    assert (outcome.code, outcome.err) == (1, "starspec: the gateway refuses: it answers 401\n")
    assert canned.keys == ["Bearer wrong"]


@pytest.mark.parametrize("command", ["top", "chat"])
@pytest.mark.parametrize("url", ["http://[::1", "http://a:b:c", "a:b:c", "http://a\x01b/", "http://\udcff"])
def test_what_is_no_address_is_one_sentence(command: str, url: str, starspec: Callable[..., Any]) -> None:
    outcome = starspec(command, url)
    assert outcome.code == 2
    assert outcome.err.startswith(f"starspec: {url!a} is not the address of a gateway, such as http://127.0.0.1:8000: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("command", ["top", "chat"])
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("http_proxy", "foo:bar"),
        ("ALL_PROXY", "gopher://127.0.0.1:1"),
        ("SSL_CERT_FILE", "/nowhere"),
    ],
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_one_sentence(
    command: str, variable: str, value: str, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    outcome = starspec(command, "http://example.invalid")
    told = "starspec: environment variables name a proxy or certificates (SSL_CERT_FILE) that cannot be used: "
    assert outcome.code == 2
    assert outcome.err.startswith(told)
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".b"])
def test_a_host_that_cannot_be_is_one_sentence(host: str, starspec: Callable[..., Any]) -> None:
    outcome = starspec("top", host)
    assert outcome.code == 1
    assert outcome.err.startswith(f"starspec: the gateway at http://{host} does not answer: ")
    assert outcome.err.count("\n") == 1


HTML = b"<html>It works!</html>"
OF_ANOTHER_RELEASE = b'data: {"targets": 3}\n\n'


@pytest.mark.parametrize(
    ("command", "page"),
    [
        (("top",), HTML),
        (("top", "--once"), HTML),
        (("top",), OF_ANOTHER_RELEASE),
        (("top", "--once"), OF_ANOTHER_RELEASE),
        *[(("chat",), page) for page in (HTML, b"\xff", b"3", b"[]", b"{}", b'{"data": [3]}', b'{"data": []}')],
    ],
)
def test_what_is_not_a_gateway_is_one_sentence(
    gateway: Any, starspec: Callable[..., Any], command: tuple[str, ...], page: bytes
) -> None:
    canned, url = gateway
    canned.pages = dict.fromkeys(("/v1/models", "/dashboard/events"), page)
    outcome = starspec(*command, url)
    told = f"starspec: what answers at {url} is not a starspec gateway of this release\n"
    assert (outcome.code, outcome.err) == (1, told)


@pytest.mark.parametrize(
    "page",
    [
        HTML,
        b"data: {\n\n",
        b"data: 3\n\n",
        b"data: {}\n\n",
        b'data: {"choices": [{}]}\n\n',
        b"data: [DONE]\n\n",
        b"data: " + b"[" * 20000 + b"\n\n",
        b'data: {"choices": [{"delta": {"content": 5}}]}\n\n',
        b'data: {"choices": [], "usage": {"x": 1}}\n\n',
        b'data: {"choices": [], "usage": {"completion_tokens": 1}, "metrics": {"tokens_per_second": "x"}}\n\n',
        b'data: {"choices": [], "usage": {"completion_tokens": 1}, "metrics": {"speculative_decoding": 3}}\n\n',
        b'data: {"choices": [], "usage": {"completion_tokens": "\\ud800"}}\n\n',
    ],
)
def test_an_answer_that_is_none_of_a_gateway_is_one_sentence(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, page: bytes
) -> None:
    canned, url = gateway
    canned.pages = {"/v1/chat/completions": page}
    told = f"  what answers at {url} is not a starspec gateway of this release\n"
    assert chatted(url, starspec, monkeypatch, "hello") == told


def test_a_chat_remembers_switches_speculation_and_tells_what_drafts_brought(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    lines = ["one two", "/speculative off", "three four", "/clear", "five", "/nonsense", "/quit", "never"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    outcome = starspec("chat", url, "--seed", "3", "--max-tokens", "20")
    assert outcome.code == 0
    assert outcome.out.splitlines()[:5] == [
        "two one ",
        "  9 tokens, 12.3 tokens/s, 5 of 8 draft tokens accepted, acceptance length 3.50",
        "speculation is off",
        "four three ",
        "  9 tokens, 6.0 tokens/s, no drafts",
    ]
    assert "/speculative off   answer without drafts" in outcome.out
    said = [[each["content"] for each in body["messages"]] for body in canned.bodies]
    assert said == [["one two"], ["one two", "two one ", "three four"], ["five"]]
    assert [body["speculative"] for body in canned.bodies] == [True, False, False]
    assert {(body["seed"], body["max_tokens"], body["temperature"]) for body in canned.bodies} == {(3, 20, 0.0)}


@pytest.mark.parametrize(("options", "model"), [((), "toy"), (("--model", "second"), "second")])
def test_a_chat_is_with_the_first_model_or_the_one_that_is_named(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], model: str
) -> None:
    canned, url = gateway
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert starspec("chat", url, *options).code == 0
    assert [body["model"] for body in canned.bodies] == [model]


def test_a_chat_with_an_unknown_model_names_those_there_are(gateway: Any, starspec: Callable[..., Any]) -> None:
    _, url = gateway
    outcome = starspec("chat", url, "--model", "third")
    told = "starspec: --model: the gateway has no model 'third' that can answer now; it has 'toy', 'second'\n"
    assert (outcome.code, outcome.err) == (1, told)


def chatted(url: str, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *lines: str) -> str:
    """What a chat of these lines prints, without statistics."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    outcome = starspec("chat", url)
    assert outcome.code == 0
    return "".join(each for each in outcome.out.splitlines(keepends=True) if "9 tokens" not in each)


def test_an_error_in_mid_answer_has_a_line_of_its_own_and_the_answer_is_forgotten(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    canned.error = {"message": "the target is gone"}
    assert chatted(url, starspec, monkeypatch, "one two", "three") == (
        "two one \n  the target is gone\nthree \n  the target is gone\n"
    )
    assert [len(body["messages"]) for body in canned.bodies] == [1, 1]


THOUGHTS = [{"delta": {"role": "assistant"}}, {"delta": {"reasoning": "Four"}}, {"delta": {"reasoning": " legs."}}]


def test_a_chat_shows_reasoning_and_keeps_it_for_the_template(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    answer = [{"delta": {"content": "\n\nTw"}}, {"delta": {"content": "elve\n"}, "finish_reason": "stop"}]
    canned.choices = [*THOUGHTS, {"delta": {"reasoning": "\n"}}, *answer]
    out = chatted(url, starspec, monkeypatch, "dogs?", "and cats?")
    assert out == 2 * "<think>\nFour legs.\n</think>\nTwelve\n\n"
    said = {"role": "assistant", "content": "\n\nTwelve\n", "reasoning": "Four legs.\n"}
    assert canned.bodies[1]["messages"][1] == said


def test_what_a_model_says_commands_no_terminal_wherever_it_is_cut(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    canned.choices = [{"delta": {key: each}} for key in ("reasoning", "content") for each in HOSTILE]
    canned.error = {"message": HOSTILE}
    out = chatted(url, starspec, monkeypatch, "hello")
    assert out == f"<think>\n{ESCAPED}\n</think>\n{ESCAPED}\n  {ESCAPED}\n"


def test_a_line_that_is_no_unicode_is_one_sentence(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = gateway
    for stdin in (io.StringIO("a\udcff"), io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8")):
        monkeypatch.setattr(sys, "stdin", stdin)
        outcome = starspec("chat", url)
        told = "starspec: standard input is not valid Unicode text: give it in UTF-8\n"
        assert (outcome.code, outcome.err) == (2, told)


def test_half_of_a_surrogate_pair_in_an_answer_does_not_end_the_conversation(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    canned.choices = [{"delta": {"reasoning": "b\ud800"}}, {"delta": {"content": "a\ud800"}}]
    assert chatted(url, starspec, monkeypatch, "one", "two").count("a\\ud800\n") == 2
    assert canned.bodies[1]["messages"][1] == {"role": "assistant", "content": "a?", "reasoning": "b?"}


def test_a_moment_of_no_calendar_is_shown(gateway: Any, starspec: Callable[..., Any]) -> None:
    canned, url = gateway
    canned.view = replaced(VIEW, events=[EventView(time_s=1e308, kind="bad", text="long ago")])
    assert "--:--:--  long ago" in starspec("top", url, "--once").out


def test_separators_of_lines_and_paragraphs_do_not_cut_an_answer_short(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    canned, url = gateway
    answer = {"choices": [{"delta": {"content": "a\u2028b\u2029c\x85d"}}]}
    chunks = [answer, {"choices": [], "usage": {"completion_tokens": 9}}]
    page = b"".join(b"data: " + msgspec.json.encode(each) + b"\n\n" for each in chunks)
    canned.pages = {"/v1/chat/completions": page}
    assert chatted(url, starspec, monkeypatch, "hello") == "a\\u2028b\\u2029c\\x85d\n"


@pytest.mark.parametrize("text", ["a\tb\n", "naïve\xa0: 你好\u3000吗", "می\u200cخواهم", "👩\u200d🚀 ❤\ufe0f"])
def test_what_people_write_is_shown_as_it_is(
    gateway: Any, starspec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    canned, url = gateway
    canned.choices = [{"delta": {"content": each}} for each in text]
    assert chatted(url, starspec, monkeypatch, "hello") == f"{text}\n"


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([*THOUGHTS, {"delta": {}, "finish_reason": "length"}], "--max-tokens was reached before it began."),
        ([{"delta": {"content": ""}, "finish_reason": "stop"}], "The answer is empty."),
        ([{"delta": {"content": " \n"}, "finish_reason": "stop"}], "The answer is empty."),
    ],
)
def test_an_empty_answer_is_told_and_forgotten(
    gateway: Any,
    starspec: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    choices: list[dict[str, Any]],
    words: str,
) -> None:
    canned, url = gateway
    canned.choices = choices
    assert f"{words} Your line is not part of the conversation.\n" in chatted(url, starspec, monkeypatch, "a", "b")
    assert [[each["content"] for each in body["messages"]] for body in canned.bodies] == [["a"], ["b"]]
