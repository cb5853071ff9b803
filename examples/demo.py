"""The walking star: one draft server speeds up two targets, token for token what they would have said alone.

`make demo` runs this. It starts `starspec up` as a user would, streams eight prompts at once through the `openai`
client, asks the same targets again without speculation, and compares the answers token for token, some times in turns.
Then it races: one stream at a time on one target, with the EAGLE head that ships with starspec, and with a coarse copy
of the target.
"""

from __future__ import annotations

if __name__ == "__main__":  # what follows takes seconds to import
    from starspec.__main__ import end_imports_on_ctrl_c

    end_imports_on_ctrl_c()

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from race import HEAD, SELF_DRAFT, RaceResult, RaceRow, Turn, race, race_line, race_rows
from star_process import star
from starspec.__main__ import EXIT_INTERRUPTED
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report, write_report
from starspec.models.loading.demo_model import demo_head_folder, demo_model_folder
from starspec.observe.status import StatusWatch
from starspec.observe.table import star_line, star_table
from starspec.output_files import why_full, why_no_file

MAX_TOKENS = 96
START_INTERVAL_S = 0.05  # between two prompts: in a fixed order, each target gets the same prompts in each pass
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 20}
PROMPTS: list[tuple[str, dict[str, Any]]] = [  # those with long answers first, so that each target gets as many of them
    ("Write a Python function that reverses the words of a sentence.", GREEDY),
    ("List five things to pack for a week in the mountains.", GREEDY),
    ("Rewrite as a polite e-mail: the report is late and I need it today.", GREEDY),
    ("Write a short poem about a lighthouse in winter.", SAMPLED),
    ("Explain in three sentences why the sky is blue.", GREEDY),
    ("Summarise the story of Cinderella in four sentences.", GREEDY),
    ("What is 17 times 24? Show each step.", GREEDY),
    ("Invent a name and a slogan for a bakery run by robots.", SAMPLED),
]


@dataclass(slots=True)
class Answer:
    """What one prompt got."""

    prompt: str
    sampling: dict[str, Any]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    first_token_s: float | None = None  # time.monotonic()
    done_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """All prompts, answered at the same time."""

    answers: list[Answer]
    elapsed_s: float
    num_forwards: int  # of targets, counted per sequence
    num_emitted: int
    num_by_length: list[int]  # [draft steps] -> choices

    @property
    def turn(self) -> Turn:
        """As races compare it."""
        return Turn([answer.token_ids for answer in self.answers], self.elapsed_s)


@dataclass(frozen=True, slots=True)
class Conversation:
    """All prompts, answered with drafts and plainly in turns."""

    pairs: list[tuple[Pass, Pass]]  # (with drafts, plainly) of each repeat

    @property
    def race(self) -> RaceResult:
        """Its speeds."""
        return RaceResult([(drafted.turn, plain.turn) for drafted, plain in self.pairs])

    @property
    def different(self) -> list[tuple[Answer, Answer]]:
        """The answers that drafts changed."""
        both = [pair for one, other in self.pairs for pair in zip(one.answers, other.answers, strict=True)]
        return [(one, other) for one, other in both if (one.token_ids, one.text) != (other.token_ids, other.text)]

    @property
    def first_token_s(self) -> float:
        """When the first token of all came, by time.monotonic()."""
        first, _ = self.pairs[0]
        return min(answer.first_token_s for answer in first.answers if answer.first_token_s is not None)

    @property
    def summary(self) -> str:
        """The closing line: tokens of one repeat, block efficiency of all, speeds of the median one."""
        drafted = [each for each, _ in self.pairs]
        efficiency = sum(each.num_emitted for each in drafted) / sum(each.num_forwards for each in drafted)
        num_identical = len(PROMPTS) - len({one.prompt for one, _ in self.different})
        return (
            f"{sum(map(len, drafted[0].turn.token_ids))} tokens | block efficiency {efficiency:.2f} tokens a forward "
            f"| identical {num_identical}/{len(PROMPTS)} | against plain decoding: {self.race.line}; "
            f"median of {len(self.pairs)}"
        )

    @property
    def lengths_line(self) -> str:
        """Which draft lengths were chosen, and how often."""
        counts = [sum(column) for column in zip_longest(*(each.num_by_length for each, _ in self.pairs), fillvalue=0)]
        shares = [f"{length}: {num / sum(counts):.0%}" for length, num in enumerate(counts) if num]
        return f"draft lengths chosen (tokens, 0 = no draft): {', '.join(shares)}"


async def answer_all(
    client: AsyncOpenAI,
    model: str,
    watch: StatusWatch,
    max_tokens: int,
    showing: Callable[[list[Answer], str], AbstractAsyncContextManager[None]],
    *,
    is_speculative: bool,
) -> Pass:
    """Stream the answers to all prompts at once, and show them.

    A pass ends with its last answer, so its time depends on how many of the long ones one target gets.
    """
    answers = [Answer(*prompt) for prompt in PROMPTS]
    before = await fresh_counts(watch)
    started_s = time.monotonic()
    async with showing(answers, "with drafts" if is_speculative else "plainly"):
        streams = []
        for answer in answers:
            streams.append(asyncio.create_task(_stream(client, model, answer, max_tokens, is_speculative)))
            await asyncio.sleep(START_INTERVAL_S)
        await asyncio.gather(*streams)
    elapsed_s = time.monotonic() - started_s
    after = await fresh_counts(watch)
    lengths = [chosen - known for chosen, known in zip_longest(after[2], before[2], fillvalue=0)]
    return Pass(answers, elapsed_s, after[0] - before[0], after[1] - before[1], lengths)


async def _stream(client: AsyncOpenAI, model: str, answer: Answer, max_tokens: int, is_speculative: bool) -> None:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": answer.prompt}],
        max_tokens=max_tokens,
        stream=True,
        extra_body={"speculative": is_speculative, "return_token_ids": True},
        **answer.sampling,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            answer.text += choice.delta.content or ""
            answer.token_ids += (choice.model_extra or {}).get("token_ids") or []
            if answer.token_ids and answer.first_token_s is None:
                answer.first_token_s = time.monotonic()
    answer.done_s = time.monotonic()


async def fresh_counts(watch: StatusWatch) -> tuple[int, int, list[int]]:
    """(forwards, emitted tokens, choices of each draft length) of all targets, from answers to questions asked after
    now."""
    for _ in range(8):  # longer than the interval of asking
        watch.poll()
        await asyncio.sleep(0.1)
    stats = [status.stats for status in watch.snapshot.targets]
    num_forwards = sum(each.acceptance.num_forwards for each in stats)
    num_emitted = sum(each.acceptance.num_emitted_tokens for each in stats)
    lengths = [sum(column) for column in zip_longest(*(each.lengths.num_by_length for each in stats), fillvalue=0)]
    return num_forwards, num_emitted, lengths


class Screen:
    """The star's table above the answers as they grow; on no terminal, a line for each answer."""

    def __init__(self, watch: StatusWatch, targets: Sequence[str]) -> None:
        self._watch = watch
        self._states = dict.fromkeys(targets, "starting"), "starting"
        self._console = Console(highlight=False)

    @asynccontextmanager
    async def showing(self, answers: Sequence[Answer], how: str) -> AsyncIterator[None]:
        task = asyncio.create_task(self._draw(answers, how) if self._console.is_terminal else self._tell(answers, how))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _draw(self, answers: Sequence[Answer], how: str) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    self._watch.poll()
                    live.update(Group(self._star(how), _answers_table(answers)), refresh=True)
                    await asyncio.sleep(0.25)
            finally:
                live.update(Group(self._star(how), _answers_table(answers)), refresh=True)

    def _star(self, how: str) -> Table:
        return star_table(self._watch.snapshot, f"{len(PROMPTS)} prompts, answered {how}", *self._states)

    async def _tell(self, answers: Sequence[Answer], how: str) -> None:
        told = 0
        while True:
            self._watch.poll()
            done = sorted(
                (answer for answer in answers if answer.done_s is not None), key=lambda each: each.done_s or 0
            )
            for answer in done[told:]:
                print(f"{how}: {len(answer.token_ids):3d} tokens for: {answer.prompt}", flush=True)
            if done[told:]:
                print(f"    {star_line(self._watch.snapshot, *self._states)}", flush=True)
            told = len(done)
            await asyncio.sleep(1.0)


def _answers_table(answers: Sequence[Answer]) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(max_width=38, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", width=4)
    table.add_column(no_wrap=True, ratio=1)
    for answer in answers:
        tail = " ".join(answer.text.split())[-70:]
        table.add_row(answer.prompt, str(len(answer.token_ids)), tail, style=None if answer.done_s is None else "green")
    return table


async def converse(addresses: dict[str, str], num_repeats: int, max_tokens: int) -> Conversation:
    """Answer all prompts with drafts and plainly: the first repeat shows them, the others only measure.

    Which of the two comes first alternates, since what comes later finds everything warm.
    """
    targets = {name: address for name, address in addresses.items() if name.startswith("target")}
    watch = StatusWatch(list(targets.values()), addresses["hub"])
    showing = Screen(watch, list(targets)).showing
    client = AsyncOpenAI(base_url=f"{addresses['gateway']}/v1", api_key="none", max_retries=0)
    pairs: list[tuple[Pass, Pass]] = []
    try:
        model = (await client.models.list()).data[0].id
        for repeat in range(num_repeats):
            passes: dict[bool, Pass] = {}
            for is_speculative in (True, False) if repeat % 2 == 0 else (False, True):
                passes[is_speculative] = await answer_all(
                    client, model, watch, max_tokens, showing, is_speculative=is_speculative
                )
            pairs.append((passes[True], passes[False]))
            showing = partial(_waiting, f"{repeat + 2} of {num_repeats}")
    finally:
        await client.close()
        watch.close()
    return Conversation(pairs)


@asynccontextmanager
async def _waiting(which: str, answers: Sequence[Answer], how: str) -> AsyncIterator[None]:
    with Console().status(f"{len(answers)} prompts at once, {how}: {which}"):
        yield


def tell(conversation: Conversation, started_s: float) -> None:
    """Print what came of it."""
    for one, other in conversation.different:
        print(f"DIFFERENT: {one.prompt}\n  with drafts: {one.text!r}\n  plainly:     {other.text!r}")
    print(f"first token after {conversation.first_token_s - started_s:.1f} s | {conversation.summary}")
    print(conversation.lengths_line)
    if conversation.race.speed_up < 1.0:
        print("Eight streams at once keep these cores busy: tokens verified in vain then cost as much as decoded ones.")


def keep_open(gateway: str) -> None:
    """Wait for Ctrl-C."""
    print(f"dashboard at {gateway}/dashboard, API at {gateway}/v1; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def main() -> None:
    """Exits 0 if every answer was the same with and without drafts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of each measurement (default: 3)")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"of an answer (default: {MAX_TOKENS})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="save what the races gave, with its provenance, here")
    parser.add_argument("--keep", action="store_true", help="do not race: keep the star and its dashboard until Ctrl-C")
    given = parser.parse_args()
    if min(given.repeats, given.max_tokens) < 1:
        parser.error("--repeats and --max-tokens are at least 1")
    if given.keep and given.json is not None:
        parser.error("--json is for the races, which --keep leaves out")
    if given.json is not None and (why := why_no_file(given.json)):
        parser.error(f"--json: {why}")
    if why := why_full(sys.stdout.fileno()):
        parser.error(f"the output cannot be written: {why}")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also inside an import: the star must be stopped
    for ending in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was started is stopped on the way out
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    started_s = time.monotonic()
    model = demo_model_folder()
    with star(model, HEAD.options(model), num_targets=2) as addresses:
        conversation = asyncio.run(converse(addresses, 1 if given.keep else given.repeats, given.max_tokens))
        tell(conversation, started_s)
        is_identical = conversation.race.is_identical and not conversation.different
        if given.keep:
            keep_open(addresses["gateway"])
            sys.exit(0 if is_identical else 1)
    rows: list[RaceRow] = [conversation.race.row(HEAD.name, f"{len(PROMPTS)} at once, two targets")]
    for draft in (HEAD, SELF_DRAFT):
        with star(model, draft.options(model), num_targets=1) as addresses:
            results = asyncio.run(race(addresses["gateway"], given.repeats, given.max_tokens))
        print(race_line(draft.name, results))
        rows += race_rows(draft.name, results)
        is_identical &= all(row.is_identical for row in rows)
    if given.json is not None:
        models = {"target": str(model), "head": str(demo_head_folder())}
        ratios = {f"{row.drafts}, {row.prompts}": row.speed_up for row in rows}
        write_report(Report(collect_provenance(models), rows, ratios), given.json)
    sys.exit(0 if is_identical else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
