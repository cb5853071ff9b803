"""Options that several commands share: each has one spelling, one meaning and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from starspec import config
from starspec.config import (
    BatchingMethod,
    GatewayConfig,
    HubConfig,
    ModelConfig,
    PrefixScope,
    RunAhead,
    Scheduling,
    TargetConfig,
)
from starspec.draft_methods import DraftMethod

HUB, TARGET, GATEWAY = HubConfig(), TargetConfig(), GatewayConfig()  # their defaults are the options' defaults
MODEL = ModelConfig(model="")

MODELS, SPECULATION, NETWORK, LIMITS, PROCESS, SAMPLING, MEASURE = (
    "Models",
    "Speculation",
    "Network",
    "Limits",
    "Process",
    "Sampling",
    "Measurement",
)

ModelMethod = Literal["draft_model", "eagle", "eagle3"]  # of `DraftMethod` those that have a model
A_MODEL = "Hugging Face folder, hub id, .gguf file, or synthetic:KEY=VALUE,..."
NONE_GIVEN = "none"

# ---------------------------------------------------------------- models

# `--model` is what other servers call it, as `--spec-model` is what vLLM calls a draft
TargetModel = Annotated[
    str, typer.Option("--target", "--model", help=f"Target model: {A_MODEL}.", rich_help_panel=MODELS)
]
MaybeTarget = Annotated[
    str | None,
    typer.Option(
        "--target", "--model", help=f"Target model: {A_MODEL}.", show_default=NONE_GIVEN, rich_help_panel=MODELS
    ),
]
Dtype = Annotated[
    config.Dtype,
    typer.Option(help="Number format of the weights.", rich_help_panel=MODELS),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=MODELS)]
Numerics = Annotated[
    config.Numerics,
    typer.Option(
        help="invariant: the same bits with and without speculation, as far as this machine's kernels allow; "
        "fast: gives that up for speed.",
        rich_help_panel=MODELS,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Tokens of the longest sequence, prompt and output.",
        show_default="the model's own, at most 4096",
        rich_help_panel=MODELS,
    ),
]
NumThreads = Annotated[
    int | None,
    typer.Option(help="CPU threads of a forward.", show_default="OMP_NUM_THREADS, or all", rich_help_panel=MODELS),
]

# ---------------------------------------------------------------- speculation

DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "--spec-model",
        help=f"Draft model: {A_MODEL}. The same as 'model' of --speculative-config.",
        show_default=NONE_GIVEN,
        rich_help_panel=SPECULATION,
    ),
]
DraftQuantization = Annotated[
    config.Quantization | None,
    typer.Option(
        help="Of the draft's weights; the output cannot change. The same as 'quantization' of --speculative-config.",
        show_default=NONE_GIVEN,
        rich_help_panel=SPECULATION,
    ),
]
MaybeDraft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        "--spec-model",
        help=f"Draft model: {A_MODEL}; or an EAGLE head's folder or hub id.",
        show_default=NONE_GIVEN,
        rich_help_panel=MODELS,
    ),
]
GivenDraft = Annotated[
    str,
    typer.Option(
        "--draft",
        "--spec-model",
        help=f"Draft model: {A_MODEL}; or an EAGLE head's folder or hub id.",
        rich_help_panel=MODELS,
    ),
]
GivenQuantization = Annotated[config.Quantization, typer.Option(help="Of the draft's weights.", rich_help_panel=MODELS)]
GivenMethod = Annotated[
    ModelMethod,
    typer.Option(
        help="What the draft is, where its config.json does not say that it is an EAGLE head.", rich_help_panel=MODELS
    ),
]
SpecMethod = Annotated[
    DraftMethod | None,
    typer.Option(
        help="What drafts: a model, an EAGLE head, or prompt lookup. The same as 'method' of --speculative-config.",
        show_default="draft_model",
        rich_help_panel=SPECULATION,
    ),
]
SpecTokens = Annotated[
    int | None,
    typer.Option(
        help="Draft tokens a round, 0 to 64. The same as 'num_speculative_tokens' of --speculative-config.",
        show_default="4",
        rich_help_panel=SPECULATION,
    ),
]
DraftPMin = Annotated[
    float | None,
    typer.Option(
        help="Draft no further where the draft gives all guesses to go on from, together, less than this probability,"
        " 0 to 1."
        " The same as 'draft_p_min' of --speculative-config.",
        show_default="0",
        rich_help_panel=SPECULATION,
    ),
]
SpeculativeJson = Annotated[
    str | None,
    typer.Option(
        "--speculative-config",
        "-sc",
        help="JSON object with vLLM's keys (method, model, quantization, num_speculative_tokens, ...), "
        "and ours under 'remote' and 'length'.",
        show_default=NONE_GIVEN,
        rich_help_panel=SPECULATION,
    ),
]
HubEndpoint = Annotated[
    str | None,
    typer.Option(
        "--hub",
        help="Public port of the draft server, tcp://HOST:PORT.",
        show_default=NONE_GIVEN,
        rich_help_panel=SPECULATION,
    ),
]

# ---------------------------------------------------------------- network

Host = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=NETWORK)]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.", rich_help_panel=NETWORK)
]
Keys = Annotated[
    Path | None,
    typer.Option(
        help="Folder made by `starspec keygen`; needed for every address that is not loopback.",
        show_default=NONE_GIVEN,
        rich_help_panel=NETWORK,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow addresses that are not loopback without keys.", rich_help_panel=NETWORK),
]
ServedModelName = Annotated[
    str | None,
    typer.Option(help="Model name in the API.", show_default="the folder's name", rich_help_panel=NETWORK),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="STARSPEC_API_KEY",
        help="Key that clients must send; prefer the variable, which does not show in process lists.",
        show_default=NONE_GIVEN,
        rich_help_panel=NETWORK,
    ),
]

# ---------------------------------------------------------------- limits

MaxNumSeqs = Annotated[int, typer.Option(min=1, help="Sequences decoded at once by a target.", rich_help_panel=LIMITS)]
Batching = Annotated[
    BatchingMethod,
    typer.Option(
        help="How sequences share forwards. The others are for comparison; in bfloat16 their near-ties may turn.",
        rich_help_panel=LIMITS,
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of exspec: sequences with cache rows, among which one length is sought.",
        show_default="4 batches",
        rich_help_panel=LIMITS,
    ),
]
MaxPassedOver = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Of exspec: rounds without a sequence before it goes first; 0 = no bound.",
        show_default=str(TARGET.batching.max_passed_over),
        rich_help_panel=LIMITS,
    ),
]
MaxNumQueuedReqs = Annotated[
    int, typer.Option(min=1, help="Requests that wait at a target; more get HTTP 503.", rich_help_panel=LIMITS)
]
PrefillChunk = Annotated[int, typer.Option(min=1, help="Prompt tokens of one forward.", rich_help_panel=LIMITS)]
RunAheadMode = Annotated[
    RunAhead,
    typer.Option(
        help="What the hub drafts while proposals are in verification and nobody waits: nothing, what follows if all "
        "is accepted, or what follows each likely outcome; auto: whichever makes a session's rounds best, by trials. "
        "Of draft models: heads and prompt lookup have nothing to prepare. Wants a processor that targets do not use.",
        rich_help_panel=SPECULATION,
    ),
]
SharePrefixes = Annotated[
    PrefixScope,
    typer.Option(
        help="Whose sequences may begin with what the hub has read of another's that begins alike: nobody's, those of "
        "the same target, or all. Proposals stay the same and come sooner: that shows, to who measures it, that "
        "somebody's prompt began so. Of draft models.",
        rich_help_panel=SPECULATION,
    ),
]
MaxBatchText = Annotated[
    str,
    typer.Option(
        "--max-batch",
        help="Sequences that grow in one draft forward: auto = all that wait, while each costs less in company; "
        "or a number; 1 serves one at a time, as StarSD does.",
        rich_help_panel=LIMITS,
    ),
]
DraftScheduling = Annotated[
    Scheduling,
    typer.Option(
        "--scheduling",
        help="Who grows first when not all can, for --max-batch or for want of rows: targets in turns, by weight; "
        "or who came first.",
        rich_help_panel=LIMITS,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Shares of targets in fair scheduling, NAME=WEIGHT,...", show_default="1 each", rich_help_panel=LIMITS
    ),
]
SloRoundMs = Annotated[
    str | None,
    typer.Option(
        help="Longest rounds that targets are to have, proposal to proposal or to a verdict that had to do without, in "
        "milliseconds, NAME=MS,...: whose are longer goes before all others when not all can grow.",
        show_default=NONE_GIVEN,
        rich_help_panel=LIMITS,
    ),
]
RateLimit = Annotated[
    str | None,
    typer.Option(
        help="Draft tokens a second that targets get, at most, NAME=TOKENS,...: beyond it their proposals are empty, "
        "and they decode plainly.",
        show_default=NONE_GIVEN,
        rich_help_panel=LIMITS,
    ),
]
AdmissionText = Annotated[
    str,
    typer.Option(
        "--admission",
        help="How many targets are drafted for at once: off = all; n_max = as many as are all faster with drafts "
        "than without, as far as can be foretold (StarSD, section 4.2); or a number. The others decode plainly and "
        "ask again.",
        rich_help_panel=LIMITS,
    ),
]
KvBudget = Annotated[
    str | None,
    typer.Option(
        help="Memory for the draft's keys and values, as 512MiB, 2GiB or bytes: it is divided into cache rows, in "
        "place of one row a sequence. Sequences beyond them are served too, with rows taken from those not used for "
        "longest.",
        show_default=NONE_GIVEN,
        rich_help_panel=LIMITS,
    ),
]
DraftSessions = Annotated[
    int,
    typer.Option(min=1, help="Sessions that the draft model can grow at once: its cache rows.", rich_help_panel=LIMITS),
]

# ---------------------------------------------------------------- process

ShutdownTimeout = Annotated[
    float,
    typer.Option(
        min=0.0, help="Seconds that requests in flight have to end after SIGINT or SIGTERM.", rich_help_panel=PROCESS
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Write what was done when, for Chrome or Perfetto, to this file at the end.",
        show_default=NONE_GIVEN,
        rich_help_panel=PROCESS,
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(help="Least severe log lines to print on stderr.", rich_help_panel=PROCESS),
]
