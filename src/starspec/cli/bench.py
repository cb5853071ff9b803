"""`starspec bench ...`: repeatable measurements, saved with their provenance.

Those that have options of their own have files of their own, too.
"""

from __future__ import annotations

from typing import Annotated

from starspec.cli.bench_batch import batch
from starspec.cli.bench_certify import certify
from starspec.cli.bench_grammar import grammar
from starspec.cli.bench_length import length
from starspec.cli.bench_relaxed import relaxed
from starspec.cli.bench_shard import shard
from starspec.cli.bench_star import async_pair, star, warm
from starspec.cli.bench_tree import tree
from starspec.cli.bench_vllm import vllm
from starspec.cli.binder import bound, take
from starspec.cli.command import CommandLine
from starspec.cli.files import Datasets, JsonFile, all_prompts, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.harness.model_pair import ModelPair


@bound
def pair(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype", "num_threads")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Compare plain, speculative and batched decoding with transformers' generate and assisted generation.

    Decoding is greedy, and the methods take turns after each prompt. Exits 1 if drafts or batches changed a token.
    """
    prompts = prompt_files(dataset)
    models.find()
    with measuring("bench pair") as bar:
        from starspec.bench.pair.measure import QUICK, PairPlan, blocks, measure_pair  # noqa: PLC0415 (torch)

        report = measure_pair(models, prompts, QUICK if quick else PairPlan(), bar.advance)
    mistakes = [] if report.outputs_identical else ["drafts or batches changed tokens of ours"]
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes)


def wire(quick: Quick = False, json_file: JsonFile = None) -> None:
    """Measure what hub, messages and sockets cost beyond drafting: real processes, synthetic accelerators."""
    with measuring("bench wire", None) as bar:
        from starspec.bench.wire.measure import QUICK, WirePlan, blocks, measure_wire  # noqa: PLC0415 (torch)

        plan = QUICK if quick else WirePlan()
        bar.begin("calling", plan.num_turns)
        report = measure_wire(plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick, num_repeats=QUICK.num_repeats)


@bound
def faults(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure what clients notice when the hub is killed, stopped and restarted: two targets, eight streams.

    Exits 1 if a token changed.
    """
    prompts = [prompt.text for prompt in all_prompts(dataset)]
    models.find()
    with measuring("bench faults", None) as bar:
        from starspec.bench.faults import (  # noqa: PLC0415 (torch)
            QUICK,
            FaultPlan,
            blocks,
            measure_faults,
            mistakes_of,
        )

        plan = QUICK if quick else FaultPlan()
        bar.begin("serving", plan.num_turns)
        report = measure_faults(models, prompts, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


@bound
def watch(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure whether 16 open dashboards slow generation: a real star, with them and without, in turns.

    Exits 1 if they add more than 1% to the star's processor time, as the median over pairs.
    """
    prompts = [prompt.text for prompt in all_prompts(dataset)]
    models.find()
    with measuring("bench watch", None) as bar:
        from starspec.bench.watch import QUICK, WatchPlan, blocks, measure_watch, mistakes_of  # noqa: PLC0415 (torch)

        plan = QUICK if quick else WatchPlan()
        bar.begin("serving", plan.num_turns)
        report = measure_watch(models, prompts, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


app = CommandLine(name="bench", no_args_is_help=True, help="Measure on this machine.")
app.command()(batch)
app.command()(grammar)
app.command()(length)
app.command()(relaxed)
app.command()(shard)
app.command()(star)
app.command("async")(async_pair)
app.command()(warm)
app.command()(pair)
app.command()(tree)
app.command()(wire)
app.command()(faults)
app.command()(watch)
app.command()(vllm)
app.command()(certify)
