"""schemathesis makes requests out of the gateway's own OpenAPI description. `make test-fuzz` installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(3600)]

NUM_CASES = int(os.environ.get("CASES", "3000"))  # at least so many, over all operations
LIMIT_S = 240.0
RIGHT: dict[str, Any] = {
    "prompt": "hi",
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "draft_token_ids": [1, 2],
    "tokens": [1, 2],
    "max_tokens": 5,
}
TEMPLATE = (
    '{% if tools %}{{ tools | tojson }} as <tool_call>{"name", "arguments"}</tool_call>{% endif %}'
    "{% for message in messages %}{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for something that another process brings about. Returns: what `holds` returned."""
    deadline_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not (result := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not happen within {LIMIT_S} s"
        pause.wait(0.05)
    return result


@pytest.fixture(scope="module")
def url(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A star of a tiny model, with a chat template and tools."""
    folder = tmp_path_factory.mktemp("star")
    model = folder / "tiny"
    shutil.copytree(byte_model, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    command = [sys.executable, "-m", "starspec", "up", str(model), "--port", "0", "--targets", "1"]
    command += ["--spec-method", "ngram", "--dtype", "float32", "--max-model-len", "96"]
    with (folder / "up.log").open("wb") as log:
        ready_file = folder / "ready.json"
        star = psutil.Popen([*command, "--ready-file", str(ready_file)], stdout=log, stderr=subprocess.STDOUT)
        try:
            until(lambda: ready_file.is_file() or star.poll() is not None, "ready")
            assert star.poll() is None, (folder / "up.log").read_text()
            children = star.children(recursive=True)
            yield str(json.loads(ready_file.read_text())["gateway"])
            assert star.children(recursive=True) == children  # none of them has died
        finally:
            star.terminate()
            star.wait(LIMIT_S)
    assert "Traceback" not in (folder / "up.log").read_text()


def free_rows(url: str) -> tuple[int, int]:
    """Cache rows that are free at the target, and all of them."""
    [target] = httpx.get(f"{url}/dashboard/state", trust_env=False).json()["star"]["targets"]
    return target["status"]["num_free_rows"], target["status"]["num_rows"]


def described(url: str) -> dict[str, dict[str, Any]]:
    """The schema of each operation's body."""
    description = httpx.get(f"{url}/openapi.json", trust_env=False).json()
    found = {}
    for path, methods in description["paths"].items():
        if content := methods.get("post", {}).get("requestBody", {}).get("content"):
            name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
            found[f"POST {path}"] = description["components"]["schemas"][name]
    return found


def tamed(body: Any, schema: dict[str, Any], kept: set[int]) -> Any:
    """A body that would be answered, and a few fields of another one: so more cases get that far."""
    known = [name for name in schema["properties"] if name != "model"]
    kept_names = {known[each % len(known)] for each in kept}
    given = body if isinstance(body, dict) else {}
    right = {name: value for name, value in RIGHT.items() if name in known}
    if "prompt" in right:
        right.pop("messages", None)  # /tokenize takes either
    return right | {name: value for name, value in given.items() if name in kept_names}


def test_whatever_the_description_allows_or_not_the_gateway_answers_and_no_row_leaks(url: str) -> None:
    import schemathesis

    operations = schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()
    schemas = described(url)
    statuses: Counter[tuple[str, int]] = Counter()
    for operation in (each.ok() for each in operations):
        schema = schemas.get(operation.label)
        asks(operation, schema, -(-NUM_CASES // len(schemas)) if schema else 20, statuses)
    print(*sorted(statuses.items()), sep="\n")  # noqa: T201 (for whoever reads the run)
    assert sum(number for (label, _), number in statuses.items() if label in schemas) >= NUM_CASES
    for label in schemas:
        assert statuses[label, 200], f"no case of {label} was answered"
    until(lambda: free_rows(url)[0] == free_rows(url)[1], "all rows free")


def asks(operation: Any, schema: dict[str, Any] | None, num_cases: int, statuses: Counter[tuple[str, int]]) -> None:
    """Ask so many cases of one operation. Effects: counts the statuses."""

    @settings(
        max_examples=num_cases,
        phases=[Phase.generate],
        derandomize=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), kept=st.none() | st.sets(st.integers(0, 40), max_size=4))
    def ask(case: Any, kept: set[int] | None) -> None:
        if schema is not None and kept is not None:
            case.body = tamed(case.body, schema, kept)
        reply = case.call(timeout=LIMIT_S)
        statuses[operation.label, reply.status_code] += 1
        assert reply.status_code < 500 or reply.status_code == 503, (case.as_curl_command(), reply.text)

    ask()
