"""A target and its draft, as measurements are told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starspec.config import Dtype, ModelConfig, Numerics, Quantization, SpeculativeConfig
from starspec.draft_methods import DraftMethod
from starspec.models.heads.resolve import resolve_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """What is measured."""

    target: str
    draft: str
    quantization: Quantization  # of the draft
    dtype: Dtype
    method: DraftMethod = "draft_model"  # as in a speculative config: the files of most EAGLE heads name their method
    device: str = "cpu"
    numerics: Numerics = "invariant"
    num_threads: int | None = None  # of a forward; None = torch's choice
    feature_layers: tuple[int, ...] | None = None  # as in a speculative config
    max_model_len: int = 1024

    @property
    def names(self) -> dict[str, str]:
        """For the provenance."""
        return {"target": self.target, "draft": self.draft}

    @property
    def has_head(self) -> bool:
        """Whether the draft is an EAGLE head."""
        return resolve_draft(self.speculative()).head is not None

    def target_config(self, num_rows: int = 1) -> ModelConfig:
        """The target with so many cache rows."""
        return ModelConfig(
            model=self.target,
            dtype=self.dtype,
            device=self.device,
            numerics=self.numerics,
            num_rows=num_rows,
            max_model_len=self.max_model_len,
            num_threads=self.num_threads,
        )

    def speculative(self, **settings: Any) -> SpeculativeConfig:
        """The draft.

        Args:
            settings: other fields of the config.
        """
        given: dict[str, Any] = {
            "method": self.method,
            "model": self.draft,
            "quantization": self.quantization,
            "feature_layers": self.feature_layers,
            "max_model_len": self.max_model_len,
        }
        return SpeculativeConfig(**(given | settings))
