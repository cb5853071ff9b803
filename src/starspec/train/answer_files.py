"""The target's answers on disk: `worker-N.jsonl` with one line for each answer.

There may be more answers than fit into memory, so only the location of each is kept. If there are two answers to a
prompt, one counts. A line that a killed run left unfinished is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple, overload

import msgspec

from starspec.errors import ConfigError


class TrainingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The target's answer to one prompt."""

    index: int  # index of the prompt
    prompt_ids: list[int]
    answer_ids: list[int]  # with the end-of-sequence token
    temperature: float = 0.0

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + self.answer_ids


class _Location(NamedTuple):
    """Where an answer lies on disk."""

    prompt_index: int
    path: Path
    start: int  # bytes
    num_bytes: int


class StoredAnswers(Sequence[TrainingAnswer]):
    """The answers of a folder in the order of their prompts. Each access reads from disk.

    Raises: ConfigError, at a look, if another process changed what is there.
    """

    def __init__(self, locations: Sequence[_Location]) -> None:
        self._locations = locations

    @property
    def indices(self) -> list[int]:
        """The indices of the answered prompts."""
        return [location.prompt_index for location in self._locations]

    def to_prompts(self, indices: Set[int]) -> StoredAnswers:
        """The answers to these prompts only."""
        return StoredAnswers([location for location in self._locations if location.prompt_index in indices])

    def __len__(self) -> int:
        return len(self._locations)

    @overload
    def __getitem__(self, which: int) -> TrainingAnswer: ...

    @overload
    def __getitem__(self, which: slice) -> StoredAnswers: ...

    def __getitem__(self, which: int | slice) -> TrainingAnswer | StoredAnswers:
        if isinstance(which, slice):
            return StoredAnswers(self._locations[which])
        location = self._locations[which]
        try:
            with location.path.open("rb") as file:
                file.seek(location.start)
                answer = _answer_in(file.read(location.num_bytes))
        except OSError as error:
            raise ConfigError(f"'{location.path}' cannot be read any more: {error.strerror}") from error
        if answer is None or answer.index != location.prompt_index:
            raise ConfigError(f"'{location.path}' was changed while answers were read from it; start again")
        return answer


def read_answers(folder: Path, min_tokens: int = 0) -> StoredAnswers:
    """The answers so far, one for each prompt; only those with at least so many tokens."""
    locations = dict[int, _Location | None]()
    for path in sorted(folder.glob("worker-*.jsonl")):
        start = 0
        with path.open("rb") as file:
            for line in file:
                answer = _answer_in(line)
                if answer is not None:
                    found = _Location(answer.index, path, start, len(line))
                    locations.setdefault(answer.index, found if len(answer.answer_ids) >= min_tokens else None)
                start += len(line)
    in_order = (locations[index] for index in sorted(locations))
    return StoredAnswers([location for location in in_order if location is not None])


class SaidTokens:
    """Counts answer tokens in a folder while others write to it. Each call reads the new lines only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_read: dict[Path, int] = {}  # bytes of each file that were read, up to the end of a line
        self._indices: set[int] = set()  # of prompts that are answered
        self._num_tokens = 0

    def count(self) -> int:
        for path in sorted(self._folder.glob("worker-*.jsonl")):
            for answer in self._new_answers(path):
                if answer.index not in self._indices:
                    self._indices.add(answer.index)
                    self._num_tokens += len(answer.answer_ids)
        return self._num_tokens

    def _new_answers(self, path: Path) -> Iterator[TrainingAnswer]:
        with path.open("rb") as file:
            file.seek(self._num_read.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):  # a worker is still writing it
                    return
                self._num_read[path] = self._num_read.get(path, 0) + len(line)
                answer = _answer_in(line)
                if answer is not None:
                    yield answer


def _answer_in(line: bytes) -> TrainingAnswer | None:
    try:
        return msgspec.json.decode(line, type=TrainingAnswer)
    except msgspec.DecodeError:  # an unfinished line of a killed run
        return None
