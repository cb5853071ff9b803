"""How long a target in stages takes, and what windows bring it: DSD's equations, and ours beside them. Pure functions.

A target may be cut into N stages on several machines. A *traversal* is one pass through all of them.

DSD's equations 2 to 5 and 9 are here as printed (`PaperPipeline`), in its letters:

    t_0   computing of a decoding step; whether of a stage or of the whole model is not said
    t_1   a link between two nodes, one way
    k     tokens accepted in a round
    gamma draft tokens of a round

Ours say what theirs leave open (docs/papers.md has the differences with numbers):

    tokens of a round   1 + accepted draft tokens      eq. 2 leaves the target's own token out
    a traversal         sum of the stages' times, of the N - 1 links between them, and of the link that brings the
                        verdict back to where drafts are made; t_0 and t_1 have no such link
    verification        one forward of gamma + 1 positions; eq. 4 charges k forwards, eq. 9 one for each position
    drafting            counted; in the paper it takes no time

All times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPipeline:
    """DSD's model of sharded decoding, as printed (section 2)."""

    num_nodes: int  # N
    compute_s: float  # t_0
    link_s: float  # t_1

    @staticmethod
    def advance(num_accepted: float) -> float:
        """Eq. 2: the tokens by which a round advances a sequence. The text in front of it has one more."""
        return num_accepted

    def standard_s(self, num_tokens: float) -> float:
        """Eq. 3: T_std = k (t_0 + (N - 1) t_1), the time of k tokens without drafts."""
        return num_tokens * (self.compute_s + self._links_s)

    def speculative_s(self, num_tokens: float) -> float:
        """Eq. 4: T_DSD = k t_0 + (N - 1) t_1, the time of a round that yields k tokens."""
        return num_tokens * self.compute_s + self._links_s

    def reduction(self, num_tokens: float) -> float:
        """Eq. 5: R_comm = 1 - T_DSD / T_std. The paper calls it a share of communication; it is one of all time."""
        return 1.0 - self.speculative_s(num_tokens) / self.standard_s(num_tokens)

    def speedup_by_time(self, num_tokens: float) -> float:
        """T_std / T_DSD, of equations 3 and 4. It is not equation 9."""
        return self.standard_s(num_tokens) / self.speculative_s(num_tokens)

    def speedup(self, num_tokens: float, num_draft_tokens: int) -> float:
        """Eq. 9: S = (t_0 + (N - 1) t_1) / (t_0 / rho + (N - 1) t_1 / k), with rho = k / (gamma + 1)."""
        rho = num_tokens / (num_draft_tokens + 1)
        return self.standard_s(1) / (self.compute_s / rho + self._links_s / num_tokens)

    @property
    def _links_s(self) -> float:
        return (self.num_nodes - 1) * self.link_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage's forward: of one position, and what each further one adds."""

    one_s: float
    further_s: float = 0.0

    def forward_s(self, num_positions: int) -> float:
        return self.one_s + self.further_s * (num_positions - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A target in stages, as we count its time.

    Args:
        stages: in the order in which a token passes them, at least one.
        hops_s: the links between them, one way each; one fewer than stages.
        return_s: the link from the last stage to where drafts are made; 0 if that is the same machine.
    """

    stages: Sequence[StageTime]
    hops_s: Sequence[float]
    return_s: float

    def __post_init__(self) -> None:
        assert len(self.hops_s) == len(self.stages) - 1, "a link leads from each stage to the next"

    @classmethod
    def even(cls, num_stages: int, stage: StageTime, hop_s: float) -> Pipeline:
        """Equal stages and links, also back; one stage has no link at all."""
        return cls(
            stages=[stage] * num_stages, hops_s=[hop_s] * (num_stages - 1), return_s=hop_s if num_stages > 1 else 0.0
        )

    @property
    def links_s(self) -> float:
        """Seconds of a traversal on links, the way back included."""
        return fsum(self.hops_s) + self.return_s

    def traversal_s(self, num_positions: int) -> float:
        """From the first stage's input to its verdict: all stages and all links, also back."""
        return fsum(each.forward_s(num_positions) for each in self.stages) + self.links_s

    def bottleneck_s(self, num_positions: int) -> float:
        """The slowest stage's time: no two windows follow each other faster."""
        return max(each.forward_s(num_positions) for each in self.stages)

    def round_s(self, num_draft_tokens: int, draft_s: float = 0.0) -> float:
        """A synchronous round: drafting, then one forward of gamma + 1 positions.

        Args:
            draft_s: of all its draft tokens.
        """
        return draft_s + self.traversal_s(num_draft_tokens + 1)

    def speedup(self, tokens_per_round: float, num_draft_tokens: int, draft_s: float = 0.0) -> float:
        """Of synchronous rounds over plain decoding, which takes a traversal of one position for each token.

        Args:
            tokens_per_round: accepted draft tokens and the target's own one.
        """
        return tokens_per_round * self.traversal_s(1) / self.round_s(num_draft_tokens, draft_s)

    def communication_reduction(self, tokens_per_round: float) -> float:
        """The share of the time on links that rounds save for each token: 1 - 1 / tokens_per_round, whatever N is."""
        return 1.0 - 1.0 / tokens_per_round

    def interval_s(self, num_draft_tokens: int, depth: int, draft_s: float = 0.0) -> float:
        """From one verdict to the next while `depth` windows are in flight and none of them is dropped.

        The windows may belong to one sequence or to several. Drafting overlaps with the traversals.
        """
        most_often_s = max(self.bottleneck_s(num_draft_tokens + 1), draft_s)
        return max(most_often_s, self.round_s(num_draft_tokens, draft_s) / depth)

    def tokens_per_s(self, alpha: float, num_draft_tokens: int, depth: int, draft_s: float = 0.0) -> float:
        """Of one sequence with `depth` windows in flight, which follow one another along one chain of draft tokens.

        A window stands on all tokens of those before it, and on the draft's guess of the target's token behind each.
        If one of these is refused, the windows behind it are dropped, and the next one waits for a round from its
        beginning. Depth 1 is synchronous.

        Args:
            alpha: probability that a draft token is accepted, independent of the others; below 1.
        """
        goes_on = alpha ** (num_draft_tokens + 1)
        tokens = expected_tokens(alpha, num_draft_tokens)
        interval_s = self.interval_s(num_draft_tokens, depth, draft_s)
        return tokens / (goes_on * interval_s + (1.0 - goes_on) * self.round_s(num_draft_tokens, draft_s))

    def most_tokens_per_s(self, alpha: float) -> float:
        """The bound of `tokens_per_s` for any length and depth: each refused token costs a traversal at least."""
        return 1.0 / ((1.0 - alpha) * self.traversal_s(1))


def expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Tokens of a round, the target's own included: (1 - alpha^(gamma + 1)) / (1 - alpha), for independent tokens."""
    return (1.0 - alpha ** (num_draft_tokens + 1)) / (1.0 - alpha)
