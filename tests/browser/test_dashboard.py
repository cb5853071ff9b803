"""The dashboard in a real Chromium: it shows what /metrics says, at once, without an error, and to everybody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

REFRESH_S = 0.5
SEEN_S = 2.0  # what happens is seen within
OF_TARGETS: dict[str, Callable[[float], str]] = {  # how the page writes a metric of a target
    "tokens_per_second": "{:.1f}".format,
    "plain_tokens_per_second": lambda value: f"{value:.1f}" if value else "–",
    "block_efficiency": "{:.2f}".format,
    "acceptance_length": "{:.2f}".format,
    "acceptance_rate": lambda value: f"{value * 100:.0f}%",
    "wait_seconds": lambda value: f"{value * 1e3:.1f} ms",
    "t_v_seconds": lambda value: f"{value * 1e3:.1f} ms",
    "generation_tokens": "{:.0f}".format,
    "num_requests_running": "{:.0f}".format,
    "num_requests_waiting": "{:.0f}".format,
}
OF_HUBS: dict[str, Callable[[float], str]] = {
    "hub_waiting": "{:.0f}".format,
    "hub_queue_seconds": lambda value: f"{value * 1e3:.1f} ms",
    "hub_sequences_per_step": "{:.2f}".format,
    "hub_t_s_seconds": lambda value: f"{value * 1e3:.1f} ms",
    "hub_draft_tokens": "{:.0f}".format,
    "hub_tags": "{:.0f}".format,
    "hub_n_full": lambda value: f"{value:.0f}" if value else "–",
    "hub_n_max": lambda value: f"{value:.0f}" if value else "–",
}


def metrics(star: Any) -> dict[tuple[str, str], float]:
    """(metric, target or draft) -> value, with both suffixes gone."""
    families = text_string_to_metric_families(star.get("/metrics").text)
    return {
        (sample.name.removeprefix("starspec_").removesuffix("_total"), next(iter(sample.labels.values()))): sample.value
        for family in families
        for sample in family.samples
        if len(sample.labels) == 1
    }


def shown(page: Any, place: str) -> dict[str, str]:
    script = "all => Object.fromEntries(all.map(each => [each.dataset.metric, each.textContent]))"
    return dict(page.eval_on_selector_all(f"{place} [data-metric]", script))


def first_difference(page: Any, star: Any) -> str:
    """Where the page and /metrics differ now; empty = nowhere."""
    told = metrics(star)
    for target in ("target-0", "target-1"):
        texts = shown(page, f'[data-target="{target}"]')
        for name, write in OF_TARGETS.items():
            if texts[name] != write(told[name, target]):
                return f"{target} {name}: {texts[name]} is not {write(told[name, target])}"
    (hub,) = {who for name, who in told if name == "hub_load"}
    texts = shown(page, "#hub")
    for name, write in OF_HUBS.items():
        if texts[name] != write(told[name, hub]):
            return f"hub {name}: {texts[name]} is not {write(told[name, hub])}"
    return ""


def test_every_number_is_that_of_metrics_within_a_refresh(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    for seed in range(4):
        star.ask(seed=seed)
    page.wait_for_selector('[data-target="target-1"]')
    deadline_s = time.monotonic() + 8.0  # rates fall until nothing is recent
    while difference := first_difference(page, star):
        assert time.monotonic() < deadline_s, difference
        page.wait_for_timeout(REFRESH_S * 1e3)
    assert metrics(star)["generation_tokens", "target-0"] > 0


def tokens_in_all(page: Any) -> float:
    texts = page.locator('[data-metric="generation_tokens"]').all_text_contents()
    return sum(float(each.replace("–", "nan")) for each in texts)


def test_a_number_changes_on_the_page_as_soon_as_it_changes(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector('[data-target="target-1"]')
    before = sum(value for (name, _), value in metrics(star).items() if name == "generation_tokens")
    star.ask(max_tokens=30)
    deadline_s = time.monotonic() + SEEN_S
    while (now := tokens_in_all(page)) != before + 30:
        assert time.monotonic() < deadline_s, f"{now} is not {before + 30}"
        page.wait_for_timeout(50)
    page.wait_for_selector("#request-rows tr:has-text('target-')", timeout=SEEN_S * 1e3)


def test_the_text_of_an_answer_is_not_shown(star: Any, open_page: Any) -> None:
    answer = star.ask(seed=9)["choices"][0]["text"].split()[0]
    page = open_page(star.url)
    page.wait_for_selector("#request-rows tr:has-text('target-')")
    assert answer not in page.inner_text("body")
    assert page.is_hidden("#text-column")


NOTE_CHANGES = """selector => {
    window.changes = [];
    for (const place of document.querySelectorAll(selector)) {
        new MutationObserver(() => changes.push([place.textContent, Date.now() / 1000]))
            .observe(place, { childList: true, characterData: true, subtree: true });
    }
}"""


def first_shown(page: Any, text: str, after_s: float, limit_s: float) -> float:
    """Unix time at which a noted place showed a text, after a time of this clock; waits for it."""
    deadline_s = time.monotonic() + limit_s
    while True:
        for shown_text, shown_s in page.evaluate("changes"):
            if text in shown_text and shown_s >= after_s:
                return float(shown_s)
        assert time.monotonic() < deadline_s, f"{text!r} was not shown: {page.evaluate('changes')}"
        page.wait_for_timeout(100)


def test_a_killed_hub_and_its_return_are_seen_within_two_seconds(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector("#health:has-text('all is well')")
    page.evaluate(NOTE_CHANGES, '[data-target="target-0"] .chip, #hub .chip')
    hub, killed_s = star.hub(), time.time()
    assert hub is not None
    hub.send_signal(signal.SIGKILL)
    assert first_shown(page, "plain", killed_s, 30.0) - killed_s <= SEEN_S
    lost_s = first_shown(page, "lost for", killed_s, 30.0)  # until then the seconds of "connected for" go on
    assert lost_s - killed_s <= SEEN_S
    page.wait_for_selector("#star-picture .link.bad", state="attached")
    page.wait_for_selector("#event-list .bad:has-text('target-0 has lost the hub')")
    back_s = first_shown(page, "with drafts", killed_s, 120.0)
    link = star.get("/health").json()["targets"][0]["hub"]
    assert link["state"] == "connected"
    connected_s = time.time() - link["for_s"]
    assert back_s - connected_s <= SEEN_S
    assert first_shown(page, "connected for", lost_s, 30.0) - connected_s <= SEEN_S
    page.wait_for_selector("#event-list .good:has-text('target-0 gets drafts')")
    page.wait_for_selector("#health:has-text('all is well')")


def test_a_hung_hub_is_seen_within_two_seconds(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector("#health:has-text('all is well')")
    page.evaluate(NOTE_CHANGES, "#hub .chip")
    hub, hung_s = star.hub(), time.time()
    assert hub is not None
    hub.send_signal(signal.SIGSTOP)
    try:
        assert first_shown(page, "lost for", hung_s, 30.0) - hung_s <= SEEN_S
    finally:
        hub.send_signal(signal.SIGCONT)
    page.wait_for_selector("#health:has-text('all is well')")


def play(page: Any, **fields: str) -> str:
    """Run both sides of the playground. Returns: the verdict."""
    for name, value in fields.items():
        control = page.locator(f"#{name}")
        control.select_option(value) if name == "mode" else control.fill(value)
    page.click("#run")
    page.wait_for_selector("#verdict.good, #verdict.bad", timeout=60_000)
    return str(page.inner_text("#verdict"))


@pytest.mark.parametrize("mode", ["chat", "text"])
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_the_playground_answers_twice_the_same_and_marks_accepted_drafts(
    star: Any, open_page: Any, mode: str, temperature: str
) -> None:
    page = open_page(star.url)
    page.wait_for_selector("#health:has-text('all is well')")
    verdict = play(page, mode=mode, prompt="bipa bigu", tokens="40", temperature=temperature, seed="7")
    assert re.match(r"Identical, all \d+ tokens; \d+\.\d\d× as fast", verdict)
    texts = [page.text_content(f"#{side}-text") for side in ("on", "off")]
    assert texts[0] == texts[1]
    assert page.locator("#off-text mark").count() == 0
    accepted, drafted = accepted_of(page.inner_text("#on-facts"))
    assert page.locator("#on-text mark").count() == pytest.approx(accepted, abs=0.006 * drafted)
    if mode == "text":
        answer = star.ask(max_tokens=40, temperature=float(temperature), seed=7, speculative=False)
        assert texts[0] == answer["choices"][0]["text"]


def accepted_of(facts: str) -> tuple[float, int]:
    """Accepted draft tokens, as the rounded share tells, and draft tokens."""
    share, drafted = re.search(r"(\d+)% of (\d+) drafts", facts).groups()  # type: ignore[union-attr]
    return int(share) / 100 * int(drafted), int(drafted)


def test_the_playground_says_why_it_cannot(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector("#health:has-text('all is well')")
    page.route(
        "**/v1/completions",
        lambda route: route.fulfill(status=200, body='data: {"error": {"message": "too long"}}\n\n'),
    )
    page.click("#run")
    page.wait_for_selector("#verdict.bad:has-text('too long')")
    assert page.is_hidden("#play-model")  # there is one model


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[str]:
    """The address of a gateway that asks for a key. It serves two models."""
    log = tmp_path / "gateway.log"
    command = [sys.executable, "-m", "starspec", "gateway", "--target", "synthetic:vocab=256", "--port", "0"]
    command += ["--served-model-name", "first", "--also", "second=synthetic:vocab=512"]
    command += ["--endpoint", "tcp://127.0.0.1:1"]  # nobody is there
    with log.open("wb") as output:
        environment = {**os.environ, "STARSPEC_API_KEY": "secret"}
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        pause, deadline_s = threading.Event(), time.monotonic() + 120.0
        while not (found := re.search(r"ready at (http://\S+),", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s
            pause.wait(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)


def test_the_page_asks_for_the_key(locked: str, open_page: Any) -> None:
    page = open_page(locked, refuses=True)
    page.wait_for_selector("#key-form:visible")
    assert page.evaluate("document.activeElement.id") == "key"
    for key, is_right in (("wrong", False), ("secret", True)):
        page.fill("#key", key)
        page.keyboard.press("Enter")
        if is_right:
            page.wait_for_selector("#key-form", state="hidden")
            page.wait_for_selector("#health:has-text('no target answers')")
        else:
            page.wait_for_selector("#key-error:has-text('not the key')")
    assert "secret" not in page.url
    page.reload()
    page.wait_for_selector("#health:has-text('no target answers')")  # the tab remembers it


def test_the_playground_asks_the_model_that_is_chosen(locked: str, open_page: Any) -> None:
    page = open_page(locked, refuses=True)
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#play-model:visible")
    assert page.inner_text("#model") == "first, second"
    assert page.locator("#play-model option").all_inner_texts() == ["first", "second"]
    bodies = []

    def answer(route: Any) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(status=200, body='{"tokens": [1]}' if "tokenize" in route.request.url else "data: [DONE]\n\n")

    page.route("**/tokenize", answer)
    page.route("**/v1/completions", answer)
    for chosen in ("first", "second"):
        page.select_option("#play-model", chosen)
        page.click("#run")
        page.wait_for_selector("#run:enabled")
        assert {each["model"] for each in bodies} == {chosen}
        bodies.clear()


def test_everything_is_reached_by_keyboard_and_has_a_name(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector('[data-target="target-1"]')
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"Skip to the star", "theme", "event-list", "prompt", "mode", "tokens", "seed", "run"} <= reached
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, textarea, a, [role=img], [role=region], section")]
        .filter(each => !(each.textContent.trim() || each.labels?.length || each.getAttribute("aria-label")
                          || each.getAttribute("aria-labelledby"))).map(each => each.outerHTML)"""
    )
    assert nameless == []


WIDTHS = [360, 390, 768, 1280]


def texts_that_are_cut(page: Any) -> list[str]:
    return list(
        page.evaluate(
            """[...document.querySelectorAll("dd, dt, .value, h2, .chip, button, figcaption, .stages th, .stages td")]
            .filter(each => each.scrollWidth > each.clientWidth + 1 && each.clientWidth)
            .map(each => each.textContent)"""
        )
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_scrolls_sideways_or_cuts_a_text(star: Any, open_page: Any, width: int) -> None:
    page = open_page(star.url, viewport={"width": width, "height": 800})
    page.wait_for_selector('[data-target="target-1"]')
    page.wait_for_timeout(1200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert texts_that_are_cut(page) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_stages_fit_at_any_width(star_in_stages: Any, open_page: Any, width: int) -> None:
    page = open_page(star_in_stages.url, viewport={"width": width, "height": 800})
    page.wait_for_selector('[data-stage="1"]')
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert texts_that_are_cut(page) == []


def stage_times(star: Any) -> dict[tuple[str, str], str]:
    """(stage, metric) -> what the page should say: milliseconds of a traversal."""
    families = list(text_string_to_metric_families(star.get("/metrics").text))
    samples = [sample for family in families for sample in family.samples]
    (traversals,) = [each.value for each in samples if each.name == "starspec_pipe_traversals_total"]
    names = {f"starspec_{each}_total": each for each in ("stage_compute_seconds", "stage_wait_seconds")}
    return {
        (each.labels["stage"], names[each.name]): f"{each.value / traversals * 1e3:.1f} ms" if traversals else "–"
        for each in samples
        if each.name in names
    }


def shown_stage_times(page: Any) -> dict[tuple[str, str], str]:
    script = "all => all.map(each => [each.closest('tr').dataset.stage, each.dataset.metric, each.textContent])"
    return {(stage, name): text for stage, name, text in page.eval_on_selector_all(".stages [data-metric]", script)}


def test_stages_are_shown_with_the_numbers_of_metrics(star_in_stages: Any, open_page: Any) -> None:
    page = open_page(star_in_stages.url)
    star_in_stages.ask(prompt="w5 w9 w3")
    page.wait_for_selector('[data-stage="1"]')
    deadline_s = time.monotonic() + 8.0
    while (shown_now := shown_stage_times(page)) != (told := stage_times(star_in_stages)) or "–" in told.values():
        assert time.monotonic() < deadline_s, f"{shown_now} is not {told}"
        page.wait_for_timeout(REFRESH_S * 1e3)
    assert len(told) == 4
    assert page.locator(".stages tbody th").all_inner_texts() == ["0", "1"]
    assert page.locator(".stages tbody th + td").all_inner_texts() == ["0:2", "2:4"]
    title = page.text_content("#star-picture title")
    assert "target-0 ready (layers 0:2 attached, layers 2:4 attached)" in title
    assert shown(page, "#targets")["pipe_losses"] == "0"


def test_a_killed_stage_and_its_return_are_seen(star_in_stages: Any, open_page: Any) -> None:
    page = open_page(star_in_stages.url)
    page.wait_for_selector("#health:has-text('all is well')")
    page.evaluate(NOTE_CHANGES, '[data-stage="1"]')
    _, last = star_in_stages.children("stage")
    killed_s = time.time()
    last.send_signal(signal.SIGKILL)
    assert first_shown(page, "lost", killed_s, 30.0) - killed_s <= SEEN_S
    page.wait_for_selector("#event-list .bad:has-text('target-0: 1 stage lost')")
    page.wait_for_selector("#health:has-text('all is well')", timeout=60_000)
    page.wait_for_selector('[data-stage="1"]:has-text("attached")')
    assert page.locator("#star-picture .node.bad").count() == 0


def test_a_target_that_is_not_cut_shows_no_stages(star: Any, open_page: Any) -> None:
    page = open_page(star.url)
    page.wait_for_selector('[data-target="target-1"]')
    assert page.locator(".pipe").count() == 2
    assert page.locator(".pipe:visible").count() == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_their_background(star: Any, open_page: Any, theme: str) -> None:
    page = open_page(star.url, color_scheme=theme)
    page.wait_for_selector('[data-target="target-1"]')
    assert page.get_attribute("html", "data-theme") == theme
    names = ["--text", "--soft", "--blue", "--red", "--green"]
    colours = page.evaluate(
        "names => names.map(each => getComputedStyle(document.documentElement).getPropertyValue(each).trim())",
        [*names, "--card", "--page"],
    )
    for name, colour in zip(names, colours, strict=False):
        for background in colours[-2:]:
            assert contrast(colour, background) >= 4.5, f"{name} on {background}"  # WCAG 2.2, AA


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_page_finds_a_gateway_that_was_away(star: Any, open_page: Any) -> None:
    page = open_page(star.url, refuses=True)
    page.wait_for_selector("#health:has-text('all is well')")
    (gateway,) = star.children("gateway")
    gateway.suspend()
    try:
        page.wait_for_selector("#health:has-text('does not answer')", timeout=8_000)
    finally:
        gateway.resume()
    page.wait_for_selector("#health:has-text('all is well')")


@contextmanager
def busy(star: Any, num_streams: int) -> Iterator[None]:
    """So many requests at any time, one after the other, until the block ends."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            star.ask(max_tokens=60)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(num_streams)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(90)


def test_pictures(star: Any, open_page: Any, tmp_path: Path) -> None:
    """Pictures for the documentation. PICTURES=FOLDER keeps them."""
    folder = Path(os.environ.get("PICTURES") or tmp_path)
    page = open_page(star.url)
    page.wait_for_selector("#health:has-text('all is well')")
    play(page, prompt="bipa bigu", tokens="60", temperature="0")
    page.locator("#playground").screenshot(path=folder / "playground.png")
    with busy(star, 3):
        page.set_viewport_size({"width": 1280, "height": page.evaluate("document.body.scrollHeight")})
        page.wait_for_timeout(20_000)
        page.screenshot(path=folder / "dashboard.png")
        page.close()  # what moves on a page needs much of a core
        for name, settings in (
            ("dashboard-dark", {"color_scheme": "dark"}),
            ("dashboard-phone", {"viewport": {"width": 390, "height": 1500}}),
        ):
            other = open_page(star.url, **settings)
            other.wait_for_selector('[data-target="target-1"]')
            other.wait_for_timeout(3_000)
            other.screenshot(path=folder / f"{name}.png")
            other.close()
    assert min(each.stat().st_size for each in folder.glob("*.png")) > 10_000
