"""Two ends of a tag over a channel that delays, repeats, loses and reorders at will.

Each end also keeps real tokens, so the claim is not only about numbers: what the hub believes is committed is what
was committed, and a proposal that the target takes was drawn from exactly the target's tokens.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from starspec.ids import Tag
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import Close, Open, Proposal, Reopen, Verdict
from starspec.wire.session import FromHub, FromTarget, Role, TagSession, TagState

TAG = Tag(1)
WHICH = st.integers(0, 5)
WANTED = st.integers(0, 3)


def facts(session: TagSession) -> tuple[object, ...]:
    return (session.state, session.epoch, session.prefix_len, session.wanted.num_draft_tokens)


class TwoEnds(RuleBasedStateMachine):
    """A target that decodes and a hub that drafts; the network between them does what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.target = TagSession(Role.TARGET, TAG)
        self.hub = TagSession(Role.HUB, TAG)
        self.committed = [0]  # the target's tokens
        self.history = {0: [0]}  # epoch -> the target's tokens then
        self.believed: list[int] = []  # the hub's copy of them
        self.drawn_from: list[tuple[Proposal, list[int]]] = []  # with the hub's tokens when it drew it
        self.to_hub: list[FromTarget] = []
        self.to_target: list[FromHub] = []
        self.highest = {Role.TARGET: 0, Role.HUB: 0}

    # ------------------------------------------------------------ the target

    def send(self, message: FromTarget) -> None:
        self.target.send(message)
        self.history[message.epoch] = list(self.committed)
        self.to_hub.append(message)

    @precondition(lambda self: self.target.state is TagState.ABSENT)
    @rule(wanted=WANTED)
    def open(self, wanted: int) -> None:
        self.send(Open(TAG, self.target.next_epoch, list(self.committed), 1, SamplingSpec(), wanted))

    @precondition(lambda self: self.target.is_held)
    @rule(token_ids=st.lists(st.integers(0, 9), min_size=1, max_size=3), wanted=WANTED)
    def commit(self, token_ids: list[int], wanted: int) -> None:
        base_len = len(self.committed)
        self.committed += token_ids
        self.send(Verdict(TAG, self.target.next_epoch, base_len, token_ids, wanted))

    @precondition(lambda self: not self.target.is_held)
    @rule(token_ids=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def commit_alone(self, token_ids: list[int]) -> None:
        self.committed += token_ids

    @precondition(lambda self: self.target.state is not TagState.CLOSED)
    @rule(draw=st.integers(0, 9))
    def close(self, draw: int) -> None:
        if draw == 0:
            self.send(Close(TAG, self.target.next_epoch))

    # ------------------------------------------------------------ the hub

    @precondition(lambda self: self.hub.state is TagState.DRAFTING)
    @rule(num_tokens=st.integers(0, 3))
    def propose(self, num_tokens: int) -> None:
        token_ids = list(range(min(num_tokens, self.hub.wanted.num_draft_tokens)))
        proposal = self.hub.send(Proposal(TAG, self.hub.epoch, self.hub.prefix_len, token_ids))
        self.drawn_from.append((proposal, list(self.believed)))
        self.to_target.append(proposal)

    @precondition(lambda self: self.hub.is_held)
    @rule()
    def evict(self) -> None:
        self.to_target.append(self.hub.send(Reopen(TAG, self.hub.epoch)))

    # ------------------------------------------------------------ the network

    @precondition(lambda self: self.to_hub)
    @rule(which=WHICH, is_repeated=st.booleans())
    def deliver_to_hub(self, which: int, is_repeated: bool) -> None:
        self.hub_hears(pick(self.to_hub, which, is_repeated))

    @precondition(lambda self: self.to_target)
    @rule(which=WHICH, is_repeated=st.booleans())
    def deliver_to_target(self, which: int, is_repeated: bool) -> None:
        self.target_hears(pick(self.to_target, which, is_repeated))

    @precondition(lambda self: self.to_hub)
    @rule(which=WHICH)
    def lose_one_for_the_hub(self, which: int) -> None:
        pick(self.to_hub, which, is_repeated=False)

    @precondition(lambda self: self.to_target)
    @rule(which=WHICH)
    def lose_one_for_the_target(self, which: int) -> None:
        pick(self.to_target, which, is_repeated=False)

    @rule(draw=st.integers(0, 9))
    def break_the_link(self, draw: int) -> None:
        if draw == 0:
            self.to_hub.clear()
            self.to_target.clear()
            self.target.lose()
            self.hub.lose()

    def hub_hears(self, message: FromTarget) -> None:
        before, num_stale = facts(self.hub), self.hub.num_stale
        accepted = self.hub.receive(message)  # between two honest ends nothing ever raises
        if self.hub.num_stale > num_stale:
            assert facts(self.hub) == before
        match accepted:
            case Open(token_ids=token_ids):
                self.believed = list(token_ids)
            case Verdict(token_ids=token_ids):
                self.believed += token_ids
        if self.hub.gap is not None:
            self.to_target.append(self.hub.send(self.hub.gap))

    def target_hears(self, message: FromHub) -> None:
        before, num_stale = facts(self.target), self.target.num_stale
        accepted = self.target.receive(message)
        if self.target.num_stale > num_stale:
            assert facts(self.target) == before
        if isinstance(accepted, Proposal):
            [tokens] = [tokens for proposal, tokens in self.drawn_from if proposal is message]
            assert tokens == self.committed

    @rule(draw=st.integers(0, 4))
    def reopen_at_will(self, draw: int) -> None:
        if draw == 0 and self.target.is_held:
            self.open(2)

    @rule()
    def heal(self) -> None:
        """With a network that delivers again, one more word of the target brings both ends together."""
        self.settle()
        if self.target.is_held:
            self.commit([5], 2)
            self.settle()
        if not self.target.is_held and self.target.state is not TagState.CLOSED:
            self.open(2)
            self.settle()
        if self.target.state is not TagState.CLOSED:
            assert facts(self.hub) == facts(self.target)
            assert self.believed == self.committed

    def settle(self) -> None:
        while self.to_hub or self.to_target:
            if self.to_hub:
                self.hub_hears(self.to_hub.pop(0))
            else:
                self.target_hears(self.to_target.pop(0))

    # ------------------------------------------------------------ what always holds

    @invariant()
    def epochs_never_go_back(self) -> None:
        for session in (self.target, self.hub):
            assert session.epoch >= self.highest[session.role]
            self.highest[session.role] = session.epoch

    @invariant()
    def the_hub_is_never_ahead(self) -> None:
        assert self.hub.epoch <= self.target.epoch

    @invariant()
    def what_the_hub_holds_is_what_was_committed(self) -> None:
        if self.hub.is_held:
            assert self.believed == self.history[self.hub.epoch]
            assert self.hub.prefix_len == len(self.believed)


def pick(messages: list, which: int, is_repeated: bool):
    """Any message on the wire; one that is repeated stays there."""
    index = which % len(messages)
    return messages[index] if is_repeated else messages.pop(index)


TwoEnds.TestCase.settings = settings(max_examples=300, stateful_step_count=80, deadline=None)
TestTwoEnds = TwoEnds.TestCase
