"""A toy target behind the link protocol, a toy byte-level tokenizer, and a real gateway on a loopback port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn.server
from openai import AsyncOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from starspec.config import GatewayConfig
from starspec.engine.detokenize import Detokenizer
from starspec.engine.sequence import TargetSequence
from starspec.errors import PeerLost
from starspec.gateway.server import Connections, GatewayServer
from starspec.ids import LOCAL, RequestId, RequestKey, TargetId
from starspec.stats import HubState, PipeStats, RequestStats, TargetStats
from starspec.wire.codec import encode
from starspec.wire.messages import (
    Abort,
    Ask,
    EngineOutput,
    GatewayToTarget,
    PromptLogprob,
    Rejected,
    RequestSpec,
    Submit,
    TargetStatus,
    TokenLogprob,
)
from starspec.wire.serving_news import FromTarget

PATIENCE_S = 20.0  # a test that waits for longer has failed
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['content'] == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "<s>{{ message['role'] }}\n{{ message['content'] }}{% if not loop.last or not continue_final_message %}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<s>assistant\n{{ mood | default('') }}{% endif %}"
)
EOS, MAX_MODEL_LEN = 257, 64
TOKENS_PER_ROUND = 2  # of a target that spells its own text


class ToyTarget:
    """A target without a model: what each request gets is written in `script`, or given by hand with `emit`.

    It reads like the wire: messages in by `send`, messages out by `receive`, both in order.
    """

    has_grammars = has_bad_words = True

    def __init__(self, name: str, encode: Callable[[str], list[int]]) -> None:
        self.endpoint = f"toy://{name}"
        self.is_connected = self.is_answering = True
        self.script: Callable[[RequestSpec], list[str]] | None = lambda spec: ["Hel", "lo, ", "wörld"]
        self.refusal: Rejected | None = None
        self.num_busy = 0  # requests of others
        self.model = "toy"
        self.max_model_len = MAX_MODEL_LEN
        self.max_num_requests = 256
        self.is_stopping = self.lacks_stages = False
        self.hub_state: HubState | None = None
        self.pipe: PipeStats | None = None
        self.submitted: dict[RequestId, RequestSpec] = {}
        self.open: dict[RequestId, RequestSpec] = {}
        self.aborted: list[RequestId] = []
        self.is_closed = False
        self.name = TargetId(name)
        self._encode = encode
        self._outbox: asyncio.Queue[FromTarget | PeerLost] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._num_chars: dict[RequestId, int] = {}  # of the text so far, of a request with logprobs

    def send(self, message: GatewayToTarget) -> None:
        if not self.is_connected:
            return
        match message:
            case Ask():
                self._outbox.put_nowait(self.status())
            case Abort(request_id=request_id):
                self.aborted.append(request_id)
                self.open.pop(request_id, None)
            case Submit(request_id=request_id, spec=spec):
                encode(message)  # refuses what a real link would
                self._submit(request_id, spec)
        self._changed.set()

    async def receive(self) -> FromTarget:
        message = await self._outbox.get()
        if isinstance(message, PeerLost):
            raise message
        return message

    def close(self) -> None:
        self.is_closed = True

    def status(self) -> TargetStatus:
        running = len(self.open) + self.num_busy
        stats = TargetStats(pipe=self.pipe)
        stats.acceptance.add_round(4, 2, 3)
        return TargetStatus(
            target_id=self.name,
            model=self.model,
            max_model_len=self.max_model_len,
            num_running=running,
            num_waiting=0,
            num_rows=8,
            num_free_rows=8 - running,
            max_num_requests=self.max_num_requests,
            is_draft_connected=True,
            stats=stats,
            is_stopping=self.is_stopping,
            hub_state=self.hub_state,
            hub_state_s=1.5,
            has_grammars=self.has_grammars,
            has_bad_words=self.has_bad_words,
            lacks_stages=self.lacks_stages,
        )

    def emit(
        self, request_id: RequestId, text: str, *, finish: str | None = None, stop_reason: int | str | None = None
    ) -> None:
        """One output with the tokens of a text; the last one carries eos if it ends by stop."""
        spec = self.submitted[request_id]
        ends_with_eos = finish == "stop" and stop_reason is None
        token_ids = self._encode(text) + ([EOS] if ends_with_eos else [])
        logprobs = None
        if spec.logprobs is not None:
            start = self._num_chars.get(request_id, 0)
            offsets = [start + index for index, char in enumerate(text) for _ in char.encode()] + [start + len(text)]
            logprobs = [self._logprob(*pair, spec.logprobs) for pair in zip(token_ids, offsets, strict=False)]
            self._num_chars[request_id] = start + len(text)
        if finish is not None:
            self.open.pop(request_id, None)
        self._outbox.put_nowait(
            EngineOutput(
                request_id=request_id,
                token_ids=token_ids,
                text=text,
                logprobs=logprobs,
                finish_reason=finish,
                stop_reason=stop_reason,
                stats=toy_stats(spec) if finish is not None else None,
            )
        )

    def say(self, message: FromTarget) -> None:
        """Whatever it is."""
        self._outbox.put_nowait(message)

    def flood(self, request_id: RequestId, num_chars: int) -> None:
        """One token with a long text."""
        self.say(EngineOutput(request_id, [1], "x" * num_chars))

    def lose(self) -> None:
        """The connection breaks; what was open is gone."""
        self.is_connected = False
        self.open.clear()
        self._outbox.put_nowait(PeerLost("connection closed"))

    def restore(self) -> None:
        self.is_connected = True

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a message has made `condition` true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def _submit(self, request_id: RequestId, spec: RequestSpec) -> None:
        self.submitted[request_id] = spec
        if self.refusal is not None:
            refusal = self.refusal
            self._outbox.put_nowait(
                Rejected(request_id, refusal.message, refusal.param, refusal.status, refusal.retry_after_s)
            )
            return
        self.open[request_id] = spec
        if spec.prompt_logprobs is not None:
            self._score(request_id, spec, spec.prompt_logprobs)
        if self.script is not None:
            parts = self.script(spec)
            for part in parts[:-1]:
                self.emit(request_id, part)
            self.emit(request_id, parts[-1], finish="stop")

    def _score(self, request_id: RequestId, spec: RequestSpec, num_top: int) -> None:
        """Log-probabilities of the prompt, two tokens at a time. Token i has rank i + 1 and -i / 4."""
        scored = [
            PromptLogprob(token_id, -index / 4, index + 1, [(200 + each, -0.5 - each) for each in range(num_top)])
            for index, token_id in enumerate(spec.prompt_token_ids)
        ]
        for start in range(1, len(scored), 2):
            self._outbox.put_nowait(EngineOutput(request_id, [], "", prompt_logprobs=scored[start : start + 2]))

    def _logprob(self, token_id: int, offset: int, num_top: int) -> TokenLogprob:
        top = [(token_id, -0.5), *((other, -2.0 - other) for other in range(64))]
        return TokenLogprob(token_id, -0.5, top[:num_top], offset)


class SpellingTarget(ToyTarget):
    """Answers every request with the tokens in `answer`, a few in a round, as a target turns them into text."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        super().__init__(name, lambda text: tokenizer.encode(text, add_special_tokens=False))
        self.answer: list[int] = []
        self._tokenizer = tokenizer

    def _submit(self, request_id: RequestId, spec: RequestSpec) -> None:
        text = Detokenizer(
            self._tokenizer, spec.prompt_token_ids, stop=spec.stop, skip_special_tokens=spec.skip_special_tokens
        )
        max_len = len(spec.prompt_token_ids) + len(self.answer)
        answer = TargetSequence(
            RequestKey(LOCAL, request_id), spec, max_len=max_len, eos_token_ids=(EOS,), detokenizer=text, arrived_s=0.0
        )
        for start in range(0, len(self.answer), TOKENS_PER_ROUND):
            tokens = tuple(self.answer[start : start + TOKENS_PER_ROUND])
            added = answer.extend(tokens, [TokenLogprob(each, -0.5, [(each, -0.5)]) for each in tokens])
            self._outbox.put_nowait(answer.output(added))
            if added.finish is not None:
                return


def toy_stats(spec: RequestSpec) -> RequestStats:
    """Two speculative rounds of 4 draft tokens, 3 and 1 accepted, unless speculation is off."""
    num_spec_tokens = 4 if spec.num_draft_tokens is None else spec.num_draft_tokens
    is_lossless = spec.relaxed_tau == 0
    stats = RequestStats(
        num_spec_tokens=num_spec_tokens,
        is_lossless=is_lossless,
        queue_s=0.25,
        time_to_first_token_s=0.75,
        generation_s=2.0,
    )
    if spec.prediction is not None:
        stats.num_prediction_tokens, stats.num_accepted_prediction_tokens = 8, 5
    if num_spec_tokens:
        stats.add_round(num_spec_tokens, min(3, num_spec_tokens), 4, 0 if is_lossless else 3)
        stats.add_round(num_spec_tokens, 1, 2)
    return stats


@dataclass
class RunningGateway:
    """A gateway that serves, and clients of it."""

    url: str
    server: GatewayServer
    targets: list[ToyTarget]
    serving: asyncio.Task[None]
    client: AsyncOpenAI
    http: httpx.AsyncClient
    closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def target(self) -> ToyTarget:
        return self.targets[0]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def healthy(self, num_targets: int) -> None:
        """Wait until the gateway has heard of its targets."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if (await self.http.get("/health")).json().get("num_targets", 0) == num_targets:
                    return


StartGateway = Callable[..., Awaitable[RunningGateway]]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (`€` is three), and <s>, </s> = 256, 257."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="session")
def model_folder(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that a gateway reads of a model."""
    folder = tmp_path_factory.mktemp("models") / "toy-model"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": EOS}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20, "eos_token_id": [EOS]}))
    return folder


@pytest.fixture
def make_target(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], ToyTarget]:
    return lambda name: ToyTarget(name, lambda text: tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture
def make_spelling_target(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], ToyTarget]:
    return lambda name: SpellingTarget(name, tokenizer)


@pytest.fixture
async def start_gateway(model_folder: Path, make_target: Callable[[str], ToyTarget]) -> AsyncIterator[StartGateway]:
    """Starts gateways on ephemeral loopback ports; stops them at the end of the test."""
    async with AsyncExitStack() as stack:

        async def start(
            num_targets: int = 1,
            fetch_hub_status: Any = None,
            close_hub: Callable[[], None] = lambda: None,
            **config: Any,
        ) -> RunningGateway:
            targets = [make_target(f"t{index}") for index in range(num_targets)]
            settings = GatewayConfig(**{"port": 0, "model": str(model_folder)} | config)
            server = GatewayServer(settings, lambda: Connections(targets, fetch_hub_status, close_hub))
            serving = asyncio.create_task(server.serve())
            stack.push_async_callback(asyncio.wait_for, serving, PATIENCE_S)
            stack.callback(server.stop)
            key = config.get("api_key", "unused")
            client = AsyncOpenAI(base_url=f"{server.address}/v1", api_key=key, max_retries=0)
            headers = {"Authorization": f"Bearer {key}"}
            http = httpx.AsyncClient(base_url=server.address, timeout=PATIENCE_S, trust_env=False, headers=headers)
            await stack.enter_async_context(client)
            await stack.enter_async_context(http)
            running = RunningGateway(server.address, server, targets, serving, client, http)
            await running.healthy(num_targets)
            return running

        yield start


@pytest.fixture
async def gateway(start_gateway: StartGateway) -> RunningGateway:
    """One gateway over one target."""
    return await start_gateway()


class _QuickAsyncio:
    """asyncio, but one in which uvicorn's pauses are short: it looks every 100 ms whether it has to stop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture(autouse=True)
def _uvicorn_stops_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.server, "asyncio", _QuickAsyncio())


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
