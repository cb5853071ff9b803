"""The public API is small, pinned and sorted."""

import tomllib
from pathlib import Path

import pytest

import starspec
from starspec.openmp import SLEEP_AT_ONCE


def test_the_public_names_are_these() -> None:
    assert starspec.__all__ == [
        "LLM",
        "CapacityError",
        "CompletionOutput",
        "ConfigError",
        "RequestError",
        "RequestOutput",
        "SamplingParams",
        "SpeculativeConfig",
        "StarspecError",
        "StructuredOutputsParams",
    ]


def test_there_are_at_most_fifteen() -> None:
    assert len(starspec.__all__) <= 15


@pytest.mark.parametrize("name", starspec.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(starspec, name).__doc__


def test_the_version_is_stated_once() -> None:
    file = Path(__file__).parents[1] / "pyproject.toml"
    content = tomllib.loads(file.read_text())
    assert content["project"]["dynamic"] == ["version"]
    assert (file.parent / content["tool"]["hatch"]["version"]["path"]).samefile(starspec.__file__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Sampler"):
        _ = starspec.Sampler


def test_llm_tells_openmp_not_to_spin_unless_the_operator_said_how(monkeypatch) -> None:
    for before, after in (({}, dict(SLEEP_AT_ONCE)), ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"})):
        environ = dict(before)
        monkeypatch.setattr(starspec, "environ", environ)
        starspec.__getattr__("LLM")
        assert environ == after
    assert SLEEP_AT_ONCE == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
