"""A wrong setting ends vLLM's start with one sentence that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from starspec.errors import ConfigError
from starspec.integrations.vllm.settings import VllmSettings, load_settings
from starspec.integrations.vllm.versions import check_version


def test_nothing_set_is_a_hub_on_this_machine() -> None:
    assert load_settings({"STARSPEC_API_KEY": "x", "PATH": "/bin", "STARSPEC_KEYS": ""}) == VllmSettings()


def test_a_variable_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "star.toml"
    path.write_text('hub = "tcp://10.0.0.1:7700"\ndeadline_ms = 3\nadaptive = false\n')
    settings = load_settings({"STARSPEC_CONFIG": str(path), "STARSPEC_DEADLINE_MS": "12.5", "STARSPEC_INSECURE": "1"})
    assert settings == VllmSettings(hub="tcp://10.0.0.1:7700", deadline_ms=12.5, adaptive=False, insecure=True)


def test_keys_may_lie_in_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-ours")
    assert load_settings({"STARSPEC_KEYS": "~/keys"}).keys == "/home/of-ours/keys"


def test_what_kubernetes_says_of_a_service_is_no_setting() -> None:
    said = {
        "STARSPEC_HUB_SERVICE_HOST": "10.0.0.7",
        "STARSPEC_HUB_SERVICE_PORT_ZMQ": "7700",
        "STARSPEC_PORT": "tcp://10.0.0.7:7700",
        "STARSPEC_HUB_PORT_7700_TCP_ADDR": "10.0.0.7",
    }
    assert load_settings(said) == VllmSettings()


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"STARSPEC_DEADLINE": "5"}, "unknown variable STARSPEC_DEADLINE; did you mean 'STARSPEC_DEADLINE_MS'?"),
        ({"STARSPEC_DEADLINE_MS": "soon"}, "STARSPEC_DEADLINE_MS='soon'"),
        ({"STARSPEC_DEADLINE_MS": "-1"}, "deadline_ms must be above 0"),
        ({"STARSPEC_DRAFT_P_MIN": "1.5"}, "draft_p_min is a probability, 0 to 1, got 1.5"),
        ({"STARSPEC_FALLBACK": "ngrm"}, "did you mean 'ngram'?"),
        ({"STARSPEC_PROMPT_LOOKUP_MIN": "5"}, "prompt_lookup_min <= prompt_lookup_max"),
        ({"STARSPEC_CONFIG": "/nowhere.toml"}, "STARSPEC_CONFIG: cannot read /nowhere.toml"),
        (
            {"STARSPEC_CONFIG": "~nobody-of-ours/x.toml"},
            "STARSPEC_CONFIG ~nobody-of-ours/x.toml: there is no such user",
        ),
        ({"STARSPEC_KEYS": "~nobody-of-ours/keys"}, "keys ~nobody-of-ours/keys: there is no such user"),
        ({"STARSPEC_NAME": "a\udcff"}, "name 'a\\udcff' must be printable text"),
        ({"STARSPEC_NAME": "a\nb"}, "must be printable text"),
        ({"STARSPEC_HUB_PORT": "7700"}, "unknown variable STARSPEC_HUB_PORT; did you mean 'STARSPEC_HUB'?"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings(environ)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('hubb = "tcp://x:1"', "unknown key 'hubb'; did you mean 'hub'?"),
        ("insecure = 3", "insecure"),
        ('keys = ""', "keys is empty"),
        ("hub = ", "is not a TOML file"),
        ("hub = " + "[" * 5000, "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "star.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings({"STARSPEC_CONFIG": str(path)})
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_variables_go_before_the_file_though_the_file_alone_would_not_do(tmp_path: Path) -> None:
    path = tmp_path / "star.toml"
    path.write_text("prompt_lookup_min = 5")
    settings = load_settings({"STARSPEC_CONFIG": str(path), "STARSPEC_PROMPT_LOOKUP_MAX": "8"})
    assert (settings.prompt_lookup_min, settings.prompt_lookup_max) == (5, 8)
    with pytest.raises(ConfigError, match="prompt_lookup_min <= prompt_lookup_max"):
        load_settings({"STARSPEC_CONFIG": str(path)})


def test_a_vllm_that_was_not_tested_is_refused_unless_the_operator_insists() -> None:
    check_version("0.32.1rc1+cpu")
    for version in ("0.31.2", "0.33.0", "dev"):
        with pytest.raises(ConfigError, match=f"this is {version}.*STARSPEC_UNTESTED_VLLM"):
            check_version(version)
        check_version(version, is_untested_allowed=True)
