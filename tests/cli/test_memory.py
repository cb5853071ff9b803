"""Too little memory is one sentence, wherever it is found."""

import pytest

from starspec.cli import run
from starspec.cli.process import ServerProcess
from starspec.config import ProcessConfig
from starspec.supervise.report import Failed

FOUND = {
    "by torch": RuntimeError("unable to mmap 269060552 bytes from file <model>: Cannot allocate memory (12)"),
    "by the linker": ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    "by the system": OSError(12, "Cannot allocate memory"),
    "by Python": MemoryError(),
}


@pytest.mark.parametrize("error", FOUND.values(), ids=FOUND)
def test_a_command_says_so_in_one_sentence(error: Exception, monkeypatch, capsys) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("starspec.cli.app", fail)
    assert run(["generate", "hi"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("starspec: there is not enough memory, or `ulimit -v` or a container allows too little")


@pytest.mark.parametrize("error", FOUND.values(), ids=FOUND)
def test_a_process_of_up_tells_its_supervisor(error: Exception) -> None:
    class Line:
        def __init__(self) -> None:
            self.sent: list[object] = []

        def send(self, report: object) -> None:
            self.sent.append(report)

    process = ServerProcess("target-0", ProcessConfig())
    process._line = line = Line()
    with pytest.raises(SystemExit), process.reporting_failure():
        raise error
    (report,) = line.sent
    assert isinstance(report, Failed)
    assert "there is not enough memory" in report.reason


def test_another_error_keeps_its_traceback(monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("starspec.cli.app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(["generate", "hi"])
