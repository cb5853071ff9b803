"""Sequences at the hub, as our engine keeps them: tags, and the target's features for a hub that wants them.

A hub whose draft is an EAGLE head wants the target's hidden states. It gets each of them once, and for a tag that is
opened only the last `window` positions (StarSD appendix E.2: only what the next draft needs crosses the wire, once).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from starspec.cache.features import FeatureTail, are_readable, to_bytes
from starspec.client.tag import HubTag
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.ids import RequestKey, Tag
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.speculation.tree import EMPTY_TREE
from starspec.wire.messages import Features, Open, TargetToHub, Verdict, Welcome

MAX_DATA_BYTES: Final = 512 * 1024  # of features in one frame; a frame may have twice as many bytes


class FeatureRequest(NamedTuple):
    """The features that a hub wants."""

    layers: tuple[int, ...] = ()  # hidden states, as Hugging Face counts them; () = none
    window: int = 0  # of this many positions, the last ones

    @classmethod
    def of(cls, welcome: Welcome) -> FeatureRequest:
        return cls(welcome.feature_layers, welcome.feature_window)


class FeatureOutbox:
    """Features of one tag's committed positions, kept as far back as its hub may want them."""

    def __init__(self, request: FeatureRequest) -> None:
        self.are_wanted = bool(request.layers)
        self._window = request.window
        self._tail = FeatureTail(request.window)
        self._sent = 0  # features of positions before this were sent, or the hub does not want them

    def add(self, start: int, features: Tensor) -> None:
        """Add those of positions `start ..`: [T, F].

        No head can use a number that is not finite, or too large. A position with such a number is a hole, and the tail
        begins again behind it. While a hole is the last position, the hub is asked for no draft: it could not make one.
        """
        unreadable = (~are_readable(features)).nonzero().flatten().tolist()
        num_skipped = unreadable[-1] + 1 if unreadable else 0
        if num_skipped < len(features):
            self._tail.add(start + num_skipped, features[num_skipped:])

    def reach(self, num_positions: int) -> bool:
        """Whether nothing is missing before position `num_positions`."""
        return self._tail.stop >= num_positions

    def forget_sent(self) -> None:
        """The tag is opened anew, so the hub has no features of it."""
        self._sent = 0

    def frames(self, tag: Tag, num_tokens: int) -> list[Features]:
        """The features that the hub still needs for a tag with `num_tokens` tokens, in frames that are not too large.

        Effects: these features count as sent from now on.
        """
        first = max(self._sent, self._tail.start, num_tokens - 1 - self._window)
        self._sent = max(self._sent, self._tail.stop)
        if first >= self._tail.stop:
            return []
        features = self._tail.since(first, self._tail.stop)
        size = max(1, MAX_DATA_BYTES // (2 * features.shape[1]))  # positions of one frame
        return [
            Features(tag, first + index * size, len(part), to_bytes(part))
            for index, part in enumerate(torch.split(features, size))
        ]


class SequenceTokens:
    """The tokens of a sequence that its hub goes on behind, as a TokenSource: the committed ones, and those ahead.

    A hub that wants features is told no forced tokens: they have none before they are verified.
    """

    def __init__(self, sequence: TargetSequence, at_hub: SequencesAtHub) -> None:
        self._sequence = sequence
        self._at_hub = at_hub

    @property
    def prompt_len(self) -> int:
        return self._sequence.prompt_len

    def __len__(self) -> int:
        return len(self._sequence.token_ids) + len(self._ahead)

    def token_ids(self, start: int = 0) -> list[int]:
        committed, ahead = self._sequence.token_ids, self._ahead
        if not ahead:
            return committed[start:]
        return [*committed[start:], *ahead[max(0, start - len(committed)) :]]

    @property
    def _ahead(self) -> list[int]:
        return self._sequence.flights.token_ids if self._at_hub.feature_request.layers else self._sequence.ahead


@dataclass(slots=True, eq=False)
class SequenceAtHub:
    """A sequence with its tag and its features. No I/O: the caller sends the returned messages, in order."""

    sequence: TargetSequence
    tag: HubTag
    features: FeatureOutbox

    def want_features(self, request: FeatureRequest) -> None:
        """The hub wants these features, and no others: those that were kept are useless."""
        self.features = FeatureOutbox(request)

    def add_features(self, start: int, features: Tensor) -> None:
        """As `FeatureOutbox.add`."""
        self.features.add(start, features)

    @property
    def is_draftable(self) -> bool:
        """Whether the hub has, or soon gets, all that it needs to draft after the committed tokens."""
        num_wanted = len(self.sequence.token_ids) - 1  # the last token has no features yet
        is_prefilled = self.sequence.state is not SequenceState.PREFILLING
        has_features = num_wanted > 0 and (not is_prefilled or self.features.reach(num_wanted))
        return not self.features.are_wanted or has_features

    @property
    def may_go_ahead(self) -> bool:
        """Whether the hub may be told what is presumed, and be asked for more."""
        is_free = self.tag.session.is_held and not self.tag.is_unanswered
        return is_free and self.tag.draft() == EMPTY_TREE and self.sequence.num_unplanned > 1

    def is_ahead(self, added: RoundOutput) -> bool:
        """Whether the hub was asked, or has answered, for more than a window has added that has just landed."""
        is_told = self.tag.session.is_held and not self.tag.num_unsent
        return bool(self.sequence.flights) or is_told or (added.is_presumed and self.tag.draft() != EMPTY_TREE)

    def stop_if_undraftable(self) -> None:
        """Forget a proposal that was requested during the prefill, if the features for it can never be sent.

        The hub would wait for these features forever.
        """
        if self.tag.is_awaited and not self.is_draftable:
            self.tag.clear()

    def ask(self, wanted: DraftBudget, now: float) -> list[TargetToHub]:
        """Make the message that sends the committed tokens and asks for a draft, and the features that go with it.

        Returns: nothing if `HubTag.ask` makes no message.
        """
        message = self.tag.ask(self.tag.limited(wanted) if self.is_draftable else NO_DRAFT, now)
        if message is None:
            return []
        return self._opened(message) if isinstance(message, Open) else self._reported(message)

    def frames(self) -> list[Features]:
        """As `FeatureOutbox.frames`."""
        return self.features.frames(self.tag.session.tag, len(self.sequence.token_ids))

    def _opened(self, message: Open) -> list[TargetToHub]:
        self.features.forget_sent()
        return [message, *self.frames()]

    def _reported(self, message: Verdict) -> list[TargetToHub]:
        """Order the messages: features of tokens that the hub knows come before the verdict, the others after it."""
        frames = self.frames()
        early = [each for each in frames if each.start < message.base_len]
        return [*early, message, *frames[len(early) :]]


class SequencesAtHub:
    """The sequences that have a tag, and the features that their hub wants."""

    def __init__(self) -> None:
        self.by_tag: dict[HubTag, SequenceAtHub] = {}
        self.by_request: dict[RequestKey, SequenceAtHub] = {}
        self.feature_request = FeatureRequest()  # of the last hub; kept while it is lost, as it may come back

    def __len__(self) -> int:
        return len(self.by_tag)

    def add(self, sequence: TargetSequence, tag: HubTag) -> SequenceAtHub:
        """The sequence gets this tag."""
        at_hub = SequenceAtHub(sequence, tag, FeatureOutbox(self.feature_request))
        self.by_tag[tag] = self.by_request[sequence.key] = at_hub
        return at_hub

    def remove(self, at_hub: SequenceAtHub) -> None:
        """The sequence has ended."""
        del self.by_tag[at_hub.tag]
        del self.by_request[at_hub.sequence.key]

    def find_hub(self, welcome: Welcome | None) -> None:
        """A hub was found, with this answer to the handshake. The kept features are useless if it wants others."""
        if welcome is None or FeatureRequest.of(welcome) == self.feature_request:
            return
        self.feature_request = FeatureRequest.of(welcome)
        for at_hub in self.by_tag.values():
            at_hub.want_features(self.feature_request)
