"""A target and its draft: the options of commands that measure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from starspec.config import FIXED_LENGTH, Dtype, ModelConfig, Numerics, Quantization, SpeculativeConfig
from starspec.config.checks import options_of
from starspec.config.option import A_MODEL, MODELS, Option
from starspec.models.loading.checks import check_settings, find_pair
from starspec.models.loading.locate import is_synthetic
from starspec.models.loading.tokenizer import compare_vocabularies
from starspec.models.resolve import resolve_draft
from starspec.models.synthetic.tokenizer import synthetic_vocabulary

MODEL_OPTIONS = options_of(ModelConfig)
ModelMethod = Literal["draft_model", "eagle", "eagle3"]  # the draft methods that have a model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """What is measured."""

    target: Annotated[str, MODEL_OPTIONS["model"]]
    draft: Annotated[
        str,
        Option(
            f"Draft model: {A_MODEL}; or an EAGLE head's folder or hub id.", MODELS, flags=("--draft", "--spec-model")
        ),
    ]
    quantization: Annotated[
        Quantization, Option("Quantization of the draft's weights.", MODELS, flags=("--draft-quantization",))
    ] = "int4"
    method: Annotated[
        ModelMethod,
        Option(
            "What the draft is, where its config.json does not say that it is an EAGLE head.",
            MODELS,
            flags=("--spec-method",),
        ),
    ] = "draft_model"
    dtype: Annotated[Dtype, MODEL_OPTIONS["dtype"]] = "bfloat16"
    device: Annotated[str, MODEL_OPTIONS["device"]] = "cpu"
    numerics: Annotated[Numerics, MODEL_OPTIONS["numerics"]] = "invariant"
    num_threads: Annotated[int | None, MODEL_OPTIONS["num_threads"]] = None
    feature_layers: Annotated[
        tuple[int, ...] | None,
        Option(
            "Hidden states that an EAGLE head uses, as 2,15,27.",
            MODELS,
            least=0,
            shown="as the head's files say",
            form="numbers",
        ),
    ] = None
    max_model_len: int = 1024

    @property
    def names(self) -> dict[str, str]:
        """For the provenance."""
        return {"target": self.target, "draft": self.draft}

    @property
    def has_head(self) -> bool:
        """Whether the draft is an EAGLE head."""
        return resolve_draft(self.speculative()).head is not None

    def find(self) -> None:
        """Find the models, before torch is imported. Raises: as find_pair and check_settings."""
        find_pair(self.target or None, self.draft or None)
        if is_synthetic(self.target) and is_synthetic(self.draft):
            compare_vocabularies(synthetic_vocabulary(self.target), synthetic_vocabulary(self.draft))
        target = replace(self.target_config(), max_model_len=None)  # each measurement has its own
        draft = self.speculative(max_model_len=None).draft_model(target) if self.draft else None
        check_settings(target if self.target else None, draft)

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
        """The draft. Lengths are fixed, so that what is compared has the same ones, unless the settings say otherwise.

        Args:
            settings: other fields of the config.
        """
        given: dict[str, Any] = {
            "length": FIXED_LENGTH,
            "method": self.method,
            "model": self.draft,
            "quantization": self.quantization,
            "feature_layers": self.feature_layers,
            "max_model_len": self.max_model_len,
        }
        return SpeculativeConfig(**(given | settings))
