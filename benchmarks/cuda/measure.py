"""What CUDA gives: `python benchmarks/cuda/measure.py PARTS TARGET HEAD OUT.json PROMPTS.jsonl ...`, beside a GPU.

PARTS are `linears`, `steps`, `float32`, `bfloat16` and `speed`, separated by commas.

Exactness first: float32 answers against transformers' `generate`, with every kind of draft, then bfloat16 ones against
plain decoding. Then speed: tokens a second, steps as graphs and kernel by kernel, and one product of a 7B model's
linears, unquantized and quantized.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import AutoModelForCausalLM

from starspec import LLM, SamplingParams
from starspec.config import ModelConfig
from starspec.harness.datasets import read_prompts
from starspec.harness.provenance import collect_provenance
from starspec.models.linear.dense import PlainLinear
from starspec.models.linear.quantized_cuda import CompiledInt8Linear, TorchaoInt4Linear
from starspec.models.loading.load import load_runner
from starspec.models.loading.locate import locate
from starspec.models.runner import LoadedRunner, Segment
from starspec.sampling.argmax import argmaxes

DEVICE, NUM_PROMPTS, MAX_TOKENS = "cuda", 8, 48  # of each file
SHAPES = {"qkv": (4608, 3584), "output": (3584, 3584), "gate_up": (37888, 3584), "down": (3584, 18944)}  # Qwen2.5 7B
REPEATS = 5
PREFIX_LEN, WARM_UPS, STEP_REPEATS = 200, 5, 30

Ids = list[int]


def main(names: Sequence[str], target: str, head: str, out: Path, files: Sequence[Path]) -> None:
    """Effects: writes `out` after each part."""
    found: dict[str, object] = {"provenance": asdict(collect_provenance({"target": target, "head": head}))}
    parts: dict[str, Callable[[], object]] = {
        "linears": linears,
        "steps": lambda: steps(target),
        "float32": lambda: differences(target, head, "float32", "int8", files),
        "bfloat16": lambda: differences(target, head, "bfloat16", "int4", files),
        "speed": lambda: speed(target, head, files),
    }
    for name in track(names, "parts"):
        found[name] = parts[name]()
        out.write_text(json.dumps(found, indent=2) + "\n")


def differences(
    target: str, head: str, dtype: str, quantization: str, files: Sequence[Path]
) -> list[dict[str, object]]:
    """How many answers differ from the reference: transformers' in float32, our own plain ones in bfloat16."""
    kinds: dict[str, dict[str, object] | None] = {
        "plain": None,
        "n-gram": {"method": "ngram", "num_speculative_tokens": 4},
        f"{quantization} self-draft": {"model": target, "quantization": quantization, "num_speculative_tokens": 4},
        "head": {"method": "eagle3", "model": head, "num_speculative_tokens": 4},
        "head, trees": {"method": "eagle3", "model": head, "num_steps": 3, "eagle_topk": 4, "num_draft_tokens": 11},
    }
    rows: list[dict[str, object]] = []
    reference: list[Ids] | None = None
    for batch, kind in [(1, "plain"), (1, "head"), *((8, kind) for kind in kinds)]:
        draft = kinds[kind]
        llm = load(target, dtype, batch, draft)
        prompts = prompt_ids(llm, files)
        if reference is None:
            reference = answers(llm, prompts)
            if dtype == "float32":
                reference = generate(load_transformers(target, dtype), prompts)
        said = answers(llm, prompts)
        places = [first_difference(one, other) for one, other in zip(said, reference, strict=True)]
        rows.append(
            {
                "draft": kind,
                "batch": batch,
                "answers": len(said),
                "tokens": sum(map(len, said)),
                "different": sum(place is not None for place in places),
                "first_differences": [place for place in places if place is not None],
                "numerics": llm.engine.verifier.runner.numerics_report,
            }
        )
        llm.close()
    return rows


def speed(target: str, head: str, files: Sequence[Path]) -> list[dict[str, object]]:
    """Tokens a second of all prompts, plain and with the head, and of transformers' generate one by one."""
    rows: list[dict[str, object]] = []
    chain = {"method": "eagle3", "model": head, "num_speculative_tokens": 3}
    for batch, draft in ((1, None), (1, chain), (8, None), (8, chain), (32, None)):
        llm = load(target, "bfloat16", batch, draft, numerics="fast")
        prompts = prompt_ids(llm, files)
        answers(llm, prompts[:batch])
        begun = time.perf_counter()
        num = sum(map(len, answers(llm, prompts)))
        seconds = time.perf_counter() - begun
        rows.append(
            {"draft": "head, chain of 3" if draft else "plain", "batch": batch, "tokens_s": round(num / seconds, 1)}
        )
        llm.close()
    torch.backends.cuda.enable_cudnn_sdp(enabled=True)  # as transformers finds it; our own models switched it off
    model = load_transformers(target, "bfloat16")
    generate(model, prompts[:1])
    begun = time.perf_counter()
    num = sum(map(len, generate(model, prompts)))
    rows.append(
        {"draft": "transformers' generate", "batch": 1, "tokens_s": round(num / (time.perf_counter() - begun), 1)}
    )
    return rows


def steps(target: str) -> list[dict[str, object]]:
    """Milliseconds of a forward over some tokens of one sequence, its choice included."""
    rows: list[dict[str, object]] = []
    for numerics in ("invariant", "fast"):
        for is_eager in (True, False):
            config = ModelConfig(
                model=target,
                device=DEVICE,
                max_model_len=1024,
                num_rows=1,
                numerics=numerics,
                enforce_eager=is_eager,
            )
            runner = load_runner(config)
            row = runner.cache.lease()
            runner.forward([Segment(row, range(PREFIX_LEN), 0)])
            runner.cache.append(row, PREFIX_LEN)
            found = {num: round(1e3 * seconds_of(runner, Segment(row, range(num), num)), 3) for num in (1, 2, 4, 15)}
            how = "kernel by kernel" if is_eager else "graphs"
            rows.append({"launched": how, "ms": found, "numerics": runner.numerics_report})
    return rows


def seconds_of(runner: LoadedRunner, segment: Segment) -> float:
    """The median of `STEP_REPEATS` forwards."""
    times = []
    for repeat in range(WARM_UPS + STEP_REPEATS):
        begun = time.perf_counter()
        argmaxes(runner.forward([segment]).logits)
        if repeat >= WARM_UPS:
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def linears() -> list[dict[str, object]]:
    """Microseconds of one product in a CUDA graph, weights not in the cache: they take turns with others."""
    rows: list[dict[str, object]] = []
    for name, shape in SHAPES.items():
        weight = torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE) * 0.02
        kinds: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
            "bfloat16": lambda weight=weight: PlainLinear(weight.clone(), None),
            "int8": lambda weight=weight: CompiledInt8Linear(weight, None),
            "int4": lambda weight=weight: TorchaoInt4Linear(weight, None),
        }
        for num_rows in (1, 2, 4, 8):
            x = torch.randn(num_rows, shape[1], dtype=torch.bfloat16, device=DEVICE)
            found = {kind: round(microseconds([make() for _ in range(8)], x), 2) for kind, make in kinds.items()}
            rows.append({"linear": name, "shape": shape, "rows": num_rows, "us": found})
    return rows


@torch.inference_mode()
def microseconds(calls: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> float:
    """Of one call, the median of `REPEATS` replays of all of them."""
    for call in calls:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call(x)
    times = []
    for _ in range(REPEATS):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        times.append(1000 * begun.elapsed_time(ended) / len(calls))
    return statistics.median(times)


def load(target: str, dtype: str, batch: int, draft: dict[str, object] | None, numerics: str = "invariant") -> LLM:
    return LLM(
        target,
        dtype=dtype,
        device=DEVICE,
        max_num_seqs=batch,
        max_model_len=1024,
        numerics=numerics,
        speculative_config=draft,
    )


def prompt_ids(llm: LLM, files: Sequence[Path]) -> list[Ids]:
    turns = [prompt.text for file in files for prompt in read_prompts(file)[:NUM_PROMPTS]]
    messages = [[{"role": "user", "content": turn}] for turn in turns]
    return [llm.tokenizer.apply_chat_template(each, add_generation_prompt=True, return_dict=False) for each in messages]


def answers(llm: LLM, prompts: Sequence[Ids]) -> list[Ids]:
    results = llm.generate(list(prompts), SamplingParams(max_tokens=MAX_TOKENS, temperature=0))
    return [list(result.outputs[0].token_ids) for result in results]


def load_transformers(target: str, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(str(locate(target)), dtype=getattr(torch, dtype)).to(DEVICE).eval()


@torch.inference_mode()
def generate(model: Any, prompts: Sequence[Ids]) -> list[Ids]:
    """Transformers alone, one prompt at a time."""
    said = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=DEVICE)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0
        )
        said.append(out[0, len(prompt) :].tolist())
    return said


def first_difference(one: Ids, other: Ids) -> int | None:
    """Where two answers part; None if they are the same."""
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


if __name__ == "__main__":
    names, target, head, out, *files = sys.argv[1:]
    main(names.split(","), target, head, Path(out), [Path(file) for file in files])
