"""The command `starspec`. Each group of commands has a module; an error is one line on stderr.

Commands import torch and the like only when they run, so that `--help` and errors come at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from starspec import __version__
from starspec.cli import bench
from starspec.cli.doctor import doctor
from starspec.cli.generate import generate
from starspec.cli.serve import child, draft, gateway, keygen, target
from starspec.cli.train import train
from starspec.cli.up import up
from starspec.cli.verify import verify
from starspec.errors import ConfigError, StarspecError

EXIT_FAILED, EXIT_CONFIG, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="starspec",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for command in (generate, up, draft, target, gateway, keygen, verify, doctor, train):
    app.command()(command)
app.command(hidden=True)(child)
app.add_typer(bench.app)


def main() -> None:
    """Run the command line of this process; exits 0, 1 (failed), 2 (misconfigured) or 130 (interrupted)."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line. Returns: the exit code. Effects: prints an error as one line on stderr."""
    try:
        return app(arguments, prog_name="starspec", standalone_mode=False) or 0
    except Abort:
        return EXIT_INTERRUPTED
    except TyperException as error:
        if not error.format_message():  # no command was given: typer has printed the help
            return error.exit_code
        return _print_error(_sentence_of(error), error.exit_code)
    except ConfigError as error:
        return _print_error(str(error), EXIT_CONFIG)
    except StarspecError as error:
        return _print_error(str(error), EXIT_FAILED)


def _print_error(sentence: str, code: int) -> int:
    print(f"starspec: {sentence}", file=sys.stderr)
    return code


def _sentence_of(error: TyperException) -> str:
    """Typer's error in one line, with the nearest option and the command whose `--help` tells more."""
    context = getattr(error, "ctx", None)
    nearest = getattr(error, "possibilities", None)
    what = (
        f"{error.message}; did you mean '{nearest[0]}'?"
        if nearest
        else error.format_message().replace("Value error, ", "")
    )  # pydantic's mark
    where = f" (see {context.command_path} --help)" if context else ""
    return what[0].lower() + " ".join(what[1:].split()) + where
