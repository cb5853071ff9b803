"""The command `starspec`. Each group of commands has a module; an error is one line on stderr.

Commands import torch and the like only when they run, so that `--help` and errors come at once.
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Final

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from starspec import __version__
from starspec.cli import bench, trace
from starspec.cli.calibrate import calibrate
from starspec.cli.chat import chat
from starspec.cli.command import CommandLine
from starspec.cli.doctor import doctor
from starspec.cli.generate import generate
from starspec.cli.lab import lab
from starspec.cli.output import (
    drop_unwritten,
    open_closed_streams,
    take_all_characters,
    take_no_width_as_unknown,
)
from starspec.cli.plan_stages import plan
from starspec.cli.serve import child, draft, gateway, keygen, stage, target
from starspec.cli.top import top
from starspec.cli.train import train
from starspec.cli.up import up
from starspec.cli.verify import verify
from starspec.errors import ConfigError, StarspecError, out_of_memory
from starspec.output_files import reason_of
from starspec.quoting import harmless, quoted

# a disk, a pipe, and what `open_closed_streams` puts in the place of a closed output
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EROFS, errno.EBADF)
NOT_PARSED: Final = ", unable to parse string as"  # of pydantic, by way of typer
NO_UNICODE: Final = "Input should be a valid string, unable to parse raw data as a unicode string"  # of pydantic, too
EXTRA_WORDS = {  # command -> what was meant by a word that it does not take
    "draft": "give the draft as --draft MODEL",
    "doctor": "give the models as --target MODEL --draft MODEL",
    "generate": "put a prompt of several words into quotes",
}
OF_ANOTHER_COMMAND = {  # (command, option) -> where it belongs
    ("target", "--draft"): "the draft belongs to the hub: starspec draft --draft MODEL, and here --hub tcp://HOST:PORT",
    ("gateway", "--draft"): "the draft belongs to the hub: starspec draft --draft MODEL",
    ("draft", "--target"): "the target has a process of its own: starspec target --target MODEL --hub tcp://HOST:PORT",
    ("stage", "--draft"): "the draft belongs to the hub: starspec draft --draft MODEL",
}
NEAR_BUT_NOT_MEANT: Final = {  # (command, word) -> what is said in place of the nearest known word
    ("starspec", "version"): "no such command 'version'; did you mean 'starspec --version'?",
    ("verify", "--temp"): "no such option: --temp; greedy and sampled answers are both compared",
    ("verify", "--temperature"): "no such option: --temperature; greedy and sampled answers are both compared",
}
EXIT_FAILED, EXIT_CONFIG, EXIT_INTERRUPTED = 1, 2, 130

app = CommandLine(name="starspec", no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"starspec {__version__}")
        raise typer.Exit


@app.callback()
def starspec(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """One draft model speeds up many LLM servers. Same tokens, fewer steps."""


for command in (
    generate,
    up,
    top,
    chat,
    draft,
    target,
    stage,
    gateway,
    keygen,
    lab,
    verify,
    doctor,
    calibrate,
    train,
):
    app.command()(command)
app.command("plan-stages")(plan)
app.command("serve", hidden=True)(up)  # as `vllm serve MODEL`
app.command(hidden=True)(child)
app.add_typer(bench.app)
app.add_typer(trace.app)


def main() -> None:
    """Run the command line of this process; exits 0, 1 (failed), 2 (misconfigured) or 130 (interrupted)."""
    open_closed_streams()
    take_all_characters()
    take_no_width_as_unknown()
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        drop_unwritten(sys.stderr)


def run(arguments: list[str]) -> int:
    """Run one command line. Returns: the exit code. Effects: prints an error as one line on stderr."""
    try:
        code = app(arguments, prog_name="starspec", standalone_mode=False) or 0
        sys.stdout.flush()  # a full disk would be noticed when Python ends, which prints a traceback
        return code
    except Abort:
        return EXIT_INTERRUPTED
    except TyperException as error:
        if not error.format_message():  # no command was given: typer has printed the help
            return error.exit_code
        return _print_error(_sentence_of(error, arguments), error.exit_code)
    except StarspecError as error:
        return _print_error(str(error), EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        sentence = _not_written(error) or _not_installed(error, arguments) or out_of_memory(error)
        if sentence is None:
            raise  # a bug of ours: its traceback is needed
        return _print_error(sentence, EXIT_FAILED)


def _not_written(error: Exception) -> str | None:
    """The sentence about an output that does not take what a command writes; None if it is another error.

    Effects: what standard output still holds is dropped, or Python would try to write it again at its end.
    """
    if not isinstance(error, OSError) or error.errno not in NOT_WRITTEN:
        return None
    if error.filename is None:
        drop_unwritten(sys.stdout)
    where = f"'{error.filename}'" if error.filename else "the output"
    return f"{where} cannot be written: {reason_of(error)}"


def _not_installed(error: Exception, arguments: Sequence[str]) -> str | None:
    """The sentence about a shell's files that completion cannot be added to; None if it is another error."""
    if not isinstance(error, OSError) or not any(each.startswith("--install-completion") for each in arguments):
        return None
    where = f"'{error.filename}' cannot be written" if error.filename else "your shell's files cannot be written"
    return f"--install-completion: {where}: {reason_of(error)}"


def _print_error(sentence: str, code: int) -> int:
    line = harmless(sentence).replace("\n", "\\n")  # of a name, as its other control characters
    with contextlib.suppress(OSError):  # then the exit code alone says it
        print(f"starspec: {line}", file=sys.stderr)
    return code


def _sentence_of(error: TyperException, arguments: Sequence[str]) -> str:
    """Typer's error in one line, with the nearest option and the command whose `--help` tells more."""
    context = getattr(error, "ctx", None)
    nearest = getattr(error, "possibilities", None)
    option = getattr(error, "option_name", "")
    if context is not None and _belongs_to_a_command(option, context.command):
        return f"{option} is an option of commands: write it behind the command's name"
    if context is not None and (said := NEAR_BUT_NOT_MEANT.get((context.command.name, option or _first(arguments)))):
        return said
    belongs = OF_ANOTHER_COMMAND.get((context.command.name, option)) if context is not None else None
    what = (
        f"{error.message}; {belongs}"
        if belongs
        else f"{error.message}; did you mean '{nearest[0]}'?"
        if nearest
        else error.format_message().replace("Value error, ", "")
    )  # pydantic's mark
    what = what.replace(NO_UNICODE, "it is not valid Unicode text: give it in UTF-8")
    if NOT_PARSED in what and (value := _value_of(getattr(error, "param", None), arguments)) is not None:
        what = f"{what[: what.index(NOT_PARSED)]}, not {quoted(value)}"
    if what.startswith("Missing option '--target'"):
        what = f"{what.rstrip('.')}: give the model as --target MODEL"
    if what.startswith("Got unexpected extra argument") and context and context.command.name in EXTRA_WORDS:
        what = f"{what}: {EXTRA_WORDS[context.command.name]}"
    where = f" (see {context.command_path} --help)" if context else ""
    return what[0].lower() + " ".join(what[1:].split()) + where


def _first(arguments: Sequence[str]) -> str:
    return arguments[0] if arguments else ""


def _value_of(parameter: object, arguments: Sequence[str]) -> str | None:
    """What the command line gives an option, which typer's message does not tell."""
    for name in getattr(parameter, "opts", ()):
        for word, following in zip_longest(arguments, arguments[1:]):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
    return None


def _belongs_to_a_command(option: str, group: object) -> bool:
    """Whether an option that stands in front of a command's name is known behind it."""
    commands = group.commands.values() if isinstance(group, TyperGroup) else ()
    return any(option in parameter.opts for command in commands for parameter in command.params)
