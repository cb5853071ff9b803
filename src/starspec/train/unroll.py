"""Training-time test (EAGLE-3): run the head as in drafting, with its own output as input.

Anchor a is a slot whose features are the target's; its chain begins there. Its step k stands in slot a + k: it reads
token a + 1 + k and h of step k - 1, and says token a + 2 + k. Seen by step 2 of anchor 3:

    slot        0  1  2  3  4  5
    step 0      x  x  x  x            every slot up to the anchor, with the target's features
    step 1                  x         the chain itself
    step 2                     x

The input tokens are those of the text. So the prediction of a step counts only if the steps before it were right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.train.head import TrainedHead


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of texts, padded at their ends: T tokens of prompt and answer, A tokens of the answer."""

    token_ids: Tensor  # [B, T] int64
    features: Tensor  # [B, T, F]
    last_hidden: Tensor  # [B, A, C]: the input of the target's LM head at the positions of the answer
    prompt_lengths: Tensor  # [B]
    answer_lengths: Tensor  # [B]
    has_end: Tensor  # [B] bool: whether the answer's last token ends the text

    def to(self, device: torch.device | str) -> Batch:
        names = ("token_ids", "features", "last_hidden", "prompt_lengths", "answer_lengths", "has_end")
        return Batch(*(getattr(self, name).to(device) for name in names))

    @property
    def num_anchors(self) -> int:
        return self.last_hidden.shape[1]

    @property
    def anchors(self) -> Tensor:
        """[B, A]: anchor m is the slot before the answer's token m; it predicts token m + 1."""
        return self.prompt_lengths[:, None] - 1 + torch.arange(self.num_anchors, device=self.token_ids.device)

    def counts(self, step: int) -> Tensor:
        """[B, A]: whether the answer has a token m + step."""
        ends = self.answer_lengths - self.has_end.long()
        return torch.arange(self.num_anchors, device=ends.device) + step < ends[:, None]


def unroll(head: TrainedHead, batch: Batch, embedding: Tensor, num_steps: int) -> list[Tensor]:
    """Run `num_steps` steps from every anchor at once.

    Args:
        embedding: the target's, [V, C].
    Returns: h of each step, [B, A, C].
    """
    layer, anchors = head.layer, batch.anchors
    num_slots = batch.token_ids.shape[1] - 1
    slots = torch.arange(num_slots, device=anchors.device).expand(len(anchors), -1)
    features = head.join(batch.features[:, :num_slots])
    x, residual = head.read(_embed(embedding, batch.token_ids[:, 1:]), features)
    keys, values = layer.self_attn.keys_values(x, slots)
    indices = anchors.clamp(max=num_slots - 1)[..., None]
    x, residual = (each.gather(1, indices.expand(-1, -1, each.shape[-1])) for each in (x, residual))
    is_hidden = slots[:, None] > anchors[..., None]  # [B, A, T - 1]
    own = list[tuple[Tensor, Tensor]]()
    spoken = list[Tensor]()
    for step in range(num_steps):
        if step:
            token_ids = batch.token_ids.gather(1, (anchors + 1 + step).clamp(max=num_slots))
            x, residual = head.read(_embed(embedding, token_ids), spoken[-1])
            own.append(layer.self_attn.keys_values(x, anchors + step))
        attended = attend(layer.self_attn.queries(x, anchors + step), keys, values, is_hidden, own)
        spoken.append(layer.after_attention(residual, attended))
    return spoken


def attend(
    queries: Tensor,  # [B, Hkv, G, A, D]
    keys: Tensor,  # [B, Hkv, T, D]: of step 0
    values: Tensor,
    is_hidden: Tensor,  # [B, A, T]
    own: list[tuple[Tensor, Tensor]],  # of later steps: key and value of the same anchor, [B, Hkv, A, D]
) -> Tensor:
    """Softmax attention over a shared past and each anchor's own chain. Returns: [B, Hkv, G, A, D]."""
    scale = queries.shape[-1] ** -0.5
    queries = queries * scale
    past = (queries.flatten(2, 3) @ keys.transpose(-1, -2)).view(*queries.shape[:4], -1)
    scores = [past.masked_fill(is_hidden[:, None, None], float("-inf"))]
    scores += [(queries * key[:, :, None]).sum(-1, keepdim=True) for key, _ in own]
    weights = torch.cat(scores, -1).float().softmax(-1).to(values.dtype)
    num_past = keys.shape[2]
    attended: Tensor = (weights[..., :num_past].flatten(2, 3) @ values).view_as(queries)
    for index, (_, value) in enumerate(own, start=num_past):
        attended = attended + weights[..., index, None] * value[:, :, None]
    return attended


def _embed(embedding: Tensor, token_ids: Tensor) -> Tensor:
    return torch.nn.functional.embedding(token_ids, embedding)
