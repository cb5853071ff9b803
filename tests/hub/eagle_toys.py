"""A tiny EAGLE head with random weights, a target that has features for it, and a hub in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
from hub_toys import GREEDY, VOCAB_SIZE, ReferenceTree, ToyStar, ToyTag, paths_of, reference_tree
from slow_head import slow_chain
from torch import Tensor

from starspec.cache.features import to_bytes
from starspec.config import HubConfig, ModelConfig, SampleMethod
from starspec.hub.eagle import EagleDrafter
from starspec.hub.hub import DraftHub
from starspec.ids import LinkId, TargetId
from starspec.models.heads.head import EagleHead, HeadOutput
from starspec.models.heads.spec import HeadSpec, HeadWeights
from starspec.models.heads.tensors import tensor_shapes
from starspec.models.linear.dense import pack_dense
from starspec.models.runner import Segment
from starspec.sampling.spec import SamplingSpec
from starspec.train.head import TrainedHead
from starspec.wire.messages import Features, Open, Proposal, TreeShape, Verdict
from starspec.wire.transports.faulty_channel import VirtualClock

HeadMethod = Literal["eagle", "eagle3"]
MAX_LEN = 40
HIDDEN_SIZE = 16
DRAFT_TOKEN_IDS = torch.tensor([each for each in range(VOCAB_SIZE) if each % 4 != 1])  # what the eagle3 head can say
FEATURE_SIZES: dict[HeadMethod, int] = {"eagle": HIDDEN_SIZE, "eagle3": 2 * HIDDEN_SIZE}


class ToyHead(EagleHead):
    """Remembers what it was asked to forward."""

    def __init__(self, weights: HeadWeights, num_rows: int) -> None:
        config = ModelConfig(model="tiny", dtype="float32", num_rows=num_rows, numerics="fast")
        super().__init__(weights, config, "tiny", pack_dense, pack_dense)
        self.draft_steps: list[list[Segment]] = []
        self.is_broken = False

    def forward(self, segments: Sequence[Segment], hidden: Tensor) -> HeadOutput:
        if self.is_broken:
            raise RuntimeError("the accelerator is on fire")
        self.draft_steps.append(list(segments))
        return super().forward(segments, hidden)

    @property
    def num_read(self) -> int:
        """Tokens forwarded so far."""
        return sum(segment.num_new for draft_step in self.draft_steps for segment in draft_step)


@cache
def make_weights(method: HeadMethod) -> HeadWeights:
    is_eagle3 = method == "eagle3"
    spec = HeadSpec(
        method=method,
        hidden_size=HIDDEN_SIZE,
        target_hidden_size=HIDDEN_SIZE,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB_SIZE,
        draft_vocab_size=len(DRAFT_TOKEN_IDS) if is_eagle3 else VOCAB_SIZE,
        feature_layers=(0, 2) if is_eagle3 else (2,),
        max_position_embeddings=MAX_LEN,
    )
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.4
        for name, shape in tensor_shapes(spec).items()
        if name != "fc.bias"
    }
    return HeadWeights(spec, tensors, DRAFT_TOKEN_IDS if is_eagle3 else None)


def make_head(method: HeadMethod = "eagle3", num_rows: int = 4) -> ToyHead:
    return ToyHead(make_weights(method), num_rows)


@cache
def features_of(size: int, identity: int) -> Tensor:
    """What the target thinks at each position of a sequence: [2 * MAX_LEN, size]."""
    generator = torch.Generator().manual_seed(1 + identity)
    return torch.randn(2 * MAX_LEN, size, generator=generator).bfloat16()


@cache
def plain_head(method: HeadMethod) -> TrainedHead:
    """The same weights, as the plain module that is trained."""
    weights = make_weights(method)
    head = TrainedHead(weights.spec)
    state = {name: weights.tensors.get(name, torch.zeros_like(tensor)) for name, tensor in head.state_dict().items()}
    head.load_state_dict(state)
    return head


@torch.no_grad()
def slow_logits(method: HeadMethod, features: Tensor, token_ids: list[int], max_nodes: int) -> Tensor:
    """The head's logits [V] after `token_ids`, read one by one, of which the last so many are its own guesses."""
    weights, head = make_weights(method), plain_head(method)
    anchor = len(token_ids) - max_nodes - 2  # the last slot that is read with a feature of the target's
    h = slow_chain(head, features.float(), token_ids, anchor, max_nodes + 1, weights.tensors["embed_tokens.weight"])
    spoken = weights.tensors["lm_head.weight"] @ head.spoken(h[-1])
    if weights.draft_token_ids is None:
        return spoken
    return torch.full((VOCAB_SIZE,), float("-inf")).index_copy(0, weights.draft_token_ids, spoken)


class EagleTag(ToyTag):
    """One tag as its target sees it. `identity` tells sequences apart whose targets gave them the same tag."""

    def __init__(
        self,
        tag: int,
        prompt: Sequence[int],
        sampling: SamplingSpec = GREEDY,
        method: SampleMethod = "coupled",
        *,
        head_method: HeadMethod = "eagle3",
        identity: int | None = None,
    ) -> None:
        super().__init__(tag, prompt, sampling, method)
        self.head_method: HeadMethod = head_method
        self.truth = features_of(FEATURE_SIZES[head_method], tag if identity is None else identity)

    def features(self, start: int, stop: int) -> Features:
        """Those of positions `start..stop`."""
        return Features(self.session.tag, start, stop - start, to_bytes(self.truth[start:stop]))

    def past(self, start: int = 0) -> Features:
        """All that the target knows: of the last token there are no features yet."""
        return self.features(start, len(self.token_ids) - 1)

    def told(self, verdict: Verdict) -> tuple[Features, Verdict]:
        """A verdict as it travels: what the target thought of the tokens before the last is in front of it."""
        stop = verdict.base_len - 1 + len(verdict.token_ids)
        return self.features(verdict.base_len - 1, stop), verdict

    def plain_tree(self) -> ReferenceTree:
        """What is proposed, by a head that is run over one path at a time and keeps nothing."""
        num_known = len(self.token_ids)
        return reference_tree(
            self.token_ids,
            self.prompt_len,
            self.sampling,
            self.budget,
            MAX_LEN,
            self.method,
            lambda known: slow_logits(self.head_method, self.truth, known, len(known) - num_known),
        )

    def alone(self, first: int = 0, max_draft_tokens: int = 8) -> set[tuple[int, ...]]:
        """What a hub proposes that knows of nothing but these tokens and their features from `first` on."""
        head = _head_for_one(self.head_method)
        star = EagleStar("a", head=head, max_draft_tokens=max_draft_tokens)
        budget = self.budget
        tag = EagleTag(1, self.token_ids, self.sampling, self.method, head_method=self.head_method)
        tag.truth, tag.prompt_len = self.truth, self.prompt_len
        opened = Open(
            tag.session.tag,
            tag.session.next_epoch,
            list(self.token_ids),
            self.prompt_len,
            self.sampling,
            budget.num_draft_tokens,
            TreeShape.of(budget),
            self.method,
        )
        star.send("a", opened, tag.past(first))
        proposals = [message for _, message in star.drain() if isinstance(message, Proposal)]
        star.hub.leave(LinkId("a"), star.clock())
        (proposal,) = proposals
        return paths_of(proposal)


@cache
def _head_for_one(method: HeadMethod) -> ToyHead:
    return make_head(method, num_rows=1)


class EagleStar(ToyStar):
    """A hub with a head; targets join under one-letter names."""

    def __init__(
        self, *targets: str, head: ToyHead | None = None, target_vocab_size: int = VOCAB_SIZE, **limits: int
    ) -> None:
        self.clock = VirtualClock()
        self.head = head or make_head()
        self.head.draft_steps.clear()
        self.drafter = EagleDrafter(self.head)
        sizes = {"max_tags": 16, "max_draft_tokens": 8, "prefill_chunk": 64, **limits}
        window = sizes.pop("feature_window", MAX_LEN)
        self.hub = DraftHub(self.drafter, self.clock, HubConfig(**sizes), feature_window=window)
        for target in targets:
            self.hub.join(LinkId(target), TargetId(target), target_vocab_size)

    def first_position(self, target: str, tag: EagleTag) -> int | None:
        """The position whose feature is in the tag's slot 0; None if it has no row."""
        sequence = next(each for key, each in self.hub._sequences.items() if key == (target, tag.session.tag))
        return None if sequence.row is None else self.drafter._first[sequence.row]

    @property
    def num_leased(self) -> int:
        return len(self.head.cache.rows.leased)


def propose(star: EagleStar, target: str, tag: EagleTag) -> Proposal:
    """Let the hub work until it has answered this tag."""
    replies = [message for name, message in star.drain() if name == target]
    proposals = [message for message in replies if isinstance(message, Proposal) and message.tag == tag.session.tag]
    assert tag.receive(proposals[-1])
    return proposals[-1]
