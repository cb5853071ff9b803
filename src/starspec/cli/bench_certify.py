"""`starspec bench certify`: that drafts and batches change no token."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal, get_args

import typer

from starspec.cli import given
from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.config import ModelConfig, Option
from starspec.config.option import A_MODEL, MEASURE, MODELS
from starspec.errors import ConfigError
from starspec.models.heads.detect import check_names_a_head
from starspec.models.loading.checks import check_models

CertifiedPart = Literal[  # importing claims imports torch
    "exact", "sampled", "bits", "head-exact", "head-bits", "pair", "batch", "batch-pair", "stages"
]
OF_HEADS: Final = ("head-exact", "head-bits")
OF_PAIRS: Final = ("pair", "batch-pair")


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions:
    """Models and parts of a certificate."""

    model: Annotated[str, Option(f"Model of the parts with one model: {A_MODEL}.", MODELS)]
    target: Annotated[
        str | None, Option("Target model of the parts with two models.", MODELS, shown="no such part")
    ] = None
    draft: Annotated[str | None, Option("Draft model of the parts with two models.", MODELS, shown="no such part")] = (
        None
    )
    head: Annotated[str | None, Option("EAGLE head that drafts for --model.", MODELS, shown="no such parts")] = None
    part: Annotated[
        CertifiedPart | None, Option("Test only this part; all parts take hours.", MEASURE, shown="all")
    ] = None

    def __post_init__(self) -> None:
        if (self.target is None) != (self.draft is None):
            raise ConfigError("the parts with two models need both --target and --draft")
        if self.part in OF_HEADS and self.head is None:
            raise ConfigError(f"--part {self.part} is about an EAGLE head: give --head")
        if self.part in OF_PAIRS and self.target is None:
            raise ConfigError(f"--part {self.part} is about two models: give --target and --draft")

    @property
    def unused(self) -> list[str]:
        """The options whose models belong to other parts than the one that is tested."""
        if self.part is None:
            return []
        of_pair, of_head = self.part in OF_PAIRS, self.part in OF_HEADS
        has_head, has_pair = self.head is not None, self.target is not None
        return [
            *(["--model"] if of_pair else []),
            *(["--head"] if has_head and not of_head else []),
            *(["--target", "--draft"] if has_pair and not of_pair else []),
        ]


@bound
def certify(
    options: CertifyOptions,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Test only every N-th prompt, from the I-th on. N runs, or machines, test all prompts.",
            show_default="all prompts",
        ),
    ] = None,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    *,
    runs: Annotated[ModelConfig, take("device", "num_threads", model="")],
) -> None:
    """Certify that drafts and batches change no token, against transformers and plain decoding.

    Exits 1 if a claim does not hold.
    """
    files = prompt_files(dataset)
    part_of = given.shard(shard) if shard else (1, 1)
    for target, draft in ((options.model, options.head), (options.target, options.draft)):
        if target is not None:
            check_models(replace(runs, model=target), None if draft is None else replace(runs, model=draft))
    if options.head is not None:
        check_names_a_head(options.head)
    if options.unused:
        print(f"bench certify: --part {options.part} does not use {', '.join(options.unused)}", file=sys.stderr)
    with measuring("bench certify") as bar:
        from starspec.bench.certify import Shard, Subjects, blocks, count_turns  # noqa: PLC0415 (these import torch)
        from starspec.bench.certify import certify as run  # noqa: PLC0415
        from starspec.bench.claims import QUICK_PROMPTS  # noqa: PLC0415

        subjects = Subjects(
            model=options.model,
            head=options.head,
            pair=(options.target, options.draft) if options.target and options.draft else None,
            device=runs.device,
            num_threads=runs.num_threads,
            part_names=(options.part,) if options.part else get_args(CertifiedPart),
            shard=Shard(*part_of),
            is_small=quick,
        )
        max_prompts = QUICK_PROMPTS if quick else None
        bar.begin("decoding", count_turns(subjects, max_prompts))
        found = run(subjects, files, max_prompts, bar.turn)
    publish(found, blocks(found), json_file, fails=not found.holds)
