"""Which targets the hub accepts: a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.draft_methods import DraftMethod
from starspec.ids import LinkId
from starspec.wire.messages import PROTOCOL_VERSION, Hello, Refused, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTerms:
    """The hidden states that a draft takes from its targets."""

    layers: tuple[int, ...]  # hidden states, as Hugging Face counts them
    hidden_size: int
    window: int  # positions


@dataclass(frozen=True, slots=True, kw_only=True)
class HubTerms:
    """What a hub offers, and which targets it accepts."""

    draft_name: str
    vocab_fingerprint: str | None  # None: any vocabulary will do
    max_targets: int
    max_draft_tokens: int
    lease_s: float
    features: FeatureTerms | None = None  # None: the draft takes token ids alone
    is_plain_speed_wanted: bool = False  # targets are to report their speed without drafts
    method: DraftMethod = "draft_model"


def admit(terms: HubTerms, hello: Hello, num_targets: int) -> Welcome | Refused:
    """Answer a handshake.

    Args:
        num_targets: targets served now, the asking one not among them.
    Returns: a Welcome whose `link_id` and `port` the transport fills in, or a refusal that says what to change.
    """
    return (
        _refuse_version(hello)
        or _refuse_vocabulary(terms, hello)
        or _refuse_features(terms, hello)
        or _refuse_full(terms, num_targets)
        or _welcome(terms)
    )


def _welcome(terms: HubTerms) -> Welcome:
    layers, window = (terms.features.layers, terms.features.window) if terms.features else ((), 0)
    return Welcome(
        PROTOCOL_VERSION,
        LinkId(""),
        0,
        terms.draft_name,
        terms.max_draft_tokens,
        terms.lease_s,
        layers,
        window,
        terms.is_plain_speed_wanted,
        terms.method,
    )


def _refuse_version(hello: Hello) -> Refused | None:
    if hello.protocol_version == PROTOCOL_VERSION:
        return None
    return Refused.for_version(hello.protocol_version)


def _refuse_vocabulary(terms: HubTerms, hello: Hello) -> Refused | None:
    # The sizes may differ: embeddings are padded, and the fingerprint tells whether the tokens are the same.
    if terms.vocab_fingerprint in (None, hello.vocab_fingerprint):
        return None
    return Refused("vocabulary", f"the draft {terms.draft_name} does not share the target's tokenizer")


def _refuse_features(terms: HubTerms, hello: Hello) -> Refused | None:
    wanted = terms.features
    if wanted is None or (hello.hidden_size == wanted.hidden_size and max(wanted.layers) <= hello.num_layers):
        return None
    layers = ", ".join(str(layer) for layer in wanted.layers)
    return Refused(
        "features",
        f"the draft {terms.draft_name} takes hidden states {layers} of {wanted.hidden_size} numbers; the target's are "
        f"0 to {hello.num_layers} of {hello.hidden_size}: use the head that was trained for this target",
    )


def _refuse_full(terms: HubTerms, num_targets: int) -> Refused | None:
    if num_targets < terms.max_targets:
        return None
    return Refused("full", f"all {terms.max_targets} places for targets are taken", retry_after_s=terms.lease_s)
