"""A draft server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from starspec.config.checks import check_ranges, check_words
from starspec.config.limits import MAX_DRAFT_TOKENS
from starspec.config.network import LOOPBACK, AuditLogFile, Host, Insecure, Keys, Port, PrefillChunk, check_host, lease
from starspec.config.option import LIMITS, NETWORK, NONE_GIVEN, SPECULATION, Option
from starspec.errors import ConfigError

MIN_LEASE_S: Final = 0.1  # of a target at its hub; `Welcome` has the lease, and the target pings often enough
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # of a target

AheadMode = Literal["off", "chain", "outcomes"]
"""What a hub drafts for a sequence while its proposal is in verification and nobody waits.

off         nothing (StarSD as published)
chain       what follows if the target accepts everything. When the target asks, it gets the chain as far as it has
            grown, even if it is shorter than requested (AMUSD)
outcomes    what follows each likely outcome. The target waits for the rest of a chain only as long as that pays
"""
RunAhead = Literal[AheadMode, "auto"]
"""One mode for all sequences; or `auto`: trials find the best mode for each sequence."""
PrefixScope = Literal["off", "target", "hub"]
"""From which tags a tag may copy the keys and values of a common prefix: none; those of its target; all."""
AdmissionWord = Literal["off", "n_max"]
Admission = AdmissionWord | int
"""How many targets a hub drafts for at once: all; as many as all gain by it (StarSD's N_max); or a number."""
MaxBatch = Literal["auto"] | int
"""How many sequences share a draft step: as many as pay, by measured costs; or a number."""
Scheduling = Literal["fair", "fifo"]
"""Who grows first when not all can: targets in turns, by weight; or the first to arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """A draft server."""

    host: Host = LOOPBACK
    port: Port = 7700
    data_ports: Annotated[
        tuple[int, int] | None,
        Option("Ports for the targets' own links, FIRST-LAST.", NETWORK, shown="any free ones", form="ports"),
    ] = None
    keys: Keys = None
    insecure: Insecure = False
    audit_log: AuditLogFile = None
    max_targets: Annotated[int, Option("Targets that may be connected at once.", LIMITS, least=1)] = 64
    max_tags: Annotated[int, Option("Sequences that all targets together may have open.", LIMITS, least=1)] = 1024
    max_draft_tokens: Annotated[
        int, Option("Draft tokens that one proposal has at most.", LIMITS, least=1, most=MAX_DRAFT_TOKENS)
    ] = MAX_DRAFT_TOKENS
    lease_s: Annotated[float, lease(MIN_LEASE_S)] = 10.0  # a target silent for longer loses its tags
    prefill_chunk: PrefillChunk = 256  # of all sequences together
    max_batch: Annotated[
        MaxBatch,
        Option(
            "Sequences that grow in one draft forward: auto = all that wait, while each costs less in company; "
            "or a number; 1 serves one at a time, as StarSD does.",
            LIMITS,
            least=1,
            form="word_or_number",
            words=("auto",),
            unit="sequences",
        ),
    ] = "auto"
    scheduling: Annotated[
        Scheduling,
        Option(
            "Who grows first when --max-batch, or the number of rows, does not let all grow: fair = targets in turns, "
            "by weight; fifo = the first to arrive.",
            LIMITS,
        ),
    ] = "fair"
    weights: Annotated[
        Mapping[str, float],
        Option("Shares of targets in fair scheduling, NAME=WEIGHT,...", LIMITS, shown="1 each", form="by_name"),
    ] = field(default_factory=dict)
    slo_round_ms: Annotated[
        Mapping[str, float],
        Option(
            "Longest rounds that targets should have, in milliseconds, NAME=MS,...: from one proposal to the next, or "
            "to a verdict without a proposal. When not all can grow, targets with longer rounds go first.",
            LIMITS,
            shown=NONE_GIVEN,
            form="by_name",
        ),
    ] = field(default_factory=dict)
    rate_limits: Annotated[
        Mapping[str, float],
        Option(
            "Draft tokens a second that targets get, at most, NAME=TOKENS,...: beyond it their proposals are empty, "
            "and they decode plainly.",
            LIMITS,
            flags=("--rate-limit",),
            shown=NONE_GIVEN,
            form="by_name",
        ),
    ] = field(default_factory=dict)
    admission: Annotated[
        Admission,
        Option(
            "How many targets the hub drafts for at once: off = all; n_max = as many as should all be faster with "
            "drafts than without (StarSD, section 4.2); or a number. The others decode plainly and ask again.",
            LIMITS,
            least=1,
            form="word_or_number",
            words=get_args(AdmissionWord),
            unit="targets",
        ),
    ] = "off"
    run_ahead: Annotated[
        RunAhead,
        Option(
            "What the hub drafts while proposals are in verification and nobody waits: off = nothing; chain = what "
            "follows if the target accepts everything; outcomes = what follows each likely outcome; auto = whichever "
            "makes a sequence's rounds best, by trials. For draft models: heads and prompt lookup have nothing to "
            "prepare. Needs a processor that the targets do not use.",
            SPECULATION,
        ),
    ] = "off"
    share_prefixes: Annotated[
        PrefixScope,
        Option(
            "Whose sequences may start from the prefill of another one with the same beginning: off = nobody's; "
            "target = those of the same target; hub = all. Proposals stay the same and come sooner: whoever measures "
            "the time learns that somebody's prompt began so. For draft models.",
            SPECULATION,
        ),
    ] = "target"

    def __post_init__(self) -> None:
        check_words(self)
        check_host(self.host, "--host")
        for name, weight in self.weights.items():
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise ConfigError(f"the weight of '{name}' must be {MIN_WEIGHT} to {MAX_WEIGHT:g}, got {weight:g}")
        for flag, given in (("--weights", self.weights), ("--slo-round-ms", self.slo_round_ms)):
            if given and self.scheduling == "fifo":
                raise ConfigError(f"{flag} needs fair scheduling: with fifo it would do nothing")
        for flag, given in (("--slo-round-ms", self.slo_round_ms), ("--rate-limit", self.rate_limits)):
            for name, number in given.items():
                if not 0 < number < float("inf"):
                    raise ConfigError(f"{flag} must be above 0, that of '{name}' is {number:g}")
        check_ranges(self)
