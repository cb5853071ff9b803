"""One attention call of a forward, as it is planned: which tokens, which slots, and in which of five forms.

* **by token**: every token is a batch entry, and the heads that share a key head are its query rows. So a token's
  arithmetic has one shape, whoever is beside it; keys are read once a token.
* **by run**: a batch entry a key head; the tokens, and the heads that share it, are the query rows. Keys are read once.
* **by chunk** (prompts): causal, a batch entry a head, query rows in long blocks.
* **by rows**: runs of several cache rows, as long as each other, in one call; masks hide where a row has fewer slots
  than another. Keys of rows that do not lie side by side are copied (on accelerators).
* **by branches**: branches of a row's tree, as long as each other, in one call; each has its own copy of the prefix,
  with its path behind it.

Else no keys are copied: heads of one group share them by stride 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from torch import Tensor

# Below four query rows MKL picks its kernel by the alignment of a thread's buffer, and bits follow the thread.
MIN_QUERY_ROWS: Final = 4


def num_query_rows(group: int) -> int:
    """M: query rows of a token whose G heads share a key head.

    Even, so that what a long run leaves over for the kernel's last block of rows is seldom too small.
    """
    return max(MIN_QUERY_ROWS, group + group % 2)


class Form(Enum):
    """What of a call is batch entries, and what is query rows."""

    BY_TOKEN = auto()
    BY_RUN = auto()
    BY_CHUNK = auto()
    BY_ROWS = auto()
    BY_BRANCHES = auto()


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree that lies behind the prefix, in order, while its tokens attend."""

    prefix_len: int
    num_tokens: int  # of the segment, in the slots behind the prefix
    path: Tensor  # [P] of them, ancestors first


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward: new tokens `first..last` of the packed batch against one cache row, or several.

    M query rows a token: its heads that share a key head, and padding (`num_query_rows`).
    """

    rows: tuple[int, ...]  # N if by rows, each with T tokens; else one
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of a row that are read
    form: Form
    mask: Tensor | None
    """On the CPU. Additive; by token [T, 1, 1, S], by run [1, 1, T M, S], by chunk [T, S] or None = causal, by rows and
    by branches [N, 1, T M, S]"""
    branches: tuple[Branch, ...] = ()
    """For tokens whose ancestors are not in the slots before them: one, laid out in the cache; N by branches, each with
    T tokens"""

    @property
    def row(self) -> int:
        """The only one."""
        [row] = self.rows
        return row

    @property
    def laid_out(self) -> Branch | None:
        """The branch that is laid behind the prefix in the cache itself while the call attends."""
        return self.branches[0] if self.branches and self.form is not Form.BY_BRANCHES else None
