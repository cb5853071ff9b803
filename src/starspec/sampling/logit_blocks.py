"""Scaled logits of a whole vocabulary in the blocks in which noise is made. For most blocks one number is enough."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf, isfinite

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.sampling.argmax import widened
from starspec.sampling.filters import MASS_BITS, Support, mass_of
from starspec.sampling.noise import BLOCK, block_gumbel, block_noise

# blocks that a draw looks into first; unless the distribution is flat, these hold every possible winner
FIRST_BLOCKS = 32
BOUND_SLACK = 1e-9  # a library's logarithm can decrease by one last bit where its argument increases
MAX_TOP_K = 512  # for a larger k, looking at the maximum of each block saves nothing
LIKELY = -9.0  # a scaled logit; a token there has 1/8000 of the likeliest token's mass
# where float32 can divide by a temperature: beyond, it takes some for 0 and others for infinity, and 0/0 is no number
LEAST_ROUNDED, MOST_ROUNDED = 1e-30, 1e30
MASS_SLACK = 1e-4  # relative; a sum of float32 exponentials is off by at most a tenth of this


class LogitBlocks:
    """Computes `support` and draws over a whole vocabulary, if possible by looking at few of its tokens.

    Args:
        logits: [V], any float dtype and device; not changed.
        largest: the largest logit, finite.
        temperature: above 0.
    """

    def __init__(self, logits: Tensor, largest: float = 0.0, temperature: float = 1.0) -> None:
        self._logits, self._largest, self._temperature = logits, largest, temperature
        missing = -len(logits) % BLOCK
        self._values = (F.pad(logits, (0, missing), value=-inf) if missing else logits).view(-1, BLOCK)
        # [blocks] float64, the largest scaled logit of each block
        self._tops = self._scale(widened(self._values).amax(1))

    def all(self) -> Tensor:
        """Scaled logits of all tokens, [V] float64."""
        return self._scale(self._logits)

    def down_to(self, floor: float) -> Support:
        """Tokens with scaled logits of at least `floor`, which is finite."""
        blocks = (self._tops >= floor).nonzero().squeeze(1)
        scaled = self._at(blocks).view(-1)
        inside = (scaled >= floor).nonzero().squeeze(1)
        token_ids = blocks.index_select(0, inside // BLOCK) * BLOCK + inside % BLOCK
        return Support(token_ids, scaled.index_select(0, inside))

    def top_k(self, num: int) -> Support | None:
        """The `num` largest tokens and all that tie with the last of them.

        Apart from ties, these tokens are in the `num` blocks with the largest maxima.

        Returns: None if only a search of all tokens can tell.
        """
        if num > min(MAX_TOP_K, len(self._logits)):
            return None
        likely = self._tops.topk(min(num, len(self._tops))).indices
        floor = float(self._at(likely).view(-1).topk(num).values[-1])
        return self.down_to(floor) if isfinite(floor) else None

    def nucleus(self, top_p: float) -> Support | None:
        """The fewest most likely tokens whose mass reaches `top_p`; None if only an exact sum over all tokens can tell.

        A sum of float32 exponentials gives a lower and an upper bound of the required mass. Usually the same token
        reaches both.
        """
        if not LEAST_ROUNDED <= self._temperature <= MOST_ROUNDED:
            return None
        likely = self.down_to(LIKELY)
        order = likely.scaled.sort(descending=True, stable=True).indices
        reached = mass_of(likely.scaled)[order].cumsum(0)
        total = float(widened(self._logits).sub(self._largest).float().div_(self._temperature).exp_().sum())
        bounds = [Fraction(top_p) * Fraction(total * slack) for slack in (1.0 - MASS_SLACK, 1.0 + MASS_SLACK)]
        needed = reached.new_tensor([ceil(bound * 2**MASS_BITS) for bound in bounds])
        last, last_at_most = torch.searchsorted(reached, needed).tolist()
        return likely.at(order[: last + 1].sort().values) if last == last_at_most < len(order) else None

    def draw(self, key: int, floor: float = -inf) -> int:
        """The token with the largest scaled logit + Gumbel noise.

        No token of a block exceeds the block's largest logit, and none has more noise than the block's least
        exponential gives. So for nearly all blocks these two numbers prove that no token of theirs can win.

        Args:
            key: the noise's `stream_key`.
            floor: tokens with scaled logits below it are excluded.
        """
        blocks = torch.arange(len(self._tops), device=self._tops.device)
        shared = block_noise(key, blocks)
        bounds = self._tops.sub(shared.least.log())

        def best_of(chosen: Tensor) -> tuple[int, float]:
            scaled = self._at(chosen)
            perturbed = block_gumbel(shared.at(chosen), key, chosen).add_(scaled).masked_fill_(scaled < floor, -inf)
            best = int(perturbed.argmax())
            return int(chosen[best // BLOCK]) * BLOCK + best % BLOCK, float(perturbed.view(-1)[best])

        likely = bounds.topk(min(FIRST_BLOCKS, len(bounds)))
        token_id, to_beat = best_of(likely.indices.sort().values)
        if float(likely.values[-1]) < to_beat - BOUND_SLACK:
            return token_id
        return best_of((bounds >= to_beat - BOUND_SLACK).nonzero().squeeze(1))[0]

    def _at(self, blocks: Tensor) -> Tensor:
        """Scaled logits of these blocks, [C, BLOCK]; -inf behind the last token of the vocabulary."""
        return self._scale(self._values.index_select(0, blocks))

    def _scale(self, logits: Tensor) -> Tensor:
        return logits.to(torch.float64).sub(self._largest).div_(self._temperature)
