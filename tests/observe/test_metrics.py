"""What a scraper reads is what the statistics say."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from starspec.ids import TargetId
from starspec.observe.metrics import StatusCollector, StatusSnapshot
from starspec.observe.view import stage_views, target_metrics
from starspec.stats import HubStats, HubTargetStats, Mean, PipeStats, StageStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus


def target(name: str, rounds: list[tuple[int, int]]) -> TargetStatus:
    """A target after rounds of (drafted, accepted) tokens."""
    stats = TargetStats()
    for drafted, accepted in rounds:
        stats.acceptance.add_round(drafted, accepted, accepted + 1)
    stats.t_c.add(0.002)
    stats.t_v.add(0.040)
    stats.round.add(0.050)
    return TargetStatus(TargetId(name), "toy", 64, 1, 2, 8, 7, True, stats)


def registry_of(snapshot: Callable[[], StatusSnapshot]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(snapshot))
    return registry


def scrape(snapshot: StatusSnapshot) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry_of(lambda: snapshot)).decode()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def test_speculation_counters_have_vllm_suffixes_and_one_sample_a_target() -> None:
    read = scrape(StatusSnapshot((target("a", [(4, 2), (4, 4), (0, 0)]), target("b", [(3, 0)]))))
    a, b = (("target", "a"),), (("target", "b"),)
    assert read["starspec_spec_decode_num_drafts_total", a] == 2
    assert read["starspec_spec_decode_num_draft_tokens_total", a] == 8
    assert read["starspec_spec_decode_num_accepted_tokens_total", a] == 6
    assert read["starspec_spec_decode_num_drafts_total", b] == 1
    assert read["starspec_spec_decode_num_accepted_tokens_total", b] == 0


def test_accepted_tokens_per_position_start_at_zero_and_sum_to_the_accepted_tokens() -> None:
    read = scrape(StatusSnapshot((target("a", [(4, 2), (4, 4), (4, 1)]),)))
    name = "starspec_spec_decode_num_accepted_tokens_per_pos_total"
    by_position = [read[name, (("position", str(position)), ("target", "a"))] for position in range(4)]
    assert by_position == [3, 2, 1, 1]
    assert sum(by_position) == read["starspec_spec_decode_num_accepted_tokens_total", (("target", "a"),)]


def test_chosen_lengths_and_their_reasons_are_counted() -> None:
    status = target("a", [])
    for num_steps, reason in ((0, "off"), (3, "cost"), (3, "cap")):
        status.stats.lengths.add(num_steps, reason)
    read = scrape(StatusSnapshot((status,)))
    name, a = "starspec_draft_length_choices_total", ("target", "a")
    assert [read[name, (("steps", f"{each}"), a)] for each in range(4)] == [1, 0, 0, 2]
    name = "starspec_draft_length_reasons_total"
    assert [read[name, (("reason", each), a)] for each in ("off", "cost", "cap")] == [1, 1, 1]


def test_the_time_decomposition_is_exposed_in_seconds() -> None:
    read = scrape(StatusSnapshot((target("a", [(4, 2)]),)))
    a = (("target", "a"),)
    assert read["starspec_return_time_seconds", a] == read["starspec_t_c_seconds", a] + read["starspec_t_v_seconds", a]
    assert read["starspec_rounds_per_second", a] == 1 / 0.050
    assert read["starspec_acceptance_length", a] == 3


def test_where_rounds_spend_their_time_is_exposed_in_seconds() -> None:
    status = target("a", [(4, 2)])
    batch = status.stats.batch
    batch.num_realigned_rounds, batch.realign_pad_s, batch.realign_kv_s = 3, 0.25, 0.5
    batch.draft_s, batch.verify_s, batch.copy_s, batch.schedule_s, batch.grouping_wait_s = 2.0, 4.0, 8.0, 16.0, 32.0
    read = scrape(StatusSnapshot((status,)))
    names = ("realigned_rounds", "realign_seconds", "draft_seconds", "verify_seconds", "copy_seconds")
    names += ("schedule_seconds", "grouping_wait_seconds")
    found = [read[f"starspec_{name}_total", (("target", "a"),)] for name in names]
    assert found == [3, 0.75, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_the_hub_is_labelled_with_its_draft() -> None:
    hub = HubStatus("tiny", HubStats(num_tags=5, busy_s=3.0, idle_s=1.0, load=0.75))
    read = scrape(StatusSnapshot(hub=hub))
    assert read["starspec_hub_tags", (("draft", "tiny"),)] == 5
    assert read["starspec_hub_idle_seconds_total", (("draft", "tiny"),)] == 1.0
    assert read["starspec_hub_load", (("draft", "tiny"),)] == 0.75


def test_what_the_hub_sees_of_a_target_is_labelled_with_the_target() -> None:
    seen = HubTargetStats(num_tags=3, num_verdicts=2, num_accepted_tokens=5, queue=Mean(0.02, 1))
    read = scrape(StatusSnapshot(hub=HubStatus("tiny", HubStats(), {TargetId("v (vLLM 0.32.0)"): seen})))
    label = (("target", "v (vLLM 0.32.0)"),)
    assert read["starspec_hub_target_tags", label] == 3
    assert read["starspec_hub_target_accepted_tokens_total", label] == 5
    assert read["starspec_hub_target_acceptance_length", label] == 3.5
    assert read["starspec_hub_target_queue_seconds", label] == 0.02


def test_what_a_hub_read_of_prompts_and_what_it_was_spared_are_counted_apart() -> None:
    hub = HubStatus("tiny", HubStats(num_prompt_tokens=96, num_shared_tokens=480))
    read = scrape(StatusSnapshot(hub=hub))
    assert read["starspec_hub_prompt_tokens_total", (("draft", "tiny"),)] == 96
    assert read["starspec_hub_shared_tokens_total", (("draft", "tiny"),)] == 480


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("hub_busy_seconds_total", "busy_s"),
        ("hub_ahead_seconds_total", "ahead_s"),
        ("hub_ahead_nodes_total", "num_ahead_nodes"),
        ("hub_wasted_nodes_total", "num_wasted_nodes"),
        ("hub_saved_seconds_total", "saved_s"),
        ("hub_outcomes_total", "num_outcomes"),
        ("hub_hits_total", "num_hits"),
        ("hub_draft_steps_total", "num_draft_steps"),
        ("hub_proposals_total", "num_proposals"),
        ("hub_draft_tokens_total", "num_draft_tokens"),
        ("hub_declined_tags_total", "num_declined"),
        ("hub_rationed_requests_total", "num_rationed"),
        ("hub_cut_proposals_total", "num_cut"),
        ("hub_evictions_total", "num_evictions"),
        ("hub_frames_rejected_total", "num_frames_rejected"),
        ("hub_leases_expired_total", "num_leases_expired"),
        ("hub_handshakes_refused_total", "num_refused"),
        ("hub_messages_dropped_total", "num_dropped"),
        ("hub_targets", "num_targets"),
        ("hub_waiting", "num_waiting"),
        ("hub_max_batch", "max_batch"),
        ("hub_proposals_per_second", "proposals_per_s"),
        ("hub_rows_leased", "num_rows_leased"),
        ("hub_rows_free", "num_rows_free"),
        ("hub_row_fill", "row_fill"),
        ("hub_admitted", "num_admitted"),
        ("hub_idle_per_request_seconds", "idle_per_request_s"),
        ("hub_n_full", "num_full"),
        ("hub_n_max", "num_max"),
        ("hub_fairness", "fairness"),
    ],
)
def test_each_number_of_the_hub_is_exposed_under_its_name_alone(metric: str, field: str) -> None:
    without, with_it = (
        scrape(StatusSnapshot(hub=HubStatus("tiny", stats))) for stats in (HubStats(), HubStats(**{field: 7}))
    )
    changed = {key: with_it[key] for key in with_it if with_it[key] != without[key]}
    assert changed == {(f"starspec_{metric}", (("draft", "tiny"),)): 7}


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("hub_t_s_seconds", "t_s"),
        ("hub_service_seconds", "service"),
        ("hub_queue_seconds", "queue"),
        ("hub_sequences_per_step", "sequences_per_step"),
    ],
)
def test_each_mean_of_the_hub_is_exposed_under_its_name_alone(metric: str, field: str) -> None:
    stats = HubStats()
    without = scrape(StatusSnapshot(hub=HubStatus("tiny", stats)))
    getattr(stats, field).add(7.0)
    with_it = scrape(StatusSnapshot(hub=HubStatus("tiny", stats)))
    changed = {key: with_it[key] for key in with_it if with_it[key] != without[key]}
    assert changed == {(f"starspec_{metric}", (("draft", "tiny"),)): 7}


def test_a_scrape_asks_for_a_fresh_snapshot() -> None:
    status = target("a", [(4, 2)])
    registry = registry_of(lambda: StatusSnapshot((status,)))
    before = generate_latest(registry)
    status.stats.acceptance.add_round(4, 3, 4)
    assert generate_latest(registry) != before


def in_stages() -> TargetStatus:
    """A target after two rounds, whose second stage is a spare that took its place."""
    status = target("a", [(4, 2), (4, 4)])
    first = StageStats(endpoint="tcp://a:1", layers="0:2", index=0, is_attached=True, compute_s=1.5, num_bytes=100)
    last = StageStats(endpoint="tcp://c:1", layers="2:4", index=1, is_attached=True, wait_s=0.5, num_hidden_bytes=60)
    lost = StageStats(endpoint="tcp://b:1", layers="2:4")
    pipe = PipeStats(stages=[first, last, lost], depth=2, num_traversals=4, num_landing_bytes=20, num_losses=1)
    status.stats.pipe = pipe
    status.stats.num_ahead_windows, status.stats.num_stale_windows = 6, 5
    return status


def test_stages_have_samples_by_their_place_and_spares_have_none() -> None:
    read = scrape(StatusSnapshot((in_stages(), target("b", [(3, 0)]))))
    a = (("target", "a"),)
    assert read["starspec_pipe_traversals_total", a] == 4
    assert read["starspec_pipe_traversals_per_token", a] == 0.5  # 3 + 5 tokens
    assert read["starspec_pipe_bytes_per_token", a] == 15.0
    assert read["starspec_pipe_ahead_windows_total", a] == 6
    assert read["starspec_pipe_stale_windows_total", a] == 5
    assert read["starspec_stage_compute_seconds_total", (("stage", "0"), *a)] == 1.5
    assert read["starspec_stage_wait_seconds_total", (("stage", "1"), *a)] == 0.5
    assert {labels for name, labels in read if name == "starspec_stage_attached"} == {
        (("stage", "0"), *a),
        (("stage", "1"), *a),
    }
    assert ("starspec_pipe_traversals_total", (("target", "b"),)) not in read


def test_the_page_about_stages_names_the_metrics_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sharded.md").read_text(encoding="utf-8")
    told: set[str] = set()
    for row in re.findall(r"^\| `starspec_.*$", page, re.MULTILINE):
        names = re.findall(r"`(starspec_\w+)`", row)
        begins = "_".join(names[0].split("_")[:2])
        told |= {*names, *(begins + each for each in re.findall(r"`\.\.\.(_\w+)`", row))}
    there = {name for name, _ in scrape(StatusSnapshot((in_stages(),)))}
    assert told == {each for each in there if each.startswith(("starspec_pipe_", "starspec_stage_"))}


def test_a_dashboard_is_told_of_stages_and_spares() -> None:
    status = in_stages()
    assert [(each.index, each.layers, each.state) for each in stage_views(status)] == [
        (0, "0:2", "attached"),
        (1, "2:4", "attached"),
        (None, "2:4", "spare, away"),
    ]
    assert stage_views(status)[0].metrics["stage_compute_seconds"] == 1.5
    assert target_metrics(status)["pipe_depth"] == 2
    assert stage_views(target("b", [])) == []
