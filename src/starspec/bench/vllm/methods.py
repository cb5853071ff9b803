"""The ways of drafting for a vLLM server that are compared, and the answers of their servers."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from starspec.errors import PeerLost
from starspec.harness.compare import first_difference
from starspec.harness.model_pair import ModelPair
from starspec.harness.servers import MODEL_NAME, StarspecServer, VllmServer, on_shared_cores

ANSWER_TIMEOUT_S: Final = 600.0  # of one answer
NUM_LIKELIEST: Final = 5  # number of log-probabilities that are requested for each position
# Nats. bfloat16 rounds a logit of 16 to 32 to steps of 1/8. Kernels for one row and for several rows may differ by a
# few such steps. In float32 the answers would not differ there.
NEAR_TIE: Final = 0.5


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    """One completion."""

    token_ids: Sequence[int]
    likeliest: Sequence[
        dict[int, float]
    ] = ()  # for each token, ids and log-probabilities of the most likely ones; empty if not requested


@dataclass(frozen=True, slots=True)
class TimedAnswers:
    """All answers, and the total time."""

    answers: list[VllmAnswer]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(len(each.token_ids) for each in self.answers) / self.seconds


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer first differs from that of plain decoding."""

    prompt: int  # index of the prompt
    position: int  # of the token within the answer
    gap: float | None  # nats between the two tokens; None = one of them is not among the most likely ones

    @property
    def is_near_tie(self) -> bool:
        return self.gap is not None and self.gap <= NEAR_TIE


async def ask_all(
    url: str,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    batch_size: int,
    with_likeliest: bool = False,
    sampling: dict[str, Any] | None = None,
) -> TimedAnswers:
    """Answer all prompts, `batch_size` at a time. When one ends, the next one starts.

    Args:
        prompts: token ids.
        num_tokens: of each answer; end-of-sequence tokens are ignored.
        sampling: more fields of each request; None = greedy.
    Raises: PeerLost if a request fails.
    """
    body = {"temperature": 0.0, **(sampling or {})}
    if with_likeliest:
        body |= {"logprobs": NUM_LIKELIEST, "return_tokens_as_token_ids": True}
    free = asyncio.Semaphore(batch_size)

    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_TIMEOUT_S) as http:

        async def answer(prompt: Sequence[int]) -> VllmAnswer:
            async with free:
                return await _ask(http, prompt, num_tokens, body)

        started_s = time.monotonic()
        answers = await asyncio.gather(*(answer(prompt) for prompt in prompts))
        return TimedAnswers(answers, time.monotonic() - started_s)


def partings(expected: Sequence[VllmAnswer], found: Sequence[VllmAnswer]) -> list[Parting]:
    """The divergences of all answers that differ.

    Args:
        expected: with the most likely tokens of each position.
    """
    all_partings = []
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        at = first_difference(one.token_ids, other.token_ids)
        if at is not None:
            likeliest = one.likeliest[at]
            said, instead = (likeliest.get(each.token_ids[at]) for each in (one, other))
            gap = None if said is None or instead is None else abs(said - instead)
            all_partings.append(Parting(index, at, gap))
    return all_partings


async def _ask(http: httpx.AsyncClient, prompt: Sequence[int], num_tokens: int, body: dict[str, Any]) -> VllmAnswer:
    request = {"model": MODEL_NAME, "prompt": list(prompt), "max_tokens": num_tokens, "ignore_eos": True}
    try:
        response = await http.post("/v1/completions", json=request | body | {"return_token_ids": True})
        choice = response.raise_for_status().json()["choices"][0]
    except httpx.HTTPError as error:
        raise PeerLost(f"vLLM at {http.base_url} failed to answer: {error!r}") from error
    logprobs = choice.get("logprobs") or {}
    likeliest = [
        {int(name.removeprefix("token_id:")): value for name, value in position.items()}
        for position in logprobs.get("top_logprobs") or ()
    ]
    return VllmAnswer(choice["token_ids"], likeliest)


PLAIN, DRAFT_MODEL, HUB, SILENT_HUB = "plain", "vLLM's draft model", "hub", "silent hub"
PROPOSER: Final = "starspec.integrations.vllm.StarProposer"
MAX_MODEL_LEN: Final = 2048
KV_BYTES: Final = 300_000_000  # of each server
BACK_S: Final = 30.0  # longest wait until drafts of the hub arrive again
FEW_TOKENS: Final = 48  # of a warm-up answer; long enough that a row without drafts probes the hub


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModels(ModelPair):
    """What is measured, and how."""

    python: str  # interpreter of the environment with vLLM
    num_threads: int  # of a server, and of the hub
    num_draft_tokens: int  # of the hub, at most
    vllm_options: Sequence[str] = ()  # more arguments of vLLM's command line

    def start_hub(self) -> StarspecServer:
        """Start the hub, without waiting until it is ready."""
        words = ["--draft", self.draft, "--draft-quantization", self.quantization, "--dtype", self.dtype]
        return StarspecServer("draft", *words, "--port", "0", "--num-threads", str(self.num_threads))

    def start_server(
        self, speculative: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> VllmServer:
        """Start a vLLM server, without waiting until it is ready."""
        shape = ["--dtype", self.dtype, "--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory-bytes", str(KV_BYTES)]
        return VllmServer(
            self.python,
            self.target,
            speculative=speculative,
            options=[*shape, *self.vllm_options],
            environ={**on_shared_cores(self.num_threads), **(environ or {})},
        )


@dataclass(slots=True)
class VllmMethod:
    """One way of drafting: its server and its results so far."""

    name: str
    num_draft_tokens: int
    server: VllmServer
    stopped: StarspecServer | None = None  # a hub that is stopped while the method runs
    rates: dict[int, list[float]] = field(default_factory=dict)  # batch size -> tokens/s of each repeat
    acceptance_lengths: dict[int, list[float]] = field(default_factory=dict)
    answers: dict[int, list[VllmAnswer]] = field(default_factory=dict)  # the last ones

    @property
    def title(self) -> str:
        """The name, with the draft length if it drafts."""
        return f"{self.name}, K = {self.num_draft_tokens}" if self.num_draft_tokens else self.name

    def forget(self) -> None:
        """Drop the results so far."""
        self.rates.clear()
        self.acceptance_lengths.clear()
        self.answers.clear()

    async def run(self, prompts: Sequence[Sequence[int]], num_tokens: int, batch_size: int) -> None:
        """Answer all prompts once. Raises: PeerLost if a request fails."""
        before = self.server.status()
        with _standing_still(self.stopped):
            timed = await ask_all(self.server.url, prompts, num_tokens=num_tokens, batch_size=batch_size)
        counts = self.server.status().since(before)
        self.rates.setdefault(batch_size, []).append(timed.tokens_per_s)
        self.acceptance_lengths.setdefault(batch_size, []).append(counts.acceptance_length)
        self.answers[batch_size] = timed.answers

    async def warm_up(self, prompt: Sequence[int]) -> TimedAnswers:
        """Answer one prompt until drafts arrive. The first answer takes seconds, and the hub may connect late.

        Raises: PeerLost if no draft arrives although the method drafts.
        """
        deadline_s = time.monotonic() + BACK_S
        while True:
            before = self.server.status()
            timed = await ask_all(self.server.url, [prompt], num_tokens=FEW_TOKENS, batch_size=1)
            if self.num_draft_tokens == 0 or self.server.status().num_drafts > before.num_drafts:
                return timed
            if time.monotonic() > deadline_s:
                raise PeerLost(f"no drafts reach the server of '{self.name}':\n{self.server.output()}")


@dataclass(frozen=True, slots=True)
class Star:
    """A hub and its vLLM server."""

    hub: StarspecServer
    server: VllmServer
    num_draft_tokens: int

    def methods(self, rival: VllmMethod) -> list[VllmMethod]:
        """The methods that take turns with this rival. The silent hub is compared with plain decoding only."""
        ours = [VllmMethod(HUB, self.num_draft_tokens, self.server)]
        if rival.name == PLAIN:
            ours.append(VllmMethod(SILENT_HUB, self.num_draft_tokens, self.server, stopped=self.hub))
        return [rival, *ours]


@contextmanager
def _standing_still(hub: StarspecServer | None) -> Iterator[None]:
    if hub is None:
        yield
        return
    hub.send(signal.SIGSTOP)
    try:
        yield
    finally:
        hub.send(signal.SIGCONT)


def start_star(models: VllmModels, ending: ExitStack) -> Star:
    """Start a hub and its vLLM server. The hub is ready when this returns, the server is not.

    Args:
        ending: stops both when it is closed.
    Raises: PeerLost if the hub does not come up; ConfigError as VllmServer.
    """
    hub = models.start_hub()
    ending.callback(hub.end)
    speculative = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": models.num_draft_tokens}
    environ = {"STARSPEC_HUB": hub.wait_ready(), "STARSPEC_FALLBACK": "none"}
    return Star(hub, ending.enter_context(models.start_server(speculative, environ)), models.num_draft_tokens)


def start_rival(models: VllmModels, length: int, ending: ExitStack) -> VllmMethod:
    """Start a server that drafts without a hub. It is not ready when this returns.

    Args:
        length: draft tokens of vLLM's own draft model; 0 = plain decoding.
        ending: stops the server when it is closed.
    Raises: ConfigError as VllmServer.
    """
    own = {"method": "draft_model", "model": models.draft, "num_speculative_tokens": length} if length else None
    return VllmMethod(DRAFT_MODEL if length else PLAIN, length, ending.enter_context(models.start_server(own)))
