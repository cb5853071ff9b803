"""The first stage: the target's own continuations, from which a head learns.

They go into `answers/worker-N.jsonl` as they come, a line an answer; a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec

from starspec.bench.datasets import Prompt, prompt_token_ids
from starspec.errors import ConfigError
from starspec.ids import RequestId
from starspec.llm import LLM
from starspec.models.vocabulary import load_tokenizer
from starspec.request_specs import request_specs
from starspec.sampling_params import SamplingParams

SAMPLED_TEMPERATURE = 0.7
MIN_ANSWER_TOKENS = 2  # a shorter one has nothing to foresee
LOOK_EVERY_S = 5.0

_stop: Event | None = None  # of this process, if it is one of several that answer

Asked = tuple[int, list[int]]  # a prompt's place in its file, and its tokens


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the target said to one prompt."""

    index: int  # of the prompt in its file
    prompt_ids: list[int]
    answer_ids: list[int]  # with the token that ended it
    temperature: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + self.answer_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """How much the target is to say."""

    target: str
    dtype: str = "bfloat16"
    device: str = "cpu"
    num_tokens: int = 400_000  # of all answers together: after that no prompt is begun
    sampled_every: int = 4  # every fourth answer is sampled, the others are greedy; 0 = none is
    max_new_tokens: int = 160
    max_model_len: int = 512  # longer prompts are left out
    batch: int = 64  # answers at once, of each worker
    num_workers: int = 1  # processes, each with its share of the threads
    num_threads: int = 1  # of one worker


def answer_prompts(
    prompts: Sequence[Prompt], plan: AnswerPlan, folder: Path, advance: Callable[[int], None]
) -> list[Answer]:
    """Answer prompts in their order until there are tokens enough.

    Args:
        folder: of the answers.
        advance: told after each look how many tokens there are.
    Returns: all answers in the folder, in the order of their prompts.
    Raises: ConfigError if no prompt fits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(plan.target)
    ids = [prompt_token_ids(tokenizer, prompt) for prompt in prompts]
    done = {answer.index for answer in read_answers(folder)}
    room = plan.max_model_len - plan.max_new_tokens
    todo = [(index, each) for index, each in enumerate(ids) if index not in done and len(each) <= room]
    if not todo and not done:
        raise ConfigError(f"none of the {len(prompts)} prompts is at most {room} tokens long")
    if count_tokens(folder) < plan.num_tokens and todo:
        _share_out(todo, plan, folder, advance)
    answers = [each for each in read_answers(folder) if len(each.answer_ids) >= MIN_ANSWER_TOKENS]
    if not answers:
        raise ConfigError("the target answered every prompt with nothing; are they meant for it?")
    return answers


def read_answers(folder: Path) -> list[Answer]:
    """The answers so far, by prompt; a line that a killed run left unfinished is passed over."""
    answers = list[Answer]()
    for path in sorted(folder.glob("worker-*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                answers.append(msgspec.json.decode(line, type=Answer))
            except msgspec.DecodeError:
                continue
    return sorted(answers, key=lambda answer: answer.index)


def count_tokens(folder: Path) -> int:
    """Answer tokens in the folder so far."""
    return sum(len(answer.answer_ids) for answer in read_answers(folder))


def _share_out(todo: Sequence[Asked], plan: AnswerPlan, folder: Path, advance: Callable[[int], None]) -> None:
    """Answer with as many processes as the plan has; each has an equal part of the tokens to say."""
    num_said = count_tokens(folder)
    missing = plan.num_tokens - num_said
    if plan.num_workers == 1:
        for answer in _work(todo, plan, folder / "worker-0.jsonl", missing):
            num_said += len(answer.answer_ids)
            advance(num_said)
        return
    context = get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(plan.num_workers, context, _begin_work, (stop,)) as pool:
        part = -(-missing // plan.num_workers)
        shares = enumerate(todo[number :: plan.num_workers] for number in range(plan.num_workers))
        works = {
            pool.submit(_work_all, share, plan, folder / f"worker-{number}.jsonl", part) for number, share in shares
        }
        try:
            while works:
                done, works = wait(works, timeout=LOOK_EVERY_S, return_when=FIRST_EXCEPTION)
                advance(count_tokens(folder))
                for work in done:
                    work.result()
        finally:
            stop.set()  # if one failed, the others need not end their shares


def _begin_work(stop: Event) -> None:
    global _stop  # noqa: PLW0603 (how a pool's process is told anything at its start)
    _stop = stop


def _work_all(todo: Sequence[Asked], plan: AnswerPlan, path: Path, num_tokens: int) -> None:
    for _ in _work(todo, plan, path, num_tokens):
        if _stop is not None and _stop.is_set():
            return


def _work(todo: Sequence[Asked], plan: AnswerPlan, path: Path, num_tokens: int) -> Iterator[Answer]:
    """Answer one worker's share. Yields: each answer when it is written. Effects: lines of `path`."""
    _end_last_line(path)
    llm = LLM(
        plan.target,
        max_num_seqs=plan.batch,
        dtype=plan.dtype,
        device=plan.device,
        numerics="fast",
        max_model_len=plan.max_model_len,
        num_threads=plan.num_threads,
    )
    with llm, path.open("ab", buffering=0) as file:
        for answer in _answers(llm, todo, plan, num_tokens):
            file.write(msgspec.json.encode(answer) + b"\n")
            yield answer


def _answers(llm: LLM, todo: Sequence[Asked], plan: AnswerPlan, num_tokens: int) -> Iterator[Answer]:
    """Keep the cache's rows full until enough is said; answers come as they end."""
    engine, waiting = llm.engine, iter(todo)
    eos = engine.runner.info.eos_token_ids
    being_said = dict[RequestId, Answer]()
    num_said = 0
    upcoming = next(waiting, None)
    while engine.has_work or (upcoming is not None and num_said < num_tokens):
        while upcoming is not None and len(being_said) < plan.batch and num_said < num_tokens:
            index, prompt_ids = upcoming
            is_sampled = plan.sampled_every and index % plan.sampled_every == plan.sampled_every - 1
            temperature = SAMPLED_TEMPERATURE if is_sampled else 0.0
            params = SamplingParams(temperature=temperature, max_tokens=plan.max_new_tokens, seed=index)
            (spec,) = request_specs(prompt_ids, params, eos)
            request_id = RequestId(f"train-{index}")
            engine.submit(request_id, spec)
            being_said[request_id] = Answer(index=index, prompt_ids=prompt_ids, answer_ids=[], temperature=temperature)
            upcoming = next(waiting, None)
        for emission in engine.step():
            answer_ids = being_said[emission.request_id].answer_ids
            answer_ids += emission.token_ids
            num_said += len(emission.token_ids)
            if emission.finish_reason is not None:
                yield being_said.pop(emission.request_id)


def _end_last_line(path: Path) -> None:
    """Let what a killed run left unfinished be a line of its own."""
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
