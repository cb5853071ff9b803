"""`starspec bench shard`: a target in stages over slow links."""

from __future__ import annotations

from starspec.cli.binder import bound
from starspec.cli.files import JsonFile
from starspec.cli.measuring import Quick, measuring, publish


@bound
def shard(quick: Quick = False, json_file: JsonFile = None) -> None:
    """Compare plain, synchronous and in-flight decoding of a target in stages, on modelled links.

    It does so in virtual time, where any machine gives the same figures, and by processes and sockets whose layers
    sleep. DSD's equations are printed beside them.
    """
    with measuring("bench shard", "ways to decode") as bar:
        from starspec.bench.shard.synthetic import QUICK, ShardPlan, blocks, measure_shard  # noqa: PLC0415 (torch)

        report = measure_shard(QUICK if quick else ShardPlan(), bar.turn)
    publish(report, blocks(report), json_file, quick=quick)
