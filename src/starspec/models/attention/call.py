"""One planned attention call of a forward: which tokens, which slots, and in which of five forms.

* **by token**: every token is a batch entry, and the heads that share a key head are its query rows. So a token's
  arithmetic always has the same shape, whatever else is in the batch. Keys are read once for each token.
* **by run**: every key head is a batch entry. The tokens, and the heads that share the key head, are the query rows.
  Keys are read once.
* **by chunk** (prefill): causal; every head is a batch entry, and query rows come in long blocks.
* **by rows**: runs of several cache rows, with equally many tokens, in one call. Masks hide the slots that a shorter
  row does not have. Keys of rows that are not neighbours are copied (on accelerators).
* **by branches**: branches of one row's tree, with equally many tokens, in one call. Each has its own copy of the
  prefix, with its path behind it.

The other forms copy no keys: heads of one group share them by stride 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from torch import Tensor

# With fewer query rows, MKL chooses its kernel by the alignment of a thread's buffer, so the bits would depend on the
# thread.
MIN_QUERY_ROWS: Final = 4


def num_query_rows(group: int) -> int:
    """M: query rows for each token if G heads share a key head.

    Even, so that a long run rarely leaves too few rows for the kernel's last block.
    """
    return max(MIN_QUERY_ROWS, group + group % 2)


class Form(Enum):
    """Which dimensions of a call are batch entries, and which are query rows."""

    BY_TOKEN = auto()
    BY_RUN = auto()
    BY_CHUNK = auto()
    BY_ROWS = auto()
    BY_BRANCHES = auto()


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree that lies in order behind the prefix while its tokens attend."""

    prefix_len: int
    num_tokens: int  # tokens of the segment, in the slots behind the prefix
    path: Tensor  # [P] indices of these tokens, ancestors first


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call: new tokens `first..last` of the packed batch attend to one cache row, or to several.

    M is the number of query rows for each token: the heads that share a key head, and padding (`num_query_rows`).
    """

    rows: tuple[int, ...]  # N rows with T tokens each if by rows, otherwise one
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of a row that are read
    form: Form
    mask: Tensor | None
    """Additive, on the CPU. By token [T, 1, 1, S]; by run [1, 1, T M, S]; by chunk [T, S], or None = causal; by rows
    and by branches [N, 1, T M, S]."""
    branches: tuple[Branch, ...] = ()
    """For tokens whose ancestors are not in the slots before them: one branch, laid out in the cache; or, by branches,
    N branches of T tokens each."""

    @property
    def row(self) -> int:
        """The cache row of a call that has only one."""
        [row] = self.rows
        return row

    @property
    def laid_out(self) -> Branch | None:
        """The branch that is laid out behind the prefix in the cache itself while the call attends."""
        return self.branches[0] if self.branches and self.form is not Form.BY_BRANCHES else None
