"""A result that could not be saved is refused before anything is measured, by every command that saves one."""

import contextlib
import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from typer.core import TyperGroup
from typer.main import get_command

from starspec.cli import app
from starspec.cli.process import log_to_stderr
from starspec.errors import OutputError
from starspec.harness.report import Spread, write_report
from starspec.observe.trace import Trace
from starspec.output_files import why_no_file, why_no_log, write_whole


def saving_options(group: TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command line that ends with an option for a result's file."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from saving_options(command, (*words, name))
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        yield from ((*words, name, option) for option in SAVING_OPTIONS if option in options)


OTHER = 65534  # a user that owns nothing
SAVING_OPTIONS = ("--json", "--png", "--trace", "--audit-log")
ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)
SAVING = list(saving_options(ROOT))


TARGET = ("--target", "synthetic:")
NEEDED = {
    "up": TARGET,
    "serve": TARGET,
    "target": TARGET,
    "stage": ("--model", "synthetic:", "--layers", "0:1", "--listen", "tcp://127.0.0.1:0"),
    "draft": ("--spec-method", "ngram"),
    "gateway": TARGET,
}


def line_with(words: tuple[str, ...], path: Path) -> tuple[str, ...]:
    """A command line that is complete but for the file; typer would complain of missing options first."""
    *command, option = words
    if option not in ("--trace", "--audit-log"):  # checked while typer reads the options
        return (*words, str(path))
    return (*command, *NEEDED[command[0]], option, str(path))


def refusal(outcome) -> str:
    """The one sentence that a mistake is answered with."""
    assert (outcome.code, outcome.out) == (2, "")
    (sentence,) = outcome.err.splitlines()
    return sentence


def test_all_benchmarks_save_their_results() -> None:
    names = {words[1] for words in SAVING if words[0] == "bench"}
    synthetic = {"star", "async", "length", "shard", "wire"}
    assert names == synthetic | {
        "pair",
        "tree",
        "batch",
        "relaxed",
        "warm",
        "vllm",
        "faults",
        "certify",
        "grammar",
        "watch",
    }
    assert {("verify", "--json"), ("doctor", "--json"), ("train", "--json"), ("bench", "tree", "--png")} <= set(SAVING)


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_a_folder_is_no_files_name(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    folder = tmp_path / "folder.png"
    folder.mkdir()
    sentence = refusal(starspec(*line_with(words, folder)))
    assert words[-1] in sentence
    assert f": '{folder}' is a folder: give the name of a file" in sentence


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_nothing_is_saved_below_a_file(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = refusal(starspec(*line_with(words, tmp_path / "file" / "result.png")))
    assert words[-1] in sentence
    assert f"cannot be written: '{tmp_path / 'file'}' is not a folder" in sentence


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_no_folder_is_made_for_a_file(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    sentence = refusal(starspec(*line_with(words, tmp_path / "new" / "result.png")))
    assert f"cannot be written: there is no folder '{tmp_path / 'new'}'" in sentence
    assert list(tmp_path.iterdir()) == []


FOLDERS = [("keygen",), ("train", "--out"), ("bench", "star", "--traces"), ("bench", "async", "--traces")]


@pytest.mark.parametrize("words", FOLDERS, ids=" ".join)
def test_a_folder_is_made_in_a_folder_that_is_there_and_not_at_the_root(words, starspec, tmp_path: Path) -> None:
    root = Path(tmp_path.root)
    assert f"there is no folder '{tmp_path / 'new'}'" in refusal(starspec(*words, str(tmp_path / "new" / "out")))
    assert "would be a new folder at the root" in refusal(starspec(*words, str(root / "starspec-was-here")))
    (tmp_path / "file").write_text("")
    assert "is a file: give the name of a folder" in refusal(starspec(*words, str(tmp_path / "file")))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert not (root / "starspec-was-here").exists()


def test_nothing_is_saved_under_a_name_that_no_file_can_have(starspec, tmp_path: Path) -> None:
    sentence = refusal(starspec("bench", "wire", "--json", str(tmp_path / ("x" * 300))))
    assert "cannot be written: File name too long" in sentence


def test_nothing_is_saved_behind_a_link_that_leads_nowhere(starspec, tmp_path: Path) -> None:
    dangling, loop = tmp_path / "dangling.json", tmp_path / "loop.json"
    dangling.symlink_to("none/result.json")
    loop.symlink_to(loop)
    sentence = refusal(starspec("bench", "wire", "--json", str(dangling)))
    assert f"'{dangling}' cannot be written: there is no folder '{tmp_path / 'none'}'" in sentence
    sentence = refusal(starspec("bench", "wire", "--json", str(loop)))
    assert f"'{loop}' cannot be written: Too many levels of symbolic links" in sentence
    assert "it is a link to nothing" in refusal(starspec("keygen", str(dangling)))
    with pytest.raises(OutputError, match="Too many levels of symbolic links"):
        write_whole(loop, b"new")


def test_a_file_is_not_replaced_in_a_folder_that_is_read_only(starspec, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "result.json").write_text("earlier")
    monkeypatch.setattr("os.access", lambda place, _mode: place != tmp_path)  # to root no folder is read-only
    sentence = refusal(starspec("bench", "wire", "--json", str(tmp_path / "result.json")))
    assert f"cannot be written: '{tmp_path}' is read-only" in sentence


def test_a_log_is_appended_to_in_a_folder_that_is_read_only(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "audit").write_text("earlier\n")
    monkeypatch.setattr("os.access", lambda place, _mode: place != tmp_path)
    assert why_no_log(tmp_path / "audit") is None
    assert why_no_log(tmp_path / "other") == f"'{tmp_path / 'other'}' cannot be written: '{tmp_path}' is read-only"


def test_a_pipe_behind_a_link_is_written_to() -> None:
    reader, writer = os.pipe()
    assert why_no_file(Path(f"/dev/fd/{writer}")) is None
    write_whole(Path(f"/dev/fd/{writer}"), b"new")
    os.close(writer)
    with os.fdopen(reader, "rb") as read:
        assert read.read() == b"new"


@pytest.mark.parametrize("words", [each for each in SAVING if each[-1] == "--audit-log"], ids=" ".join)
def test_an_audit_log_is_a_regular_file(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a reader
    sentence = refusal(starspec(*line_with(words, tmp_path / "pipe")))
    assert sentence == f"starspec: --audit-log: '{tmp_path / 'pipe'}' is not a regular file"


def test_nothing_is_saved_where_this_process_may_not_write(starspec, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda place, _mode: place != tmp_path)  # to root no folder is read-only
    sentence = refusal(starspec("bench", "wire", "--json", str(tmp_path / "result.json")))
    assert f"cannot be written: '{tmp_path}' is read-only" in sentence


def test_a_folder_is_written_to_by_whoever_may_enter_it_and_need_not_be_listed(tmp_path: Path, monkeypatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # others may not enter the parents of tmp_path
        folder = Path(name)
        os.chown(folder, OTHER if os.geteuid() == 0 else -1, -1)
        folder.chmod(stat.S_IWUSR | stat.S_IXUSR)
        with no_root():
            assert why_no_file(folder / "result.json") is None
            write_whole(folder / "result.json", b"new")
        folder.chmod(stat.S_IRWXU)
        assert (folder / "result.json").read_bytes() == b"new"
    monkeypatch.setattr("os.access", lambda _place, mode: not mode & os.X_OK)
    assert "is read-only" in (why_no_file(tmp_path / "result.json") or "")


@contextmanager
def no_root() -> Iterator[None]:
    """Root may do everything."""
    before = os.geteuid()
    os.seteuid(OTHER if before == 0 else before)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_nothing_is_saved_on_a_full_disk(words: tuple[str, ...], starspec, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("os.fstatvfs", lambda _: SimpleNamespace(f_blocks=1000, f_bfree=0))
    sentence = refusal(starspec(*line_with(words, tmp_path / "result.png")))
    assert words[-1] in sentence
    assert "result.png' cannot be written: No space left on device" in sentence
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_saved_to_a_full_device(starspec) -> None:
    sentence = refusal(starspec("bench", "wire", "--json", "/dev/full"))
    assert "'/dev/full' cannot be written: No space left on device" in sentence


@pytest.mark.parametrize("command", ["tree", "batch", "relaxed"])
@pytest.mark.parametrize("name", ["picture.foo", "picture", ".png"])
def test_a_picture_is_refused_whose_name_ends_as_none_can(command: str, name: str, starspec, tmp_path: Path) -> None:
    sentence = refusal(starspec("bench", command, "--png", str(tmp_path / name)))
    assert "invalid value for '--png': the name of a picture ends with .png, .svg or .pdf, not" in sentence


@pytest.mark.parametrize("words", [("--json", "result.json"), ("--png", "picture.SVG"), ("--json", "/dev/null")])
def test_a_file_that_can_be_written_is_refused_by_nobody_and_not_yet_made(
    words: tuple[str, str], starspec, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "missing option '--target' / '--model'" in refusal(starspec("bench", "tree", *words))
    assert list(tmp_path.iterdir()) == []


OVERWRITING = {
    "prompts": (("verify", *TARGET, "--spec-method", "ngram", "--prompts", "a.json", "--json", "a.json"), "--prompts"),
    "prompts behind a link": (
        ("bench", "pair", *TARGET, "--draft", "synthetic:", "--dataset", "a.json", "--json", "link.json"),
        "--dataset",
    ),
    "a result": (("bench", "length", "--json", "a.png", "--png", "a.png"), "--png"),
    "links": (("lab", "a.json", "--json", "./a.json"), "FILE"),
    "a model": (("up", "a.gguf", "--trace", "a.gguf"), "MODEL"),
    "a draft": (("draft", "--draft", "a.gguf", "--audit-log", "a.gguf"), "--draft / --spec-model"),
    "a log": (("up", *TARGET, "--trace", "a.json", "--audit-log", "a.json"), "--trace"),
    "a report": (("doctor", *TARGET, "--draft", "x", "--tree-report", "a.json", "--json", "a.json"), "--tree-report"),
}


@pytest.mark.parametrize("case", OVERWRITING)
def test_a_file_that_is_written_is_no_other_file_of_the_command(case, starspec, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "a.gguf"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "link.json").symlink_to("a.json")
    words, what = OVERWRITING[case]
    sentence = refusal(starspec(*words))
    assert f" and {what} name one file, '" in sentence
    assert "which would be overwritten: name another one" in sentence
    assert (tmp_path / "a.json").read_text() == (tmp_path / "a.gguf").read_text() == "mine"


def test_a_device_holds_nothing_that_could_be_overwritten(starspec) -> None:
    outcome = starspec("bench", "star", "--json", "/dev/null", "--dataset", "/dev/null")
    assert "needs both --target and --draft" in outcome.err


def disk_is_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


SAVED = {
    "report": lambda path: write_report(Spread.of([1.0]), path),
    "trace": lambda path: Trace("hub").write(path),
    "bytes": lambda path: write_whole(path, b"new"),
}


@pytest.mark.parametrize("what", SAVED)
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(what: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "result.json"
    path.write_text("earlier")
    monkeypatch.setattr(Path, "write_bytes", disk_is_full)
    with pytest.raises(OutputError, match=r"result\.json' cannot be written: No space left on device"):
        SAVED[what](path)
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]
    assert path.read_text() == "earlier"


@pytest.mark.parametrize("what", SAVED)
def test_a_device_is_written_to_and_stays_a_device(what: str) -> None:
    with pytest.raises(OutputError, match="'/dev/full' cannot be written: No space left on device"):
        SAVED[what](Path("/dev/full"))
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    SAVED[what](Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_behind_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("words", [("--version",), ("up", "--help"), ("generate", "Hello", "--target", "synthetic:")])
def test_standard_output_on_a_full_disk_is_one_sentence(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "starspec", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("starspec: ")]
    assert sentence == "starspec: the output cannot be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("generate", "Hello", "--target", "synthetic:"), 1),
        (("verify", "--target", "synthetic:"), 2),
        (("--nonsense",), 2),
    ],
)
def test_standard_error_on_a_full_disk_leaves_the_exit_code(words: tuple[str, ...], code: int) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "starspec", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")


def test_a_log_on_a_full_disk_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        log_to_stderr("info")
        for _ in range(1000):  # more than a buffer holds
            structlog.get_logger().info("target joined", target="a")
        structlog.reset_defaults()
        with contextlib.suppress(OSError):
            full.close()
