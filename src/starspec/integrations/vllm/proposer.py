"""The class that vLLM constructs and calls.

    vllm serve MODEL --speculative-config
        '{"method": "custom_class", "model": "starspec.integrations.vllm.StarProposer", "num_speculative_tokens": 4}'

Two threads use it. vLLM's thread calls `propose` once a step, which sends one multipart and waits until one deadline at
most. Our thread ("starspec-hub") connects, connects again, renews the lease and closes tags. It does so between steps,
since there are no steps after the last request. One lock separates the two; a wait for the hub releases the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import traceback
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import structlog
from numpy.typing import NDArray

from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.ids import TargetId
from starspec.integrations.vllm.cpu_sampler import patch_sampler
from starspec.integrations.vllm.drafting import StepDrafter
from starspec.integrations.vllm.hub_client import HubClient, account_of
from starspec.integrations.vllm.settings import VllmSettings, load_settings
from starspec.integrations.vllm.shared_cores import advise
from starspec.integrations.vllm.versions import check_version
from starspec.policy.deadline import StepTimeDeadline
from starspec.wire.keys import lacks_keys, load_keys
from starspec.wire.messages import PROTOCOL_VERSION, Hello
from starspec.wire.transports.sockets import host_of
from starspec.wire.transports.zmq_target import ZmqTarget

TEND_EVERY_S: Final = 0.1

log = structlog.get_logger()


class StarProposer:
    """Gives a vLLM server drafts from a starspec hub.

    Args:
        vllm_config: vLLM's `VllmConfig`.
    Raises: ConfigError if a setting, the vLLM version or the model's tokenizer does not fit.
    Effects: fixes a bug in vLLM's CPU sampler, if it has it (`cpu_sampler.py`).
    """

    def __init__(self, vllm_config: Any) -> None:
        settings = load_settings()
        vllm_version = _vllm_version()
        check_version(vllm_version, settings.untested_vllm)
        patch_sampler()
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._drafter: StepDrafter | None = None
        if _is_output_rank(vllm_config):
            self._drafter = _make_drafter(settings, vllm_config, vllm_version)
            advise(settings.hub, os.environ)
            threading.Thread(target=self._keep, name="starspec-hub", daemon=True).start()
            atexit.register(self.shutdown)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,  # noqa: ARG002 (of vLLM's own cache)
    ) -> list[list[int]]:
        """Draft tokens for each row of vLLM's batch.

        Args:
            sampled_token_ids: for each row the tokens that this step added; none while its prompt is prefilled.
            num_tokens_no_spec: [>= rows] tokens of each row, the added ones included.
            token_ids_cpu: [>= rows, max_model_len] of each row.
        Returns: for each row at most `num_speculative_tokens` ids; none = this row is decoded plainly.
        """
        with self._lock:
            if self._drafter is not None:
                try:
                    return self._drafter.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
                except Exception:
                    self._give_up()
        return [[] for _ in sampled_token_ids]

    def load_model(self, *_args: object, **_kwargs: object) -> None:
        """vLLM calls this on every proposer. There is nothing to load."""

    def shutdown(self) -> None:
        """Disconnect from the hub, which frees the tags. Idempotent. vLLM gets no drafts after this."""
        self._is_stopped.set()
        with self._lock:
            drafter, self._drafter = self._drafter, None
            if drafter is not None:
                drafter.shutdown()

    def _keep(self) -> None:
        while not self._is_stopped.wait(TEND_EVERY_S):
            with self._lock:
                if self._drafter is None:
                    return
                try:
                    self._drafter.maintain()
                except Exception:
                    self._give_up()

    def _give_up(self) -> None:
        """After a bug of ours: log it, and let vLLM decode without drafts. The server must not stop for it."""
        log.error("starspec stops drafting for this server; vLLM goes on", traceback=traceback.format_exc())
        self._is_stopped.set()
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            with contextlib.suppress(Exception):
                drafter.shutdown()


def _make_drafter(settings: VllmSettings, vllm_config: Any, vllm_version: str) -> StepDrafter:
    model_config = vllm_config.model_config
    parallel = vllm_config.parallel_config
    name = settings.name or f"{socket.gethostname()}-{os.getpid()}"
    if settings.name and int(parallel.data_parallel_size) > 1:  # all ranks have the same settings
        name = f"{name[:150]}-{int(parallel.data_parallel_rank)}"  # so that the rank is not cut off
    hello = Hello(
        PROTOCOL_VERSION,
        TargetId(f"{name} (vLLM {vllm_version})"[:200]),
        int(model_config.get_vocab_size()),
        vocab_fingerprint(_tokenizer(model_config)),
    )
    keys = load_keys(settings.keys, "target")
    if lacks_keys(host_of(settings.hub, "the hub"), keys, settings.insecure):
        raise ConfigError(
            f"vLLM would speak to the hub at {settings.hub} without keys: make keys with `starspec keygen FOLDER` and "
            "set STARSPEC_KEYS=FOLDER, or set STARSPEC_INSECURE=true on a trusted network"
        )
    deadline = StepTimeDeadline(None if settings.deadline_ms is None else settings.deadline_ms / 1e3)
    transport = ZmqTarget(settings.hub, hello, keys, settings.insecure)
    hub = HubClient(transport, deadline, hello.vocab_size, settings.draft_p_min, account=account_of(settings))
    num_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
    return StepDrafter(hub, deadline, settings, num_tokens, int(model_config.max_model_len))


def _vllm_version() -> str:
    import vllm  # noqa: PLC0415 (the unit tests do without)

    return str(vllm.__version__)


def _tokenizer(model_config: Any) -> Any:
    """vLLM's tokenizer of the target. Raises: ConfigError if vLLM runs without one."""
    from vllm.tokenizers import cached_tokenizer_from_config  # noqa: PLC0415

    tokenizer = cached_tokenizer_from_config(model_config)
    if tokenizer is None:
        raise ConfigError("the hub compares tokenizers: start vLLM without --skip-tokenizer-init")
    return tokenizer


def _is_output_rank(vllm_config: Any) -> bool:
    """Whether vLLM uses the drafts of this worker: only those of the first worker of a tensor-parallel group."""
    parallel = vllm_config.parallel_config
    return int(parallel.rank) % int(parallel.tensor_parallel_size) == 0
