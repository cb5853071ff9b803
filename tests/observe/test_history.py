"""The history of a star is bounded, and keeps its places when targets come and go."""

from __future__ import annotations

import math

from starspec.observe.history import NUM_SAMPLES, Recorder
from starspec.observe.view import HubView, StarView, TargetView


def view(time_s: float, *tokens_per_s: float | None, load: float | None = None) -> StarView:
    """A star whose targets emit so much; None = not connected."""
    return StarView(
        time_s=time_s,
        models=["toy"],
        version="1",
        is_ready=True,
        shows_text=False,
        targets=[
            TargetView(
                name=f"t{number}",
                state="ready",
                for_s=1.0,
                metrics={} if speed is None else {"tokens_per_second": speed, "cache_rows": 8.0},
            )
            for number, speed in enumerate(tokens_per_s)
        ],
        hubs=[] if load is None else [HubView(name="hub", state="connected", for_s=1.0, metrics={"hub_load": load})],
        requests=[],
        events=[],
    )


def test_a_sample_is_kept_each_second_and_old_ones_go() -> None:
    recorder = Recorder()
    for half_second in range(2 * (NUM_SAMPLES + 50)):
        recorder.add(view(half_second / 2, half_second / 2, load=0.5))
    history = recorder.history()
    times = history["times_s"]
    assert times == [float(second) for second in range(50, NUM_SAMPLES + 50)]
    assert history["targets"][0]["tokens_per_second"] == times
    assert history["hubs"][0]["hub_load"] == [0.5] * NUM_SAMPLES
    assert all(len(column) == NUM_SAMPLES for column in history["targets"][0].values())


def test_a_target_that_is_gone_leaves_a_gap() -> None:
    recorder = Recorder()
    for second, speed in enumerate((10.0, None, 30.0)):
        recorder.add(view(second, 5.0, speed))
    first, second = (columns["tokens_per_second"] for columns in recorder.history()["targets"])
    assert first == [5.0, 5.0, 5.0]
    assert (second[0], math.isnan(second[1]), second[2]) == (10.0, True, 30.0)


def test_only_what_charts_show_is_kept() -> None:
    recorder = Recorder()
    recorder.add(view(0.0, 5.0))
    assert "cache_rows" not in recorder.history()["targets"][0]
