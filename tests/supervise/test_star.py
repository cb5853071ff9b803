"""The processes of a star: what each is told, and that they fit together."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from starspec.config import (
    SERVERS,
    BatchingConfig,
    GatewayConfig,
    HubConfig,
    ModelConfig,
    RemoteConfig,
    SpeculativeConfig,
    TargetConfig,
)
from starspec.draft_methods import DRAFT_METHODS, DraftMethod
from starspec.errors import ConfigError
from starspec.supervise.child import ChildSpec
from starspec.supervise.star import StarConfig, StarPorts, child_environment, star_specs

PORTS = StarPorts(hub=1001, targets=(1002, 1003), gateway=1004)
SELF_DRAFT = SpeculativeConfig(model="toy", quantization="int4", num_speculative_tokens=5)


def star(**fields: object) -> StarConfig:
    values: dict[str, Any] = {
        "model": ModelConfig(model="toy"),
        "num_targets": 2,
        "target": TargetConfig(),
        "speculative": SELF_DRAFT,
        "draft": ModelConfig(model=""),
        "gateway": GatewayConfig(port=1004),
        "log_level": "info",
    }
    return StarConfig(**{**values, **fields})


def specs(config: StarConfig) -> dict[str, ChildSpec]:
    return {spec.name: spec for spec in star_specs(config, PORTS, {}, num_cores=4)}


def told(spec: ChildSpec) -> Any:
    """The config that a child reads."""
    return msgspec.json.decode(spec.stdin, type=SERVERS[spec.command[5]])


def test_a_star_is_a_hub_its_targets_and_a_gateway() -> None:
    assert list(specs(star())) == ["hub", "target-0", "target-1", "gateway"]


def test_all_processes_write_one_audit_log_also_without_a_draft() -> None:
    audited = {"target": TargetConfig(audit_log="a"), "hub": HubConfig(audit_log="a")}
    children = specs(star(**audited))
    logs = [told(children["hub"]).hub.audit_log, told(children["target-1"]).target.audit_log]
    assert [*logs, told(children["gateway"]).gateway.audit_log] == ["a"] * 3
    assert told(specs(star(**audited, speculative=None))["gateway"]).gateway.audit_log == "a"


def test_a_process_list_shows_what_a_child_is_and_no_secret() -> None:
    children = specs(star(gateway=GatewayConfig(api_key="secret")))
    assert [spec.command[4:] for spec in children.values()] == [
        ("child", "draft", "hub"),
        ("child", "target", "target-0"),
        ("child", "target", "target-1"),
        ("child", "gateway", "gateway"),
    ]
    assert told(children["gateway"]).gateway.api_key == "secret"


def test_the_targets_are_told_where_the_hub_listens() -> None:
    children = specs(star())
    hub = f"tcp://127.0.0.1:{told(children['hub']).hub.port}"
    assert {told(children[name]).speculative.remote.endpoint for name in ("target-0", "target-1")} == {hub}
    assert told(children["gateway"]).gateway.hub == hub


def test_the_gateway_is_told_where_the_targets_listen() -> None:
    children = specs(star())
    endpoints = told(children["gateway"]).gateway.targets
    assert endpoints == tuple(f"tcp://127.0.0.1:{told(children[f'target-{n}']).target.port}" for n in (0, 1))


def test_only_the_hub_loads_the_draft() -> None:
    children = specs(star())
    hub, target = told(children["hub"]), told(children["target-0"])
    assert (hub.draft.model, hub.draft.quantization, hub.speculative.quantization) == ("toy", "int4", "int4")
    assert (target.speculative.model, target.speculative.quantization) == (None, "none")


@pytest.mark.parametrize("said", [{"num_steps": 3, "eagle_topk": 2}, {"num_steps": 7}, {"num_speculative_tokens": 7}])
def test_all_read_the_draft_that_was_asked_for(said: dict[str, int]) -> None:
    speculative = SpeculativeConfig.from_mapping({"model": "toy", **said})
    children = specs(star(speculative=speculative))
    for name in ("hub", "target-0"):
        assert told(children[name]).speculative.budget == speculative.budget


@pytest.mark.parametrize("method", get_args(DraftMethod))
def test_the_targets_take_the_length_policies_that_fit_the_drafts(method: DraftMethod) -> None:
    model = "toy" if DRAFT_METHODS[method].needs_model else None
    speculative = SpeculativeConfig(method=method, model=model)
    target = told(specs(star(speculative=speculative))["target-0"])
    assert target.speculative.request_policies.keys() == speculative.request_policies.keys()
    assert ("dsde" in target.speculative.request_policies) == (method != "ngram")


def test_the_hub_is_told_whose_vocabulary_it_has_to_share() -> None:
    assert told(specs(star())["hub"]).target == "toy"


def test_the_draft_may_have_threads_of_its_own() -> None:
    model = replace(star().model, num_threads=2)
    children = specs(star(model=model, draft=ModelConfig(model="", num_threads=1)))
    assert told(children["hub"]).draft.num_threads == 1
    assert told(children["target-0"]).model.num_threads == 2


def test_without_a_draft_there_is_no_hub() -> None:
    children = specs(star(speculative=None))
    assert list(children) == ["target-0", "target-1", "gateway"]
    assert told(children["target-0"]).speculative is None


def test_the_targets_are_told_how_to_batch() -> None:
    batching = BatchingConfig(method="exspec", window=12, max_passed_over=None)
    children = specs(star(target=TargetConfig(batching=batching)))
    for name in ("target-0", "target-1"):
        assert told(children[name]).target.batching == batching
    assert told(specs(star())["target-0"]).target.batching.window is None


def test_the_targets_are_told_whether_requests_may_be_relaxed() -> None:
    allowing = star(target=TargetConfig(allow_relaxed=True, relaxed_thresholds="t.json"))
    target = told(specs(allowing)["target-1"]).target
    assert (target.allow_relaxed, target.relaxed_thresholds) == (True, "t.json")
    with pytest.raises(ConfigError, match="method 'ngram' has none"):
        star(target=TargetConfig(allow_relaxed=True), speculative=SpeculativeConfig(method="ngram"))


def test_whoever_is_asked_for_work_stops_first() -> None:
    children = specs(star())
    assert children["gateway"].stop_stage < children["target-0"].stop_stage < children["hub"].stop_stage


def test_the_star_goes_on_without_its_hub_alone() -> None:
    assert [name for name, spec in specs(star()).items() if not spec.is_essential] == ["hub"]


def test_each_process_with_a_model_writes_its_own_trace(tmp_path: Path) -> None:
    children = specs(star(trace_folder=tmp_path))
    parts = {told(spec).process.trace_file for name, spec in children.items() if name != "gateway"}
    assert len(parts - {None}) == 3


@pytest.mark.parametrize(
    "remote",
    [RemoteConfig(endpoint="tcp://10.0.0.1:7700"), RemoteConfig(keys="keys/"), RemoteConfig(insecure=True)],
    ids=str,
)
def test_a_hub_elsewhere_is_refused(remote: RemoteConfig) -> None:
    elsewhere = SpeculativeConfig(remote=remote)
    with pytest.raises(ConfigError, match=r"starts its own"):
        star(speculative=elsewhere)


@pytest.mark.parametrize(("num_cores", "num_busy", "threads"), [(2, 2, "1"), (16, 2, "8"), (2, 5, "1"), (2, 1, "2")])
def test_cores_are_shared_among_the_busy(num_cores: int, num_busy: int, threads: str) -> None:
    assert child_environment({}, num_cores, num_busy)["OMP_NUM_THREADS"] == threads


def test_the_operators_environment_wins() -> None:
    assert child_environment({"OMP_NUM_THREADS": "7"}, 2, 2)["OMP_NUM_THREADS"] == "7"


def test_the_hub_is_told_its_policies() -> None:
    hub = HubConfig(
        run_ahead="auto",
        share_prefixes="hub",
        max_batch=4,
        admission="n_max",
        weights={"target-0": 3.0, "target-1": 0.5},
        slo_round_ms={"target-1": 40.0},
        rate_limits={"target-0": 1e3},
    )
    child = told(specs(star(hub=hub, draft=ModelConfig(model="", kv_budget_bytes=2**20)))["hub"])
    assert replace(child.hub, port=hub.port) == hub
    assert child.draft.kv_budget_bytes == 2**20


def test_the_hub_takes_as_many_tags_and_targets_as_the_star_can_have() -> None:
    ports = replace(PORTS, targets=tuple(range(2000, 2080)))
    for num_targets, num_seqs, limits in ((2, 8, (1024, 64)), (80, 32, (2560, 80))):
        config = star(num_targets=num_targets, target=TargetConfig(max_num_seqs=num_seqs))
        hub, *_ = star_specs(config, ports, {}, num_cores=4)
        assert (told(hub).hub.max_tags, told(hub).hub.max_targets) == limits


def test_policies_of_targets_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="no target 'target-2' in this star; did you mean 'target-"):
        star(hub=HubConfig(rate_limits={"target-2": 5.0}))
    with pytest.raises(ConfigError, match="options of the draft server need one"):
        star(speculative=None, hub=HubConfig(run_ahead="auto"))
