"""Links as a TOML file or a preset describes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from starspec.config.lab import LabConfig, LabLink, LinkShape, Listen, Partition
from starspec.errors import ConfigError
from starspec.lab.file import PRESETS, read_lab, shapes_of

WHOLE = """
seed = 7

[[link]]
name = "hub"
listen = "127.0.0.2:7700-7708"
to = "tcp://127.0.0.1:7700"
delay_ms = 40
jitter_ms = 2
mbit_s = 50
loss = 0.001
stall_ms = 100
back = { mbit_s = 10 }
partitions = [{ start_s = 10, stop_s = 15 }, { start_s = 30, stop_s = 30.5, cut = true }]

[[link]]
listen = 7800
to = "tcp://127.0.0.1:7801"
preset = "metro"
loss = 0.01
"""


def read(text: str, folder: Path) -> LabConfig:
    file = folder / "lab.toml"
    file.write_text(text)
    return read_lab(file)


def test_a_file_says_everything_that_a_link_can_be(tmp_path: Path) -> None:
    shape = LinkShape(delay_ms=40, jitter_ms=2, mbit_s=50, loss=0.001, stall_ms=100)
    hub = LabLink(
        name="hub",
        listen="127.0.0.2:7700-7708",
        to="tcp://127.0.0.1:7700",
        shape=shape,
        back=LinkShape(delay_ms=40, jitter_ms=2, mbit_s=10, loss=0.001, stall_ms=100),
        partitions=(Partition(start_s=10, stop_s=15), Partition(start_s=30, stop_s=30.5, cut=True)),
    )
    metro = LinkShape(delay_ms=0.7, jitter_ms=0.1, mbit_s=1000, loss=0.01)
    near = LabLink(listen="7800", to="tcp://127.0.0.1:7801", shape=metro, back=metro)
    assert read(WHOLE, tmp_path) == LabConfig(links=(hub, near), seed=7)


@pytest.mark.parametrize("name", PRESETS)
def test_values_of_ones_own_go_over_a_presets(name: str) -> None:
    forth, back = shapes_of(name, {"delay_ms": 99.0, "loss": None}, {"mbit_s": 3.0}, "the link")
    assert (forth.delay_ms, back.delay_ms) == (99.0, 99.0)
    assert (forth.loss, back.loss) == (PRESETS[name].forth.loss, PRESETS[name].back.loss)
    assert (forth.mbit_s, back.mbit_s) == (PRESETS[name].forth.mbit_s, 3.0)


def test_a_stall_may_be_given_with_losses_that_happen_not_to_be() -> None:
    assert shapes_of(None, {"stall_ms": 9.0, "loss": 0.0}, {}, "the link").forth == LinkShape(stall_ms=9.0)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("7700", ("127.0.0.1", 7700, 7700)),
        ("0", ("127.0.0.1", 0, 0)),
        ("127.0.0.2:7700-7764", ("127.0.0.2", 7700, 7764)),
        ("[::1]:7700", ("::1", 7700, 7700)),
    ],
)
def test_a_link_listens_on_a_port_an_address_or_a_range(text: str, where: tuple[str, int, int]) -> None:
    assert Listen.parse(text) == where


LINK = '[[link]]\nlisten = 1\nto = "tcp://a:1"\n'
MISTAKES = {
    "no TOML": ("link = ", "is not valid TOML: invalid value"),
    "nested too deeply": ("a = " + "[" * 5000, "cannot be read: it is nested too deeply"),
    "no link": ("seed = 1", "a lab needs at least one link"),
    "unknown key at the top": ("seeds = 1", "unknown key 'seeds'; did you mean 'seed'?"),
    "unknown key": (LINK + "delay = 4", "link 1: unknown key 'delay'; did you mean 'delay_ms'?"),
    "unknown key of the way back": (LINK + "back = { mbits = 1 }", "link 1: back: unknown key 'mbits'"),
    "unknown key of a partition": (LINK + "partitions = [{ start = 1 }]", "link 1: partitions: unknown key 'start'"),
    "unknown preset": (LINK + 'preset = "dsl"', "link 1: preset 'dsl' is unknown"),
    "no server": ("[[link]]\nlisten = 1", "link 1: object missing required field to"),
    "wrong kind": (LINK + 'delay_ms = "4"', "link 1: delay_ms: expected"),
    "out of range": (LINK + "loss = 0.7", "link 1: loss must be at most 0.5, got 0.7"),
    "too much jitter": (LINK + "delay_ms = 1\njitter_ms = 2", "link 1: jitter_ms must be at most delay_ms, 1, got 2"),
    "a second link": (LINK + LINK + "loss = -1", "link 2: loss must be at least 0"),
    "a stall without losses": (LINK + "stall_ms = 9", "link 1: stall_ms is how long a lost packet stalls, and none is"),
    "a stall of the way back": (LINK + "back = { stall_ms = 9 }", "link 1: stall_ms is how long a lost packet stalls"),
    "backwards": (LINK + "partitions = [{ start_s = 2, stop_s = 1 }]", "must end after it begins"),
    "overlapping": (
        LINK + "partitions = [{ start_s = 2, stop_s = 5 }, { start_s = 4, stop_s = 6 }]",
        "link 1: two partitions of a link overlap or are not in order, at 4 s",
    ),
    "one name twice": (LINK + LINK, "two links are called '1': give each a name of its own"),
    "no port": ('[[link]]\nlisten = "a"\nto = "tcp://a:1"', "link 1: a link listens on 'a', which is not of the form"),
    "ports backwards": ('[[link]]\nlisten = "9-8"\nto = "tcp://a:1"', "ports must be 1 to 65535, the first one first"),
    "too many ports": ('[[link]]\nlisten = "1-999"\nto = "tcp://a:1"', "999 ports; a link has at most 256"),
    "no address": ('[[link]]\nlisten = "300.1.1.1:1"\nto = "tcp://a:1"', "'300.1.1.1' is not an IP address"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_sentence_that_says_where(name: str, tmp_path: Path) -> None:
    text, sentence = MISTAKES[name]
    with pytest.raises(ConfigError) as raised:
        read(text, tmp_path)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
