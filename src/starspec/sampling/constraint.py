"""The seam between the law of a token and the grammar of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """Where one answer is in its grammar."""

    def allowed(self, path: Sequence[int]) -> Tensor:
        """The tokens that may follow the committed ones and these: bool [V], with an entry that is True.

        End tokens are among them where the grammar may end.
        """
        ...
