"""What one step of a target's engine gives to its clients."""

from __future__ import annotations

from msgspec.structs import replace

from starspec.ids import RequestKey
from starspec.wire.messages import EngineOutput


class StepOutputs:
    """One output for each request. Two rounds of a sequence can land in one step."""

    def __init__(self) -> None:
        self._outputs: dict[RequestKey, EngineOutput] = {}

    def add(self, key: RequestKey, output: EngineOutput) -> None:
        """The request has this output, too."""
        before = self._outputs.get(key)
        self._outputs[key] = output if before is None else _joined(before, output)

    def take(self) -> dict[RequestKey, EngineOutput]:
        """All of them. Effects: the next step begins."""
        outputs, self._outputs = self._outputs, {}
        return outputs


def _joined(before: EngineOutput, output: EngineOutput) -> EngineOutput:
    logprobs = None if output.logprobs is None else [*(before.logprobs or []), *output.logprobs]
    token_ids, text = [*before.token_ids, *output.token_ids], before.text + output.text
    scored = [*(before.prompt_logprobs or []), *(output.prompt_logprobs or [])] or None
    return replace(output, token_ids=token_ids, text=text, logprobs=logprobs, prompt_logprobs=scored)
