"""Record what a real vLLM hands to its proposer: the calls that test_recorded_calls.py replays.

Run in an environment with vLLM: `python tests/integrations/record_calls.py MODEL_FOLDER OUT.json`. A batch of four rows
and a key-value cache of few blocks: prompts are prefilled in chunks, requests move, are preempted, resumed and aborted.
Which request a row held is read off vLLM's own batch, which a proposer cannot see.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "STARSPEC_HUB": "tcp://127.0.0.1:9"}
sys.path.insert(0, str(Path(__file__).parent))  # vLLM imports `record_calls.RecordingProposer`

NUM_DRAFT_TOKENS = 4
PROMPTS = [  # (prompt token ids, output tokens)
    ([list(range(1000, 1012)) * 6][0], 30),
    ([5], 12),
    ([list(range(2000, 2100))][0], 24),
    ([list(range(1000, 1012)) * 6][0], 30),  # as the first
    ([list(range(3000, 3040)) * 4][0], 40),
    ([7, 8, 9], 1),
    ([list(range(1000, 1012)) * 6 + [11, 12]][0], 20),
    ([list(range(4000, 4010))][0], 60),
]
ABORTED = "3"


class RecordingProposer:
    """Hands calls on to a StarProposer without a hub, whose n-grams draft, and keeps what they were."""

    calls: list[dict[str, Any]] = []  # noqa: RUF012
    token_ids: dict[str, list[int]] = {}  # noqa: RUF012

    def __init__(self, vllm_config: Any) -> None:
        from starspec.integrations.vllm import StarProposer

        self._inner = StarProposer(vllm_config)

    def load_model(self, *args: Any) -> None:
        self._inner.load_model(*args)

    def propose(self, sampled: Any, lengths: Any, token_ids: Any, slot_mappings: Any = None) -> list[list[int]]:
        drafts = self._inner.propose(sampled, lengths, token_ids, slot_mappings)
        names = sys._getframe(1).f_locals["self"].input_batch.req_ids  # the caller is vLLM's model runner
        rows = []
        for row, added in enumerate(sampled):
            name, length = names[row].split("-")[0], int(lengths[row])
            seen = [int(each) for each in token_ids[row, :length]]
            known = self.token_ids.setdefault(name, [])
            assert seen[: len(known)] == known[: len(seen)]
            if len(seen) > len(known):
                self.token_ids[name] = seen
            rows.append({"request": name, "length": length, "sampled": [int(each) for each in added]})
        self.calls.append({"rows": rows, "drafts": drafts})
        return drafts


def main(model: str, out: str) -> None:
    import record_calls  # the module that vLLM imports: not this one, which is __main__
    import vllm
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            block_size=32,
            kv_cache_memory_bytes=200_000_000,
            num_gpu_blocks_override=int(os.environ.get("NUM_BLOCKS", "14")),
            enable_prefix_caching=False,
            speculative_config={
                "method": "custom_class",
                "model": "record_calls.RecordingProposer",
                "num_speculative_tokens": NUM_DRAFT_TOKENS,
            },
        )
    )
    for name, (prompt, num_tokens) in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0 if name % 2 == 0 else 0.7, max_tokens=num_tokens)
        sampling.ignore_eos = True
        engine.add_request(str(name), {"prompt_token_ids": prompt}, sampling)
    num_steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        num_steps += 1
        if num_steps == 18:
            engine.abort_request([ABORTED])
    recorder = record_calls.RecordingProposer
    recording = {
        "vllm": vllm.__version__,
        "num_draft_tokens": NUM_DRAFT_TOKENS,
        "token_ids": recorder.token_ids,
        "calls": recorder.calls,
    }
    Path(out).write_text(json.dumps(recording, separators=(",", ":")) + "\n")
    sys.stdout.write(f"{len(recorder.calls)} calls, {len(recorder.token_ids)} requests\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
