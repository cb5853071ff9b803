"""What the gateway says of itself: the model's public name and a fingerprint of what answers."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

from starspec import __version__
from starspec.config import GatewayConfig
from starspec.models.loading.locate import folder_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Constant while the gateway runs."""

    model: str  # as /v1/models lists it
    fingerprint: str  # `starspec-<version>-<hash8>`: changes with version, model and its defaults
    created_s: int = field(default_factory=lambda: int(time.time()))


def identity_of(config: GatewayConfig, vocabulary: str, defaults: str) -> Identity:
    """
    Args:
        vocabulary: fingerprint of the tokenizer.
        defaults: the generation defaults, in words.
    """
    name = config.served_model_name or folder_name(config.model)
    parts = "\0".join([__version__, name, vocabulary, defaults])
    digest = hashlib.sha256(parts.encode()).hexdigest()
    return Identity(model=name, fingerprint=f"starspec-{__version__}-{digest[:8]}")
