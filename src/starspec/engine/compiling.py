"""Requests whose grammars are being compiled, on a thread: no answer waits for the grammar of another one.

Owners of gateways take turns, and share the places where requests wait, as `policy/queue_turns.py` says. So an
owner that sends many or slow grammars delays another owner by no more than the grammar that is being compiled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from starspec.errors import CapacityError, RequestError
from starspec.grammars.matcher import GrammarMatcher
from starspec.grammars.trial import Trial
from starspec.ids import PeerId, RequestKey
from starspec.policy.queue_turns import Sender, in_turns, who_gives_way
from starspec.wire.messages import RequestSpec, Submit

MAX_COMPILING: Final = 64  # requests; each grammar takes a second at worst, mostly some milliseconds


class Compiled(NamedTuple):
    """A request with its grammar, which is compiled or refused."""

    sender: Sender
    submit: Submit
    grammar: Future[GrammarMatcher | None]

    @property
    def peer(self) -> PeerId:
        return self.sender.peer


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
        self._lock = threading.Lock()  # of the following
        self._waiting: dict[RequestKey, Compiled] = {}  # those that nobody has begun to compile, oldest first
        self._num_due = 0  # calls of `_compile_next` that are to come: at least one for each that waits
        self._recent: deque[Sender] = deque(maxlen=MAX_COMPILING)  # whose grammars were begun last

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def peers(self) -> set[PeerId]:
        return {key.peer for key in self._begun}

    def add(self, peer: PeerId, owner: str, submit: Submit) -> RequestKey | None:
        """Begin with a request. If there are too many, one of an owner with more may give way to it.

        Args:
            owner: of the gateway.
        Returns: the request that gave way, which is dropped; None = none.
        Raises: RequestError if its id is in use; CapacityError if there are too many.
        """
        key, sender = RequestKey(peer, submit.request_id), Sender(owner, peer)
        if key in self._begun:
            raise RequestError(f"request id {submit.request_id} is in use", "request_id")
        late = self._make_room(sender) if len(self._begun) >= MAX_COMPILING else None
        self._begun[key] = compiled = Compiled(sender, submit, Future())
        with self._lock:
            self._waiting[key] = compiled
            is_call_missing = self._num_due < len(self._waiting)
            self._num_due += is_call_missing
        if is_call_missing:
            self._worker.submit(self._compile_next)
        return late

    def _make_room(self, newcomer: Sender) -> RequestKey:
        """Returns: the request that gives way. Raises: CapacityError if none does."""
        with self._lock:
            keys = [*self._waiting]
            place = who_gives_way([each.sender for each in self._waiting.values()], newcomer)
        if place is None:
            raise CapacityError(f"{MAX_COMPILING} grammars are waiting to be compiled; try again later")
        self.drop(keys[place])
        return keys[place]

    def take(self) -> list[Compiled]:
        """Those that are done, once."""
        done = [key for key, each in self._begun.items() if each.grammar.done()]
        return [self._begun.pop(key) for key in done]

    def drop(self, key: RequestKey) -> None:
        """Its client has left. An unknown one is ignored."""
        self._begun.pop(key, None)
        with self._lock:
            self._waiting.pop(key, None)

    def drop_all(self, peer: PeerId) -> None:
        """The gateway is gone."""
        for key in [key for key in self._begun if key.peer == peer]:
            self.drop(key)

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._trial.close()

    # ---------------------------------------------------------------- on the thread

    def _compile_next(self) -> None:
        """Called at least once for each request that waits; some of them may have been dropped since."""
        compiled = self._begin_next()
        if compiled is None:
            return
        try:
            compiled.grammar.set_result(self._try(compiled.submit.spec))
        except BaseException as error:  # a panic of llguidance is no Exception, and its request must end, too
            compiled.grammar.set_exception(error)

    def _begin_next(self) -> Compiled | None:
        """The request whose turn it is: those that were begun last count for their senders."""
        with self._lock:
            self._num_due -= 1
            if not self._waiting:
                return None
            keys = [*self._waiting]
            [first, *_] = in_turns([each.sender for each in self._waiting.values()], self._recent)
            compiled = self._waiting.pop(keys[first])
            self._recent.append(compiled.sender)
            return compiled

    def _try(self, spec: RequestSpec) -> GrammarMatcher | None:
        """Not only a gateway's: whoever has its key could send what would be compiled for ever."""
        if spec.grammar is not None:
            self._trial.check(spec.grammar)
        return self._compile(spec)
