"""A real star, and Chromium that looks at its dashboard. `make test-browser` installs what is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `stages`

TARGET = "synthetic:vocab=256,step_ms=20,alpha=0.8"
DRAFT = f"{TARGET},role=draft".replace("step_ms=20", "step_ms=2")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
LIMIT_S = 90.0


def until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait for something that another process brings about. Returns: what `holds` returned."""
    deadline_s, pause = time.monotonic() + limit_s, threading.Event()
    while not (result := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not happen within {limit_s} s"
        pause.wait(0.05)
    return result


@dataclass
class RunningStar:
    """`starspec up`, while it runs."""

    process: psutil.Popen
    url: str
    model: str

    def hub(self) -> psutil.Process | None:
        return next(iter(self.children("draft")), None)

    def children(self, command: str) -> list[psutil.Process]:
        """Those that run this command, in the order of their starts."""
        return [each for each in self.process.children() if each.cmdline()[-3:-1] == ["child", command]]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=LIMIT_S, trust_env=False)

    def ask(self, **fields: object) -> dict[str, Any]:
        body = {"prompt": "bipa bigu", "max_tokens": 40, "temperature": 0, "return_token_ids": True, **fields}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=LIMIT_S, trust_env=False)
        assert response.status_code == 200, response.text
        return dict(response.json())


@contextmanager
def start_star(folder: Path, *arguments: str) -> Iterator[RunningStar]:
    """`starspec up` with these arguments, until the block ends."""
    log, ready_file = folder / "up.log", folder / "ready.json"
    command = [sys.executable, "-m", "starspec", "up", "--port", "0", "--ready-file", str(ready_file), *arguments]
    with log.open("wb") as output:
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: ready_file.is_file() or process.poll() is not None, "ready")
        assert process.poll() is None, log.read_text()
        url = json.loads(ready_file.read_text())["gateway"]
        (model,) = httpx.get(f"{url}/v1/models", timeout=LIMIT_S, trust_env=False).json()["data"]
        yield RunningStar(process, url, model["id"])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)


@pytest.fixture(scope="session")
def star(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStar]:
    arguments = ("--target", TARGET, "--draft", DRAFT, "--served-model-name", "toy")
    with start_star(tmp_path_factory.mktemp("star"), *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def star_in_stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStar]:
    """One target, whose four layers are two stages, without drafts."""
    from stages import saved

    folder = saved("llama", tmp_path_factory.mktemp("models") / "tiny")
    arguments = ("--target", str(folder), "--targets", "1", "--stages", "2", "--dtype", "float32")
    with start_star(tmp_path_factory.mktemp("cut"), *arguments, "--max-model-len", "100") as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages. A test fails if one of them has written an error to its console.

    `refuses` of a page: it may be told that it needs a key.
    """
    contexts, errors = [], []

    def open_at(url: str, *, refuses: bool = False, **settings: Any) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **settings}
        )
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()

        def note(message: Any) -> None:
            if message.type in ("error", "warning") and not (refuses and "401" in message.text):
                errors.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{url}/dashboard")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert not errors
