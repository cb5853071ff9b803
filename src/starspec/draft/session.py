"""One tag at the hub: the tokens that its target committed, the draft chain behind them, and what is owed."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.draft.scheduler import TagKey
from starspec.errors import OurBug
from starspec.speculation.counts import TokenCounts
from starspec.wire.messages import Open
from starspec.wire.session import TagSession, TagState


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What a drafter can take: sessions beyond it are answered with fewer draft tokens, at last with none."""

    max_len: int  # tokens of a sequence, drafts included
    vocab_size: int  # token ids below this can be read
    max_draft_tokens: int  # of one proposal
    target_vocab_size: int  # token ids below this are the target's


@dataclass(slots=True)
class DraftRequest:
    """A proposal that is owed."""

    num_draft_tokens: int
    arrived_s: float
    started_s: float | None = None  # start of its first layer
    has_prefill: bool = False  # a layer of its service had a prompt in it, its own or another's

    def times(self, now: float) -> tuple[float, float]:
        """Seconds in the queue and seconds of service, if the proposal is made now."""
        started_s = now if self.started_s is None else self.started_s
        return max(0.0, started_s - self.arrived_s), max(0.0, now - started_s)


class DraftSession:
    """One tag's sequence: committed tokens, then a chain of draft tokens.

        committed            chain
        t0  t1  t2  t3   |   d0  d1  d2
        └── K/V in the cache row ─┘  └ missing: its forward yields d3

    The chain stays after it has been proposed: the verdict tells how much of it, and of its K/V, remains true.
    """

    def __init__(self, key: TagKey, opened: Open, link: TagSession, limits: DraftLimits, now: float) -> None:
        self.key = key
        self.link = link
        self.law = opened.law
        self.token_ids = list(opened.token_ids)
        self.chain: list[int] = []
        self.row: int | None = None
        self.request: DraftRequest | None = None
        self.last_used_s = now
        self.is_exhausted = False  # the drafter knows nothing to add to the chain
        self._limits = limits
        self._end_token_ids = frozenset(opened.law.end_token_ids)
        self._is_readable = max(opened.token_ids) < limits.vocab_size
        self._counts: TokenCounts | None = None
        if opened.law.needs_counts or opened.law.min_tokens:
            prompt_len = opened.prompt_len
            self._counts = TokenCounts(self.token_ids[:prompt_len], self.token_ids[prompt_len:])

    def __len__(self) -> int:
        """Committed and draft tokens: also the position of the next draft token."""
        return len(self.token_ids) + len(self.chain)

    @property
    def target_vocab_size(self) -> int:
        """Token ids below this are the target's, and may be proposed."""
        return self._limits.target_vocab_size

    @property
    def room(self) -> int:
        """Draft tokens that may follow the committed ones, at most."""
        if not self._is_readable:
            return 0
        return max(0, min(self._limits.max_len - len(self.token_ids), self._limits.max_draft_tokens))

    @property
    def num_wanted(self) -> int:
        """Tokens of the proposal that is owed, if nothing ends the chain early; 0 if none is owed."""
        return min(self.request.num_draft_tokens, self.room) if self.request else 0

    @property
    def is_complete(self) -> bool:
        """Whether the chain is as long as wanted, or as it can get: nothing comes after an end token."""
        has_ended = bool(self.chain) and self.chain[-1] in self._end_token_ids
        return has_ended or self.is_exhausted or len(self.chain) >= self.num_wanted

    @property
    def path_counts(self) -> TokenCounts | None:
        """Counts of all tokens before the next draft token; None if the law does not need them."""
        return self._counts.with_path(self.chain) if self._counts else None

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of the sequence, committed and draft, from position `start` to before `stop`."""
        num_committed = len(self.token_ids)
        drafted = self.chain[max(0, start - num_committed) : max(0, stop - num_committed)]
        return self.token_ids[start:stop] + drafted

    def is_continued_by(self, message: Open) -> bool:
        """Whether a new Open only adds tokens to what is held already."""
        return message.law == self.law and message.token_ids[: len(self.token_ids)] == self.token_ids

    def ask(self, num_draft_tokens: int, now: float) -> None:
        """Owe a proposal of so many tokens from now on; 0 for none. Replaces what was owed before."""
        self.request = DraftRequest(num_draft_tokens, now) if num_draft_tokens else None
        self.last_used_s = now

    def begin(self, now: float, has_prefill: bool) -> None:
        """A layer for the proposal that is owed starts now, with a prompt in it or without."""
        if self.request is not None:
            self.request.started_s = now if self.request.started_s is None else self.request.started_s
            self.request.has_prefill |= has_prefill

    def settle(self, now: float) -> None:
        """The proposal that was owed is made."""
        self.request = None
        self.last_used_s = now

    def extend(self, token_id: int) -> None:
        """Add a draft token to the chain."""
        self.chain.append(token_id)

    def reroot(self, token_ids: list[int]) -> int:
        """Commit what the target committed; what the chain says beyond it survives if it agreed to the end.

        Returns: how many tokens of the old sequence, committed and chain, are still a prefix of the new one.
        Effects: `token_ids`, `chain`, the counts. Does not touch the row.
        """
        num_agreed = 0
        while num_agreed < min(len(token_ids), len(self.chain)) and token_ids[num_agreed] == self.chain[num_agreed]:
            num_agreed += 1
        num_valid = len(self) if num_agreed == len(token_ids) else len(self.token_ids) + num_agreed
        self.chain = self.chain[num_agreed:] if num_agreed == len(token_ids) else []
        self.token_ids += token_ids
        self._is_readable = self._is_readable and max(token_ids) < self._limits.vocab_size
        if self._counts:
            self._counts.append(token_ids)
        return num_valid

    def forget_chain(self) -> None:
        """Go back to the committed tokens; the drafter may know more by now."""
        self.chain = []
        self.is_exhausted = False

    def check_integrity(self) -> None:
        """Raises: OurBug unless tokens, request and link agree."""
        if self.link.prefix_len != len(self.token_ids):
            raise OurBug(f"{self.key} holds {len(self.token_ids)} tokens, its link says {self.link.prefix_len}")
        if (self.request is not None) != (self.link.state is TagState.DRAFTING):
            raise OurBug(f"{self.key} owes {self.request} while its link is {self.link.state}")
        if len(self.chain) > self.room:
            raise OurBug(f"{self.key} has drafted {len(self.chain)} tokens where {self.room} fit")
