"""vLLM servers as targets: `--speculative-config '{"method": "custom_class", ...}'` names `StarProposer`."""

from starspec.integrations.vllm.proposer import StarProposer

__all__ = ["StarProposer"]
