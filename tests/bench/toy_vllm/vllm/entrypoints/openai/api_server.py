"""What `bench vllm` asks of a vLLM server, without vLLM: tokens are counted up, drafts are only counted."""

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--speculative-config", type=json.loads, default=None)
given, _ = parser.parse_known_args()
if given.speculative_config == {"method": "custom_class"}:
    raise SystemExit("this one does not come up")
counted = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            is_told = given.speculative_config is not None
            lines = [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {value}.0' for name, value in counted.items()]
            self._answer("\n".join(lines if is_told else []))
        elif self.path == "/v1/models":
            self._answer(json.dumps({"data": [{"id": "target"}]}))
        else:
            self._answer(json.dumps({"version": "0.32.0"}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first, num = body["prompt"][-1], body["max_tokens"]
        ids = [first + each for each in range(num)]
        if os.environ.get("STARSPEC_HUB"):
            ids[-1] += 1  # parts from plain decoding at its last token, where both are as likely
        if given.speculative_config is not None:
            counted["drafts"] += num // 2
            counted["draft_tokens"] += num
            counted["accepted_tokens"] += num // 2
        choice: dict[str, Any] = {"token_ids": ids, "logprobs": None}
        if "logprobs" in body:
            choice["logprobs"] = {
                "top_logprobs": [{f"token_id:{each}": -0.7, f"token_id:{each + 1}": -0.8} for each in ids]
            }
        self._answer(json.dumps({"choices": [choice]}))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", given.port), Server).serve_forever()
