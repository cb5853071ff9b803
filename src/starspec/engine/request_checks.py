"""Which requests a target can never run, and why."""

from __future__ import annotations

from collections.abc import Collection

from starspec.config import Policy, TargetConfig, is_suited
from starspec.draft_methods import DRAFT_METHODS, DraftMethod
from starspec.errors import ContextTooLong, RequestError
from starspec.models.runner import ModelInfo
from starspec.windows.batching import PARTS
from starspec.wire.messages import DraftToVerify, RequestSpec

MAX_SCORED_CHUNK = 2048  # tokens; the log-probabilities of a chunk are one message


def check_request(spec: RequestSpec, info: ModelInfo, config: TargetConfig, policies: Collection[Policy]) -> None:
    """Check everything that needs no grammar to be compiled.

    Args:
        info: of the target's model.
        policies: length policies that a request may ask for.
    Raises: RequestError, naming the parameter.
    """
    prompt = spec.prompt_token_ids
    if not prompt:
        raise RequestError("the prompt is empty; send at least one token", "prompt")
    if len(prompt) >= info.max_model_len:
        raise ContextTooLong(
            f"the prompt has {len(prompt)} tokens, and this model's context holds {info.max_model_len} "
            "with at least one new token",
            "prompt",
        )
    if spec.prompt_logprobs is not None and config.prefill_chunk > MAX_SCORED_CHUNK:
        raise RequestError(
            f"a target gives log-probabilities of prompts with --prefill-chunk up to {MAX_SCORED_CHUNK} only",
            "prompt_logprobs",
        )
    if not all(0 <= token_id < info.vocab_size for token_id in prompt):
        raise RequestError(f"prompt token ids must be 0 to {info.vocab_size - 1}", "prompt")
    if spec.relaxed_tau > 0.0 and not config.allow_relaxed:
        raise RequestError(
            "this target verifies strictly: start it with --allow-relaxed, or leave speculative.relaxed out",
            "speculative.relaxed",
        )
    if spec.length_policy is not None and spec.length_policy not in policies:
        raise RequestError(
            f"length policy '{spec.length_policy}' does not fit this target's drafts: choose one of"
            f" {', '.join(policies)}",
            "speculative.length.policy",
        )
    if len(spec.prediction or ()) > info.max_model_len:
        raise RequestError(f"a prediction has at most {info.max_model_len} tokens here", "prediction")
    if not all(token_id < info.vocab_size for token_id in spec.prediction or ()):
        raise RequestError(f"token ids of a prediction must be 0 to {info.vocab_size - 1}", "prediction")
    if spec.draft is not None:
        _check_draft(spec.draft, info, config)
    if config.pipe.stages and spec.prompt_logprobs is not None:
        raise RequestError("a model in stages gives no log-probabilities of prompts: leave it out", "prompt_logprobs")
    if not all(0 <= token_id < info.vocab_size for token_id in spec.sampling.logit_bias):
        raise RequestError(f"logit_bias token ids must be 0 to {info.vocab_size - 1}", "logit_bias")


def check_against_hub(spec: RequestSpec, policies: Collection[Policy], method: DraftMethod | None) -> None:
    """Check that the hub's drafts bring what the request asks of them, as `starspec up` checks what it is told.

    Args:
        policies: those that the target offers; the error names the ones that the hub's drafts suit.
        method: how the hub drafts; None = not known, and then everything fits.
    Raises: RequestError, naming the parameter.
    """
    if method is None or DRAFT_METHODS[method].knows_probabilities:
        return
    why = f"needs a draft that knows probabilities, and this target's hub drafts by method '{method}'"
    if spec.length_policy is not None and not is_suited(spec.length_policy, method):
        suited = ", ".join(each for each in policies if is_suited(each, method))
        raise RequestError(
            f"length policy '{spec.length_policy}' {why}: choose one of {suited}", "speculative.length.policy"
        )
    if spec.relaxed_tau > 0.0:
        raise RequestError(f"relaxed verification {why}: leave speculative.relaxed out", "speculative.relaxed")


def _check_draft(draft: DraftToVerify, info: ModelInfo, config: TargetConfig) -> None:
    vocab_size, method = info.vocab_size, config.batching.method
    if not all(token_id < vocab_size for token_id in draft.token_ids):
        raise RequestError(f"draft_token_ids must be 0 to {vocab_size - 1}", "draft_token_ids")
    if config.pipe.stages:
        raise RequestError("a model in stages verifies no drafts of clients: ask another target", "draft_token_ids")
    if PARTS[method].commits_evenly:
        raise RequestError(f"batching '{method}' cuts what it verifies: ask a target with another", "draft_token_ids")
