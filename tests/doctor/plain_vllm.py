"""A server that speaks as much of vLLM's API as the doctor does. Behind it a synthetic target, decoded plainly."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from starspec.config import ModelConfig
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import Segment

MAX_MODEL_LEN = 512


class PlainVllm:
    """Args: model: its target. Kept: every completion that was asked for."""

    def __init__(self, model: str) -> None:
        self.runner = load_runner(ModelConfig(model=model, num_rows=1, max_model_len=MAX_MODEL_LEN))
        self.tokenizer = load_tokenizer(model)
        self.metrics = ""
        self.refusal: str | None = None
        self.asked: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def get(self, path: str) -> str:
        return {
            "/version": json.dumps({"version": "0.32.0"}),
            "/metrics": self.metrics,
            "/v1/models": json.dumps({"data": [{"id": "m"}]}),
        }[path]

    def answer(self, prompt: list[int], num_tokens: int) -> Iterator[int]:
        token_ids = list(prompt)
        for _ in range(num_tokens):
            with self._lock:
                row = self.runner.cache.lease()
                logits = self.runner.forward([Segment(row, token_ids, num_logits=1)]).logits
                self.runner.cache.free(row)
            token_ids.append(int(logits[0].argmax()))
            yield token_ids[-1]


@contextmanager
def served(vllm: PlainVllm) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, vllm.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                tokens = vllm.tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"])
                self._say(200, json.dumps({"tokens": tokens, "max_model_len": MAX_MODEL_LEN}))
            elif vllm.refusal is not None:
                self._say(400, vllm.refusal)
            else:
                vllm.asked.append(body)
                self._say(200, "")
                for token_id in vllm.answer(body["prompt"], body["max_tokens"]):
                    self._event(json.dumps({"choices": [{"token_ids": [token_id]}]}))
                self._event("[DONE]")

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def _event(self, data: str) -> None:
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
