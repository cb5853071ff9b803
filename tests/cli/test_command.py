"""An option that takes one value is given once, by every command; an option that takes several is not restricted."""

from collections.abc import Iterator
from typing import get_args

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.exceptions import TyperException
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
    options = [each for each in options if not each.multiple]
    for option in options:
        with pytest.raises(TyperException, match=f"{option.opts[0]}.* is given twice: give it once"):
            COMMANDS[words].make_context(words[-1], twice(option))
    for option in options[:1]:  # a whole line takes thirty times as long
        outcome = starspec(*words, *twice(option))
        assert option.opts[0] in outcome.err
        assert "is given twice: give it once" in outcome.err
        assert outcome.code == 2


GIVEN = {  # what an option that must be given is, if another one is looked at
    "--dataset": "prompts.jsonl",
    "--layers": "0:1",
    "--node": "a=1GiB",
    "--out": "head",
    "--prompts": "prompts.jsonl",
}
TOO_LARGE = {int: "1" + "0" * 400, float: "1e12"}


def parsed(words: tuple[str, ...], *option: str) -> None:
    """Parse a complete line of a command. Raises: as typer."""
    needed = [each for each in COMMANDS[words].params if each.required and each.opts[0] not in option]
    line = [
        word
        for each in needed
        for word in ((each.opts[0], GIVEN.get(each.opts[0], "x")) if each.param_type_name == "option" else ("x",))
    ]
    COMMANDS[words].make_context(words[-1], [*line, *option])


def options_for(words: tuple[str, ...], kind: type) -> list[TyperOption]:
    """The options of a command with one value of this kind."""
    options = [each for each in COMMANDS[words].params if isinstance(each, TyperOption) and not each.multiple]
    hints = {each.name: each.type_descriptor.annotation for each in options}
    return [each for each in options if kind in (hints[each.name], *get_args(hints[each.name]))]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_text_is_empty_or_no_unicode_and_no_number_larger_than_anything_holds(words: tuple[str, ...]) -> None:
    parsed(words)
    for option in options_for(words, str):
        if option.envvar is None:
            if not option.required and option.opts[0] != "--vllm-args":
                with pytest.raises(TyperException, match=f"{option.opts[0]} .*is empty: give a value, or leave it out"):
                    parsed(words, option.opts[0], "")
            with pytest.raises(TyperException, match="is not valid Unicode text: give it in UTF-8"):
                parsed(words, option.opts[0], "a\udcff")
    for kind, number in TOO_LARGE.items():
        for option in options_for(words, kind):
            if option.opts[0] != "--seed":
                with pytest.raises(TyperException, match=r"is at most 1000000000, not 1000|less than or equal to"):
                    parsed(words, option.opts[0], number)


def test_some_options_take_several_values() -> None:
    several = {
        option.opts[0] for command in COMMANDS.values() for option in command.params if getattr(option, "multiple", 0)
    }
    assert several == {"--also", "--cut", "--dataset", "--endpoint", "--link", "--node", "--partition", "--stop"}


def test_words_are_completed(monkeypatch, capsys) -> None:
    monkeypatch.setenv("_STARSPEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "starspec up --targ")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app([], prog_name="starspec", standalone_mode=False)
    assert capsys.readouterr().out.split() == ["--target", "--targets"]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_the_target_may_be_named_without_its_option(command: str, starspec) -> None:
    outcome = starspec(command, "/no/such/model", "--port", "0")
    assert "there is no model at '/no/such/model'" in outcome.err
    assert outcome.code == 2
