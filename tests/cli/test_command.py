"""An option that takes one value is given once, by every command; an option that takes several is not restricted."""

from collections.abc import Iterator

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from starspec.cli import app


def commands(group: TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    for name, each in group.commands.items():
        if isinstance(each, TyperGroup):
            yield from commands(each, (*words, name))
        else:
            yield (*words, name), each


ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)
COMMANDS = dict(commands(ROOT))


def twice(option: TyperOption) -> list[str]:
    """The option two times, with a word for each value; whether the words are right is tested later."""
    return [option.opts[0], *(["1"] if not option.is_flag else [])] * 2


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_option_with_one_value_may_be_given_twice(words: tuple[str, ...], starspec) -> None:
    options = [each for each in COMMANDS[words].params if isinstance(each, TyperOption) and not each.is_eager]
    for option in options:
        if option.multiple:
            continue
        outcome = starspec(*words, *twice(option))
        assert option.opts[0] in outcome.err
        assert "is given twice: give it once" in outcome.err
        assert outcome.code == 2


def test_some_options_take_several_values() -> None:
    several = {
        option.opts[0] for command in COMMANDS.values() for option in command.params if getattr(option, "multiple", 0)
    }
    assert several == {"--also", "--cut", "--dataset", "--endpoint", "--link", "--node", "--partition", "--stop"}


def test_completion_can_be_installed(starspec) -> None:
    outcome = starspec("--help")
    assert "--install-completion" in outcome.out


def test_words_are_completed(monkeypatch, capsys) -> None:
    monkeypatch.setenv("_STARSPEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "starspec up --targ")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app([], prog_name="starspec", standalone_mode=False)
    assert capsys.readouterr().out.split() == ["--target", "--targets"]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_the_target_may_be_named_without_its_option(command: str, starspec) -> None:
    outcome = starspec(command, "/no/such/model")
    assert "there is no model at '/no/such/model'" in outcome.err
    assert outcome.code == 2
