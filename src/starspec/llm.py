"""The offline API, like vLLM's `LLM`: a target and its hub take turns on the caller's thread.

A hub that is told to run ahead has a process of its own instead.

from starspec import LLM, SamplingParams

llm = LLM(model="path/to/target", speculative_config={"model": "path/to/draft", "quantization": "int4"})
for result in llm.generate(["Hello"], SamplingParams(temperature=0.0, max_tokens=32)):
    print(result.outputs[0].text)

`from starspec import LLM` tells waiting OpenMP threads not to spin, by variables of this process (`openmp.py`), unless
torch was imported before or the variables say something else.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import TracebackType
from typing import Any, Self, cast, get_args

from starspec.config import (
    BatchingConfig,
    BatchingMethod,
    Dtype,
    ModelConfig,
    SpeculativeConfig,
    TargetConfig,
    build,
    nearest,
    without_vllm_defaults,
)
from starspec.engine.drafts import Drafts
from starspec.engine.engine import TargetEngine
from starspec.errors import ConfigError, RequestError, StarspecError
from starspec.grammars.compile import Grammars
from starspec.ids import RequestId
from starspec.inputs import ChatMessage, Prompt, as_list, params_for, unwrapped
from starspec.local_star import check_drafts, local_drafts
from starspec.models.loading.checks import check_models
from starspec.models.loading.progress import listening
from starspec.models.loading.tokenizer import bad_words_of, load_tokenizer, prompt_ids_of_chat, prompt_ids_of_text
from starspec.observe.progress import ProgressBar
from starspec.outputs import CompletionOutput, RequestOutput
from starspec.request_specs import check_context, request_specs
from starspec.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from starspec.stats import TargetStats
from starspec.windows.open import open_runner
from starspec.wire.messages import EngineOutput, PromptLogprob, RequestSpec

DEFAULTS = TargetConfig()
DEFAULT_DTYPE = ModelConfig(model="").dtype
ELSEWHERE = {  # options of vLLM's, and what to give instead
    "gpu_memory_utilization": "memory is bounded by max_num_seqs and max_model_len here: give those",
    "seed": "draws belong to a request here: give the seed to SamplingParams",
}


class LLM:
    """A target in this process, with a draft if `speculative_config` names one.

    Several threads may ask at once: their answers share rounds, which one of the threads at a time computes.

    Args:
        model: Hugging Face folder, hub id, .gguf file, or "synthetic:...".
        speculative_config: vLLM's keys and ours; None decodes plainly. With `"run_ahead": true` the draft computes
            while the target does, in a process that ends with this LLM; `"device"` puts it on a device of its own.
        max_num_seqs: sequences decoded at once; more wait.
        batching: how they share forwards: a method's name, or with its window and bound.
        use_tqdm: show progress on standard error, while models load and, unless `generate` is told otherwise, while it
            answers: a bar on a terminal, elsewhere a line now and then once it takes 2 s.
        **model_options: other fields of ModelConfig (dtype, device, max_model_len, num_threads, numerics, fused,
            enforce_eager).

    Raises: ConfigError for an option that is unknown or does not fit, or for a draft that does not fit the target. What
        the models' small files show is checked before weights are read.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        max_num_seqs: int = DEFAULTS.max_num_seqs,
        batching: BatchingMethod | BatchingConfig = "ragged",
        prefill_chunk: int = DEFAULTS.prefill_chunk,
        use_tqdm: bool = True,
        **model_options: Any,
    ) -> None:
        speculative_config = _speculative_config(speculative_config)
        _check_flag("use_tqdm", use_tqdm)
        if not isinstance(batching, BatchingConfig):
            batching = BatchingConfig(method=batching)
        served = {"name": "llm", "max_num_seqs": max_num_seqs, "batching": batching, "prefill_chunk": prefill_chunk}
        target_config = build(TargetConfig, served, "LLM")
        config = _model_config(model, target_config.num_rows, model_options)
        self.stats = TargetStats()
        self._use_tqdm = use_tqdm
        with _shown_loading(use_tqdm):
            check_models(config, speculative_config.draft_model(config) if speculative_config else None)
            self.tokenizer = load_tokenizer(model)
            check_drafts(config, speculative_config, self.tokenizer)
            verifier = open_runner(config, batching, self.stats.batch).verifier
            drafts = local_drafts(config, verifier.info, speculative_config, self.stats, self.tokenizer, max_num_seqs)
        grammars = Grammars(self.tokenizer, verifier.info.vocab_size, verifier.info.eos_token_ids)
        self.engine = TargetEngine(verifier, self.tokenizer, drafts, target_config, self.stats, grammars=grammars)
        self._end_drafts = weakref.finalize(self, _end_drafts, drafts, os.getpid())
        self._request_numbers = itertools.count(1)
        self._takers: dict[RequestId, Callable[[EngineOutput], None]] = {}  # by open request: `generate` or a stream
        self._gone = deque[RequestId]()  # of these, nobody waits for what comes
        self._lock = threading.RLock()  # of the engine
        self._is_taken = False  # by a thread that has the lock
        self._num_broken_off = 0  # steps

    def get_tokenizer(self) -> Any:
        """The tokenizer of the target, by the name that vLLM gives this."""
        return self.tokenizer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the hub; one in a process of its own ends. Idempotent. Afterwards every question is a StarspecError."""
        with self._turn():
            self._end_drafts()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        add_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt, all at once as far as the cache has rows.

        Args:
            prompts: text or token ids, one or several, bare or in vLLM's dictionaries.
            sampling_params: for all prompts or one each; default SamplingParams().
            use_tqdm: show progress on standard error; None = as this LLM was told.
            add_special_tokens: whether the tokenizer may put special tokens around a text, such as a BOS token in
                front; False for text that has them already, as that of a chat template.
        Returns: one result a prompt, in the caller's order.
        Raises: RequestError if a prompt can never run; no prompt has been answered then.
        """
        self._check_open()
        _check_flag("use_tqdm", use_tqdm, is_optional=True)
        _check_flag("add_special_tokens", add_special_tokens)
        several = [unwrapped(each) for each in as_list(prompts)]
        params = params_for(several, sampling_params)
        results, answers = [], dict[RequestId, CompletionOutput]()
        scored = dict[RequestId, list[PromptLogprob | None]]()  # by the request of a prompt's first answer
        specs = []
        for prompt, each in zip(several, params, strict=True):
            token_ids = self._token_ids(prompt, add_special_tokens)
            self._check_params(each, len(token_ids))
            outputs = [CompletionOutput(choice) for choice in range(each.n)]
            results.append(RequestOutput(prompt if isinstance(prompt, str) else None, token_ids, outputs))
            for output, spec in zip(outputs, self._specs(token_ids, each), strict=True):
                request_id = RequestId(f"llm-{next(self._request_numbers)}")
                answers[request_id] = output
                specs.append((request_id, spec))
                if spec.prompt_logprobs is not None and results[-1].prompt_logprobs is None:
                    results[-1].prompt_logprobs = scored[request_id] = [None]
        for _, spec in specs:
            self.engine.check(spec)
            self.engine.compile(spec)  # again once the request joins; here a wrong one costs no other its answer
        self._run(specs, answers, scored, self._use_tqdm if use_tqdm is None else use_tqdm)
        return results

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template. As `generate` otherwise."""
        self._check_open()
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise RequestError("messages must be a list of {'role': ..., 'content': ...}, or several", "messages")
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[ChatMessage]]", [messages] if is_one else messages)
        prompts: list[Prompt] = [prompt_ids_of_chat(self.tokenizer, each) for each in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, add_special_tokens: bool = True
    ) -> Iterator[EngineOutput]:
        """Answer one prompt piece by piece. Closing the iterator aborts the request.

        A caller may read several streams in turns, and call `generate` in between: each stream buffers its own output.
        """
        self._check_open()
        _check_flag("add_special_tokens", add_special_tokens)
        (params,) = params_for([prompt], sampling_params)
        if params.n != 1:
            raise RequestError("stream answers one choice at a time; set n to 1", "n")
        request_id = RequestId(f"llm-{next(self._request_numbers)}")
        token_ids = self._token_ids(unwrapped(prompt), add_special_tokens)
        self._check_params(params, len(token_ids))
        (spec,) = self._specs(token_ids, params)
        pieces = deque[EngineOutput]()
        with self._turn():
            self.engine.submit(request_id, spec)
            self._takers[request_id] = pieces.append
            num_broken_off = self._num_broken_off
        try:
            is_done = False
            while not is_done:
                self._check_open()
                while not pieces:
                    self._step(num_broken_off, unless=lambda: bool(pieces))
                piece = pieces.popleft()
                is_done = piece.finish_reason is not None
                yield piece
        finally:
            self._let_go(request_id)

    def _specs(self, token_ids: list[int], params: SamplingParams) -> list[RequestSpec]:
        ends, bad_words = self.engine.verifier.info.eos_token_ids, bad_words_of(self.tokenizer, params.bad_words or ())
        return request_specs(token_ids, params, ends, bad_words=bad_words)

    def _token_ids(self, prompt: str | Sequence[int], add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        return prompt_ids_of_text(self.tokenizer, prompt, add_special_tokens=add_special_tokens)

    def _check_params(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        """Check what depends on the model.

        Raises: RequestError as the HTTP API, if a stop token is no token, as it would never end anything; or if
            `max_tokens` do not fit into the context, unless they may be the default: that is cut to what fits.
        """
        size, largest = len(self.tokenizer), max(params.stop_ids, default=0)
        if largest >= size:
            raise RequestError(
                f"stop_token_ids: token id {largest} is outside the vocabulary of {size}", "stop_token_ids"
            )
        max_model_len = self.engine.verifier.info.max_model_len
        is_asked_for = params.max_tokens is not None and params.max_tokens != DEFAULT_MAX_TOKENS
        if is_asked_for and num_prompt_tokens < max_model_len:  # the engine's check is about longer prompts
            check_context(num_prompt_tokens, params.max_tokens or 0, "prompt", "max_tokens", max_model_len)

    def _run(
        self,
        specs: list[tuple[RequestId, RequestSpec]],
        answers: dict[RequestId, CompletionOutput],
        scored: dict[RequestId, list[PromptLogprob | None]],
        is_shown: bool,
    ) -> None:
        """Submit requests whenever the engine has room. On an exception, abort the unfinished ones."""
        waiting = iter(specs)
        upcoming = next(waiting, None)
        unfinished = set(answers)

        def take(output: EngineOutput) -> None:
            answers[output.request_id].add(output)
            if output.request_id in scored:
                scored[output.request_id] += output.prompt_logprobs or ()
            if output.finish_reason is not None:
                unfinished.discard(output.request_id)
                bar.show("answers", len(answers) - len(unfinished), len(answers))

        with self._turn():
            self._takers |= dict.fromkeys(answers, take)
            num_broken_off = self._num_broken_off
        bar = ProgressBar("generating", is_shown=is_shown)
        try:
            with bar:
                while unfinished:
                    with self._turn():
                        while upcoming is not None and self.engine.has_room:
                            self.engine.submit(*upcoming)
                            upcoming = next(waiting, None)
                    self._step(num_broken_off, unless=lambda: not unfinished)
        finally:
            with self._turn():
                self._gone.extend(answers)

    def _check_open(self) -> None:
        """Raises: StarspecError after `close`."""
        if not self._end_drafts.alive:
            raise StarspecError("this LLM is closed")

    def _step(self, num_broken_off: int, unless: Callable[[], bool]) -> None:
        """Take one step, unless another thread's step has brought what the caller waits for.

        Args:
            num_broken_off: steps that had been broken off when the caller's requests began.
        Raises: as _check_open; StarspecError if a step was broken off since, by Ctrl-C or an error in the thread that
            took it: what it had brought is lost, and the caller would wait for it for ever.
        """
        with self._turn():
            if unless():
                return
            self._check_open()
            if self._num_broken_off != num_broken_off:
                raise StarspecError("this answer is lost: Ctrl-C or an error broke off the step that computed it")
            try:
                for output in self.engine.step().values():
                    self._takers[output.request_id](output)
            except BaseException:
                self._num_broken_off += 1
                raise

    def _let_go(self, request_id: RequestId) -> None:
        """Abort a request, or leave that to who has the engine. Never waits.

        A stream that is dropped may be collected anywhere: within a step, or by a thread for which a step waits.
        """
        self._gone.append(request_id)
        if self._lock.acquire(blocking=False):
            try:
                with self._turn():
                    pass
            finally:
                self._lock.release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The engine is this thread's. Effects: at the end, requests that nobody waits for are aborted."""
        with self._lock:
            is_within_another, self._is_taken = self._is_taken, True
            try:
                try:
                    yield
                finally:
                    if not is_within_another:
                        self._abort_gone()
            finally:
                self._is_taken = is_within_another

    def _abort_gone(self) -> None:
        while self._gone:
            request_id = self._gone.popleft()
            del self._takers[request_id]
            self.engine.abort(request_id)


def _end_drafts(drafts: Drafts, creator_pid: int) -> None:
    """End what drafts. A process forked from the creator has no part in it: the hub is not its child."""
    if os.getpid() == creator_pid:
        drafts.shutdown()


@contextmanager
def _shown_loading(is_shown: bool) -> Iterator[None]:
    if not is_shown:
        yield
        return
    with ProgressBar("loading") as bar, listening(bar.show):
        yield


def _check_flag(name: str, value: object, *, is_optional: bool = False) -> None:
    if not (isinstance(value, bool) or (is_optional and value is None)):
        raise ConfigError(f"{name} must be true or false, not {value!r}")


def _speculative_config(given: object) -> SpeculativeConfig | None:
    if isinstance(given, Mapping):
        return SpeculativeConfig.from_mapping(given)
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    raise ConfigError(f"speculative_config must be a mapping or a SpeculativeConfig, not {type(given).__name__}")


def _model_config(model: str, max_num_seqs: int, options: Mapping[str, Any]) -> ModelConfig:
    own = ["speculative_config", "max_num_seqs", "batching", "prefill_chunk", "use_tqdm"]
    names = [*own, *(each.name for each in fields(ModelConfig) if each.name not in ("num_rows", "kv_budget_bytes"))]
    options = without_vllm_defaults(options, "LLM")
    if options.get("dtype") == "auto":
        raise ConfigError(
            f"LLM: dtype 'auto': starspec does not take it from the checkpoint; leave it out for {DEFAULT_DTYPE}, or"
            f" say another: {', '.join(each for each in get_args(Dtype) if each != DEFAULT_DTYPE)}"
        )
    for name in options:
        if name in ELSEWHERE:
            raise ConfigError(f"LLM: {name}: {ELSEWHERE[name]}, and leave it out")
        if name not in names:
            raise ConfigError(f"LLM: unknown option '{name}'{nearest(name, names)}")
    return build(ModelConfig, {"model": model, "num_rows": max_num_seqs, **options}, "LLM")
