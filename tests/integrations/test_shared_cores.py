"""Whoever starts vLLM on its hub's cores is told what to set, and nobody else is."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from toy_sampler import add_sampler

from starspec.integrations.vllm.cpu_sampler import expand_batch_to_tokens
from starspec.integrations.vllm.shared_cores import advise

HERE, ELSEWHERE = "tcp://127.0.0.1:7700", "tcp://10.0.0.1:7700"
SET = {"OMP_WAIT_POLICY": "PASSIVE"}


def test_the_variables_are_named(vllm_config: Any) -> None:
    with capture_logs() as logs:
        assert advise(HERE, {})
    (line,) = logs
    assert line["variables"] == "OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=20000"


@pytest.mark.parametrize(("hub", "environ", "is_cpu"), [(ELSEWHERE, {}, True), (HERE, SET, True), (HERE, {}, False)])
def test_where_nothing_is_amiss_nothing_is_said(
    hub: str, environ: dict[str, str], is_cpu: bool, vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_sampler(monkeypatch, expand_batch_to_tokens, is_cpu)
    with capture_logs() as logs:
        assert not advise(hub, environ)
    assert logs == []
