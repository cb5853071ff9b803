"""Requests whose grammars are being compiled, on a thread: no answer waits for the grammar of another one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from starspec.errors import CapacityError, RequestError
from starspec.grammars.matcher import GrammarMatcher
from starspec.grammars.trial import Trial
from starspec.ids import PeerId, RequestKey
from starspec.wire.messages import RequestSpec, Submit

MAX_COMPILING: Final = 64  # requests; each grammar takes a second at worst, mostly some milliseconds


class Compiled(NamedTuple):
    """A request with its grammar, which is compiled or refused."""

    peer: PeerId
    submit: Submit
    grammar: Future[GrammarMatcher | None]


class Compiling:
    """The requests of one target. Only the target's own thread calls it.

    Args:
        compile_grammar: of a request; called on the thread.
        special_tokens: as `Trial`.
    """

    def __init__(
        self, compile_grammar: Callable[[RequestSpec], GrammarMatcher | None], special_tokens: tuple[str, ...]
    ) -> None:
        self._compile = compile_grammar
        self._trial = Trial(special_tokens=special_tokens)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._begun: dict[RequestKey, Compiled] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def peers(self) -> set[PeerId]:
        return {key.peer for key in self._begun}

    def add(self, peer: PeerId, submit: Submit) -> None:
        """Begin with a request. Raises: RequestError if its id is in use; CapacityError if there are too many."""
        key = RequestKey(peer, submit.request_id)
        if key in self._begun:
            raise RequestError(f"request id {submit.request_id} is in use", "request_id")
        if len(self._begun) >= MAX_COMPILING:
            raise CapacityError(f"{MAX_COMPILING} grammars are waiting to be compiled; try again later")
        self._begun[key] = Compiled(peer, submit, self._worker.submit(self._try, submit.spec))

    def take(self) -> list[Compiled]:
        """Those that are done, once."""
        done = [key for key, each in self._begun.items() if each.grammar.done()]
        return [self._begun.pop(key) for key in done]

    def drop(self, key: RequestKey) -> None:
        """Its client has left. An unknown one is ignored."""
        dropped = self._begun.pop(key, None)
        if dropped is not None:
            dropped.grammar.cancel()

    def drop_all(self, peer: PeerId) -> None:
        """The gateway is gone."""
        for key in [key for key in self._begun if key.peer == peer]:
            self.drop(key)

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._trial.close()

    def _try(self, spec: RequestSpec) -> GrammarMatcher | None:
        """Not only a gateway's: whoever has its key could send what would be compiled for ever."""
        if spec.grammar is not None:
            self._trial.check(spec.grammar)
        return self._compile(spec)
