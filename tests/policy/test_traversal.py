"""DSD's equations against sums made by hand, what is wrong with them, and ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.traversal import PaperPipeline, Pipeline, StageTime, expected_tokens

HUMAN_EVAL = 3.855  # DSD's Table 2: average length, gamma 8
FOUR = PaperPipeline(num_nodes=4, compute_s=1.0, link_s=3.0)  # N = 4, t_1 = 3 t_0


def test_the_papers_equations_are_those_that_are_printed() -> None:
    paper = PaperPipeline(num_nodes=3, compute_s=0.010, link_s=0.050)
    assert paper.advance(4) == 4  # eq. 2
    assert paper.standard_s(4) == pytest.approx(0.440)  # 4 x (10 + 2 x 50) ms
    assert paper.speculative_s(4) == pytest.approx(0.140)  # 4 x 10 + 2 x 50 ms
    assert paper.reduction(4) == pytest.approx(300 / 440)  # eq. 5's right side: 2 x 50 x 3 / (4 x (10 + 2 x 50))
    assert paper.speedup(4, 7) == pytest.approx(110 / 45)  # rho = 1/2: 110 / (10 x 2 + 100 / 4)


@given(st.integers(2, 16), st.floats(1e-3, 1.0), st.floats(0.0, 1.0), st.floats(1.0, 16.0))
def test_both_sides_of_equation_5_agree(num_nodes: int, compute_s: float, link_s: float, k: float) -> None:
    paper = PaperPipeline(num_nodes=num_nodes, compute_s=compute_s, link_s=link_s)
    links_s = (num_nodes - 1) * link_s
    right = links_s * (k - 1) / (k * (compute_s + links_s))
    assert paper.reduction(k) == pytest.approx(right, abs=1e-9)


def test_equations_4_and_9_disagree() -> None:
    """38.55 / 12.855, and 10 / (9 / 3.855 + 9 / 3.855)."""
    assert FOUR.speedup_by_time(HUMAN_EVAL) == pytest.approx(2.999, abs=5e-4)
    assert FOUR.speedup(HUMAN_EVAL, 8) == pytest.approx(2.142, abs=5e-4)


def test_r_comm_is_a_share_of_all_time() -> None:
    """Communication itself shrinks by (k - 1) / k, also where computing takes most of the time."""
    slow = PaperPipeline(num_nodes=4, compute_s=1.0, link_s=0.01)
    assert slow.reduction(4) == pytest.approx(0.0218, abs=5e-5)
    pipeline = Pipeline.even(4, StageTime(one_s=0.25), 0.01)
    assert pipeline.communication_reduction(4) == 0.75


def test_37_percent_at_eight_nodes_does_not_follow() -> None:
    """In the paper's own range, t_1 = 3 to 10 t_0, the equation gives 71 to 73%; 37% needs t_1 = t_0 / 7."""

    def reduction(link_s: float) -> float:
        return PaperPipeline(num_nodes=8, compute_s=1.0, link_s=link_s).reduction(HUMAN_EVAL)

    assert [round(reduction(link_s), 2) for link_s in (3.0, 10.0)] == [0.71, 0.73]
    assert reduction(1 / 7) == pytest.approx(0.37, abs=0.001)


THREE = Pipeline(
    stages=[StageTime(one_s=0.010, further_s=0.001), StageTime(one_s=0.020), StageTime(one_s=0.005)],
    hops_s=[0.040, 0.050],
    return_s=0.060,
)


def test_equation_9_gives_the_speed_up_of_the_papers_table_with_links_of_5_t0() -> None:
    """2.57x; Table 2 has 2.56x on HumanEval. Which links were there is not said."""
    assert PaperPipeline(num_nodes=4, compute_s=1.0, link_s=5.0).speedup(3.86, 8) == pytest.approx(2.573, abs=5e-4)


def test_a_traversal_is_the_sum_of_stages_links_and_the_way_back() -> None:
    assert THREE.links_s == pytest.approx(0.150)
    assert THREE.traversal_s(1) == pytest.approx(0.185)
    assert THREE.traversal_s(5) == pytest.approx(0.189)  # four further positions at the first stage
    assert THREE.round_s(4, draft_s=0.008) == pytest.approx(0.197)
    assert THREE.bottleneck_s(5) == 0.020
    assert THREE.speedup(3.0, 4, draft_s=0.008) == pytest.approx(3 * 185 / 197)


def test_the_pipe_is_full_when_the_slowest_stage_is_never_idle() -> None:
    assert THREE.interval_s(4, 1) == pytest.approx(0.189)
    assert THREE.interval_s(4, 3) == pytest.approx(0.063)
    assert THREE.interval_s(4, 9) == pytest.approx(0.021)
    assert THREE.interval_s(4, 10) == THREE.interval_s(4, 99) == 0.020  # 189 / 20 is less than 10
    assert THREE.interval_s(4, 99, draft_s=0.030) == 0.030  # the draft is slower than the slowest stage


def test_our_time_with_the_papers_omissions_is_the_papers_without_drafts() -> None:
    """t_0 is the sum of all stages, and no link leads back: then a plain token takes what equation 3 says."""
    ours = Pipeline(stages=[StageTime(one_s=0.25)] * 4, hops_s=[3.0] * 3, return_s=0.0)
    assert ours.traversal_s(1) == FOUR.standard_s(1)
    assert ours.speedup(HUMAN_EVAL, 8) == pytest.approx(HUMAN_EVAL)  # one forward costs the same for any gamma


@pytest.mark.parametrize(("alpha", "num_draft_tokens", "tokens"), [(0.5, 2, 1.75), (0.0, 4, 1.0), (0.8, 1, 1.8)])
def test_tokens_of_a_round_include_the_targets_own(alpha: float, num_draft_tokens: int, tokens: float) -> None:
    assert expected_tokens(alpha, num_draft_tokens) == pytest.approx(tokens)


def test_windows_in_flight_by_hand() -> None:
    """One draft token a window, alpha 1/2: a quarter of the windows go on, 3/2 tokens a window."""
    pipeline = Pipeline.even(2, StageTime(one_s=0.1), 0.4)  # a round takes 1 s
    assert pipeline.tokens_per_s(0.5, 1, depth=1) == pytest.approx(1.5)
    assert pipeline.tokens_per_s(0.5, 1, depth=10) == pytest.approx(1.5 / (0.25 * 0.1 + 0.75 * 1.0))


@given(st.floats(0.0, 0.95), st.integers(0, 16), st.integers(1, 64), st.floats(0.0, 0.3))
def test_no_depth_and_length_beat_the_bound_and_depth_1_is_synchronous(
    alpha: float, num_draft_tokens: int, depth: int, draft_s: float
) -> None:
    pipeline = Pipeline.even(4, StageTime(one_s=0.01, further_s=0.001), 0.05)
    rate = pipeline.tokens_per_s(alpha, num_draft_tokens, depth, draft_s)
    synchronous = expected_tokens(alpha, num_draft_tokens) / pipeline.round_s(num_draft_tokens, draft_s)
    assert pipeline.tokens_per_s(alpha, num_draft_tokens, 1, draft_s) == pytest.approx(synchronous)
    assert synchronous * (1 - 1e-9) <= rate
    assert rate <= pipeline.most_tokens_per_s(alpha) * (1 + 1e-9)


@pytest.mark.parametrize(("draft_s", "bound", "flight", "against_4"), [(0.0, 1.0, 1.0, 1.49), (1.0, 1.54, 1.27, 1.44)])
def test_one_chain_in_flight_gains_little_over_the_best_synchronous_length(
    draft_s: float, bound: float, flight: float, against_4: float
) -> None:
    """The figures of docs/papers.md: alpha 0.8, four stages of one second, links of five."""
    pipeline = Pipeline.even(4, StageTime(one_s=1.0), 5.0)
    lengths = range(33)
    synchronous = max(pipeline.tokens_per_s(0.8, each, 1, each * draft_s) for each in lengths)
    in_flight = max(pipeline.tokens_per_s(0.8, each, 99, (each + 1) * draft_s) for each in lengths)
    assert pipeline.most_tokens_per_s(0.8) / synchronous == pytest.approx(bound, abs=0.005)
    assert in_flight / synchronous == pytest.approx(flight, abs=0.005)
    assert in_flight / pipeline.tokens_per_s(0.8, 4, 1, 4 * draft_s) == pytest.approx(against_4, abs=0.005)
