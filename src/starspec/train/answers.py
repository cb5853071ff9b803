"""The first stage: the target's own continuations, from which a head learns.

They go into `answers/` as they come (`answer_files.py`); a run that was killed goes on where it was. Its last workers
may still be ending then: nobody writes to a file of another, and of two answers to a prompt one counts.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from itertools import count
from pathlib import Path

import msgspec

from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, prompt_token_ids
from starspec.ids import RequestId
from starspec.llm import LLM
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.request_specs import request_specs
from starspec.sampling_params import SamplingParams
from starspec.train.answer_files import SaidTokens, StoredAnswers, TrainingAnswer, read_answers
from starspec.train.plan import AnswerPlan
from starspec.train.work_folder import writing
from starspec.train.workers import IsWanted, run_apart

SAMPLED_TEMPERATURE = 0.7
MIN_ANSWER_TOKENS = 2  # a shorter answer has nothing to predict
LOOK_EVERY_S = 5.0

Asked = tuple[int, list[int]]  # a prompt's index among those to be answered, and its tokens


def check_prompts(prompts: Sequence[Prompt], plan: AnswerPlan) -> None:
    """Raises: ConfigError if no prompt leaves room for an answer."""
    tokenizer = load_tokenizer(plan.target)
    if not any(_fits(prompt_token_ids(tokenizer, prompt), plan) for prompt in prompts):
        raise ConfigError(f"none of the {len(prompts)} prompts is 1 to {plan.room} tokens long")


def answer_prompts(
    prompts: Sequence[Prompt], plan: AnswerPlan, folder: Path, advance: Callable[[int], None]
) -> StoredAnswers:
    """Answer prompts in order until there are enough tokens.

    Args:
        prompts: as `check_prompts` takes them.
        folder: of the answers.
        advance: told after each look how many tokens there are.
    Returns: all answers in the folder, in the order of their prompts.
    Raises: ConfigError if the target says nothing; OutputError if an answer cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(plan.target)
    ids = [prompt_token_ids(tokenizer, prompt) for prompt in prompts]
    done = set(read_answers(folder).indices)
    todo = [(index, each) for index, each in enumerate(ids) if index not in done and _fits(each, plan)]
    said = SaidTokens(folder)
    if said.count() < plan.num_tokens and todo:
        _share_out(todo, plan, folder, said, advance)
    answers = read_answers(folder, MIN_ANSWER_TOKENS)
    if not answers:
        raise ConfigError("the target answered every prompt with nothing; are they meant for it?")
    return answers


def _fits(prompt_ids: Sequence[int], plan: AnswerPlan) -> bool:
    return 0 < len(prompt_ids) <= plan.room


def check_answers(answers: Sequence[TrainingAnswer], vocab_size: int, folder: Path) -> None:
    """Raises: ConfigError if the answers of this folder hold tokens that the target does not have."""
    for answer in answers:
        for token_id in answer.token_ids:
            if not 0 <= token_id < vocab_size:
                raise ConfigError(
                    f"'{folder}' is damaged: the answer to prompt {answer.index} holds token {token_id}, and the "
                    f"target has 0 to {vocab_size - 1}; delete it to start anew"
                )


def _share_out(
    todo: Sequence[Asked], plan: AnswerPlan, folder: Path, said: SaidTokens, advance: Callable[[int], None]
) -> None:
    """Answer with the number of processes of the plan. Each gets an equal part of the tokens."""
    num_said = said.count()
    missing = plan.num_tokens - num_said
    if plan.num_workers == 1:
        for answer in _work(todo, plan, folder, missing):
            num_said += len(answer.answer_ids)
            advance(num_said)
        return
    part = -(-missing // plan.num_workers)
    shares = [(todo[number :: plan.num_workers], plan, folder, part) for number in range(plan.num_workers)]
    run_apart(_work_all, shares, lambda: advance(said.count()), LOOK_EVERY_S)


def _work_all(todo: Sequence[Asked], plan: AnswerPlan, folder: Path, num_tokens: int, is_wanted: IsWanted) -> None:
    for _ in _work(todo, plan, folder, num_tokens, is_wanted):
        pass


def _work(
    todo: Sequence[Asked], plan: AnswerPlan, folder: Path, num_tokens: int, is_wanted: IsWanted = lambda: True
) -> Iterator[TrainingAnswer]:
    """Answer the share of one worker. Yields: each answer after it is written. Effects: writes lines of its own
    file.
    """
    llm = LLM(
        plan.target,
        use_tqdm=False,
        max_num_seqs=plan.batch,
        dtype=plan.dtype,
        device=plan.device,
        numerics="fast",
        max_model_len=plan.max_model_len,
        num_threads=plan.num_threads,
    )
    with llm, _open_free(folder) as file:
        for answer in _answers(llm, todo, plan, num_tokens, is_wanted):
            with writing(Path(str(file.name))):
                file.write(msgspec.json.encode(answer) + b"\n")
            yield answer


def _answers(
    llm: LLM, todo: Sequence[Asked], plan: AnswerPlan, num_tokens: int, is_wanted: IsWanted
) -> Iterator[TrainingAnswer]:
    """Keep all cache rows busy until there are enough tokens or the caller stops. Yields answers as they end."""
    engine, waiting = llm.engine, iter(todo)
    eos = engine.verifier.info.eos_token_ids
    running = dict[RequestId, TrainingAnswer]()
    num_said = 0
    upcoming = next(waiting, None)
    while is_wanted() and (engine.has_work or (upcoming is not None and num_said < num_tokens)):
        while upcoming is not None and len(running) < plan.batch and num_said < num_tokens:
            index, prompt_ids = upcoming
            is_sampled = plan.sampled_every and index % plan.sampled_every == plan.sampled_every - 1
            temperature = SAMPLED_TEMPERATURE if is_sampled else 0.0
            params = SamplingParams(temperature=temperature, max_tokens=plan.max_new_tokens, seed=index)
            (spec,) = request_specs(prompt_ids, params, eos)
            request_id = RequestId(f"train-{index}")
            engine.submit(request_id, spec)
            running[request_id] = TrainingAnswer(
                index=index, prompt_ids=prompt_ids, answer_ids=[], temperature=temperature
            )
            upcoming = next(waiting, None)
        for output in engine.step().values():
            answer_ids = running[output.request_id].answer_ids
            answer_ids += output.token_ids
            num_said += len(output.token_ids)
            if output.finish_reason is not None:
                yield running.pop(output.request_id)


def _open_free(folder: Path) -> FileIO:
    """The first answer file that no other process writes to, locked until it is closed."""
    for number in count():
        path = folder / f"worker-{number}.jsonl"
        file = path.open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write(b"\n")  # ends the unfinished line of a killed run
        return file
    raise AssertionError("numbers do not end")
