"""Several models behind one gateway: a request goes to the targets that announce its model, and to no others."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.gateway.checks import named
from starspec.gateway.served_model import load_served_models

SERVES = {"t0": "toy-model", "t1": "other", "t2": "other"}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def other_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(model_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25}))
    return folder


@pytest.fixture
def make_target(make_target: Callable[[str], Any]) -> Callable[[str], Any]:
    def make(name: str) -> Any:
        target = make_target(name)
        target.model = SERVES[name]
        return target

    return make


@pytest.fixture
async def both(start_gateway: Any, other_folder: Path) -> Any:
    return await start_gateway(num_targets=3, also=(f"second={other_folder}",))


def num_submitted(gateway: Any) -> list[int]:
    return [len(target.submitted) for target in gateway.targets]


async def test_all_models_are_listed(both: Any) -> None:
    listed = await both.client.models.list()
    assert [model.id for model in listed.data] == ["toy-model", "second"]
    assert (await both.client.models.retrieve("second")).id == "second"
    assert (await both.http.get("/dashboard/state")).json()["star"]["models"] == ["toy-model", "second"]


async def test_a_request_goes_to_a_target_of_its_model_and_the_reply_names_it(both: Any) -> None:
    for _ in range(4):
        reply = await both.client.chat.completions.create(model="second", messages=[USER])
        assert reply.model == "second"
    assert num_submitted(both) == [0, 2, 2]
    (spec, _) = both.targets[1].submitted.values()
    assert spec.sampling.temperature == 0.25  # its own defaults
    reply = await both.client.completions.create(model="toy-model", prompt="hi")
    assert reply.model == "toy-model"
    assert num_submitted(both) == [1, 2, 2]


async def test_a_request_that_names_no_model_gets_the_first(both: Any) -> None:
    assert (await both.post("/v1/completions", prompt="hi")).json()["model"] == "toy-model"
    assert num_submitted(both) == [1, 0, 0]


async def test_an_unknown_model_is_a_404_with_the_names_there_are(both: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist; this server has 'toy-model', 'second'"):
        await both.client.chat.completions.create(model="gpt", messages=[USER])
    with pytest.raises(openai.NotFoundError, match=r"has 'toy-model', 'second'; did you mean 'second'\?"):
        await both.client.models.retrieve("secnd")


async def test_a_model_without_a_target_is_a_503_and_the_others_answer(both: Any) -> None:
    for target in both.targets[1:]:
        target.lose()
    await both.healthy(1)
    health = (await both.http.get("/health")).json()
    assert (health["status"], health["models"]) == ("degraded", {"toy-model": 1, "second": 0})
    assert [target["model"] for target in health["targets"]] == ["toy-model", "other", "other"]
    reply = await both.post("/v1/completions", model="second", prompt="hi")
    assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
    assert (await both.post("/v1/completions", model="toy-model", prompt="hi")).status_code == 200
    said = [(await both.http.get(f"/v1/models{of}")).status_code for of in ("", "/toy-model", "/second")]
    assert said == [200, 200, 503]


async def test_a_model_without_a_target_is_not_listed_until_it_has_one(both: Any) -> None:
    for target in both.targets[1:]:
        target.is_answering = False
    assert [each["id"] for each in (await both.http.get("/v1/models")).json()["data"]] == ["toy-model"]
    assert (await both.http.get("/v1/models/toy-model")).status_code == 200
    gone = await both.http.get("/v1/models/second")
    assert (gone.status_code, gone.json()["error"]["message"]) == (503, "no target can answer")
    both.targets[2].is_answering = True
    assert [each["id"] for each in (await both.http.get("/v1/models")).json()["data"]] == ["toy-model", "second"]


async def test_the_answer_of_a_lost_target_goes_to_another_of_the_same_model(both: Any) -> None:
    for target in both.targets:
        target.script = None
    asking = asyncio.create_task(both.post("/v1/completions", model="second", prompt="hi"))
    first = both.targets[1]
    await first.until(lambda: first.open)
    first.lose()
    second = both.targets[2]
    await second.until(lambda: second.open)
    [request_id] = second.open
    second.emit(request_id, "done", finish="stop")
    assert (await asking).json()["choices"][0]["text"] == "done"
    assert num_submitted(both) == [0, 1, 1]


async def test_metrics_say_which_model_a_target_serves(both: Any) -> None:
    text = (await both.http.get("/metrics")).text
    for name, model in SERVES.items():
        assert f'starspec_target_info{{model="{model}",target="{name}"}} 1.0' in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a/b", (None, "a/b")),
        ("name=a/b", ("name", "a/b")),
        ("synthetic:vocab=256", (None, "synthetic:vocab=256")),
        ("name=synthetic:vocab=256", ("name", "synthetic:vocab=256")),
        ("./a=b", (None, "./a=b")),
    ],
)
def test_a_name_stands_in_front_of_a_model(given: str, expected: tuple[str | None, str]) -> None:
    assert named(given) == expected


def test_two_models_of_one_name_are_refused(model_folder: Path, other_folder: Path) -> None:
    config = GatewayConfig(model=str(model_folder), also=(f"toy-model={other_folder}",))
    with pytest.raises(ConfigError, match="different names in the API, and have toy-model, toy-model"):
        load_served_models(config)
    config = GatewayConfig(model=str(model_folder), also=(f"second={model_folder}",))
    with pytest.raises(ConfigError, match="different names that targets announce"):
        load_served_models(config)
