"""A greedy target: it verifies nothing, takes no time, and always has several proposals to wait for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from starspec.bench.star.star_processes import TargetTimes, Turn, await_hub
from starspec.config import ModelConfig
from starspec.fingerprint import vocab_fingerprint
from starspec.ids import Tag, TargetId
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.synthetic.spec import parse_synthetic
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.budget import DraftBudget
from starspec.wire.messages import PROTOCOL_VERSION, Hello, Open, Proposal, TargetToHub, TreeShape, Verdict
from starspec.wire.session import Role, TagSession
from starspec.wire.transports.zmq_target import ZmqTarget

NUM_TAGS: Final = 4  # while one is answered the others wait
PROMPT: Final = tuple(range(8, 24))
SAID: Final = 7  # the token of every verdict: a draft of it would be chance
SAMPLING: Final = SamplingSpec(temperature=0.0, end_token_ids=())
WAIT_S: Final = 0.05


@dataclass(slots=True)
class _Tag:
    session: TagSession
    budget: DraftBudget

    def open(self) -> Open:
        shape, num_tokens = TreeShape.of(self.budget), self.budget.num_draft_tokens
        prompt = list(PROMPT)
        return self.session.send(
            Open(self.session.tag, self.session.next_epoch, prompt, len(prompt), SAMPLING, num_tokens, shape)
        )

    def verdict(self) -> Verdict:
        shape, num_tokens = TreeShape.of(self.budget), self.budget.num_draft_tokens
        session = self.session
        return session.send(Verdict(session.tag, session.next_epoch, session.prefix_len, [SAID], num_tokens, shape))


def run_greedy(parent: Connection, name: str, model: ModelConfig) -> None:
    """Ask for one proposal after another; the word is that of `run_target`, in which a round is a proposal here.

    Args:
        model: whose tokens it speaks.
    Raises: PeerLost if the hub does not answer.
    """
    hello = Hello(
        PROTOCOL_VERSION,
        TargetId(name),
        parse_synthetic(model.model).vocab,
        vocab_fingerprint(load_tokenizer(model.model)),
    )
    parent.send(True)
    while (word := parent.recv()) is not None:
        endpoint, turn = word
        _take_turn(parent, ZmqTarget(endpoint, hello), turn)


def _take_turn(parent: Connection, transport: ZmqTarget, turn: Turn) -> None:
    try:
        await_hub(lambda: transport.is_connected, lambda: transport.receive(0.0))
        parent.send(True)
        parent.recv()
        budget = DraftBudget.chain(turn.num_draft_tokens)
        tags = {number: _Tag(TagSession(Role.TARGET, Tag(number)), budget) for number in range(1, NUM_TAGS + 1)}
        transport.send([tag.open() for tag in tags.values()])
        _serve_for(turn.warm_up_s, transport, tags)
        num_rounds = _serve_for(turn.seconds, transport, tags)
        parent.send(TargetTimes(num_rounds, num_rounds, num_rounds, turn.seconds, wait_s=0.0, link_s=0.0))
    finally:
        transport.close()


def _serve_for(seconds: float, transport: ZmqTarget, tags: dict[int, _Tag]) -> int:
    """Returns: proposals that came."""
    end_s, num_rounds = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        answers: list[TargetToHub] = []
        for message in transport.receive(WAIT_S):
            if isinstance(message, Proposal) and tags[message.tag].session.receive(message) is not None:
                num_rounds += 1
                answers.append(tags[message.tag].verdict())
        transport.send(answers)
    return num_rounds
