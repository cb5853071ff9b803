"""One vLLM step without vLLM, threads or sockets of its own: rows in, draft tokens out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from starspec.integrations.vllm.deadline import Deadline
from starspec.integrations.vllm.draft_length import DraftLength
from starspec.integrations.vllm.hub_client import HubClient, Wanted
from starspec.integrations.vllm.rows import KnownRequest, RowBook, SeenRow, Tokens
from starspec.integrations.vllm.settings import VllmSettings
from starspec.speculation.ngram import NgramIndex

MAX_CATCH_UP: Final = 4096  # tokens that n-gram indexes take in in one step: a hub may go while prompts are long


@dataclass(slots=True)
class _Drafted:
    """What is kept of a request besides its tokens."""

    length: DraftLength
    is_by_hub: bool  # whose drafts the length is told by
    num_drafted: int = 0  # tokens handed to vLLM in the last step
    index: NgramIndex | None = None


class StepDrafter:
    """Drafts for the rows of each step: a hub's, or n-grams while there is none.

    Args:
        max_draft_tokens: vLLM's `num_speculative_tokens`.
        max_model_len: tokens that a row can hold.
    """

    def __init__(
        self,
        hub: HubClient,
        deadline: Deadline,
        settings: VllmSettings,
        max_draft_tokens: int,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._deadline = deadline
        self._settings = settings
        self._max_draft_tokens = max_draft_tokens
        self._max_model_len = max_model_len
        self._clock = clock
        self._book = RowBook()
        self._drafted: dict[KnownRequest, _Drafted] = {}
        self._ended_s: float | None = None  # the last step
        self._num_catch_up = 0

    def step(self, sampled: Sequence[Sequence[int]], lengths: NDArray[np.int32], token_ids: Tokens) -> list[list[int]]:
        """As `RowBook.see`. Returns: draft tokens of each row, none where there is no draft."""
        now = self._clock()
        if self._ended_s is not None:
            self._deadline.note_step(now - self._ended_s)
        rows = self._book.see(sampled, lengths, token_ids, now)
        wanted = [Wanted(row.request, self._choose(row)) for row in rows if row is not None]
        drafts = self._propose(wanted)
        for each in wanted:
            self._drafted[each.request].num_drafted = len(drafts.get(each.request, ()))
        self._ended_s = self._clock()
        return [[] if row is None else drafts.get(row.request, []) for row in rows]

    def tend(self) -> None:
        """Beside the steps: keep the connection, and close the tags of requests that are gone."""
        gone = self._book.forget(self._clock())
        for request in gone:
            self._drafted.pop(request, None)
        self._hub.close(gone)
        self._hub.tend()

    def shutdown(self) -> None:
        self._hub.shutdown()

    def _choose(self, row: SeenRow) -> int:
        """How long a draft the row is worth, after what came of its last one."""
        state = self._drafted.get(row.request)
        is_by_hub = self._hub.is_serving
        if state is None or state.is_by_hub != is_by_hub:  # what n-grams achieve says nothing of a hub
            length = DraftLength(self._max_draft_tokens, is_fixed=not self._settings.adaptive)
            state = self._drafted[row.request] = _Drafted(length, is_by_hub)
        state.length.note(state.num_drafted, min(state.num_drafted, row.num_new - 1))
        return max(0, min(state.length.choose(), self._max_model_len - len(row.request) - 1))

    def _propose(self, wanted: Sequence[Wanted]) -> dict[KnownRequest, list[int]]:
        drafts = self._hub.draft(wanted)
        if drafts is not None:
            return drafts
        if self._settings.fallback == "none":
            return {}
        self._num_catch_up = 0
        return {each.request: self._look_up(each) for each in wanted if each.num_draft_tokens}

    def _look_up(self, wanted: Wanted) -> list[int]:
        """An n-gram draft; none before the index has all tokens."""
        state = self._drafted[wanted.request]
        if state.index is None:
            state.index = NgramIndex(self._settings.prompt_lookup_min, self._settings.prompt_lookup_max)
        start = len(state.index)
        new = wanted.request.token_ids(start, start + MAX_CATCH_UP - self._num_catch_up)
        self._num_catch_up += len(new)
        state.index.append(new)
        if len(state.index) < len(wanted.request):
            return []
        return state.index.propose(wanted.num_draft_tokens)
