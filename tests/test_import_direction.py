"""Dependencies point one way: the imports that are allowed (docs/architecture.md, Layout), read off the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import starspec

SOURCE = Path(starspec.__file__).parent
LEAVES = {
    "audit",
    "draft_methods",
    "errors",
    "fingerprint",
    "ids",
    "json_text",
    "log_limit",
    "openmp",
    "output_files",
    "quoting",
    "tracing",
}  # every package may import these; they import nothing of ours
BELOW_MODELS = {"stats", "sampling", "speculation", "config", "policy", "cache", "wire"}
ENGINE = BELOW_MODELS | {"models", "observe", "sampling_params", "request_specs", "grammars"}
SERVERS = ENGINE | {"client", "hub", "windows", "stages", "engine", "gateway", "supervise"}

# a package or root module -> what it may import besides itself and the leaves
ARROWS = {
    "audit": {"errors"},
    "draft_methods": set(),
    "errors": set(),
    "fingerprint": set(),
    "ids": set(),
    "json_text": set(),
    "log_limit": set(),
    "openmp": set(),
    "output_files": set(),
    "quoting": set(),
    "tracing": set(),
    "stats": set(),
    "sampling": set(),
    "speculation": {"sampling"},
    "config": {"speculation"},
    "policy": {"stats", "speculation", "config"},
    "cache": {"speculation"},
    "wire": {"stats", "sampling", "speculation", "config", "policy"},
    "client": BELOW_MODELS - {"cache"},
    "structured_outputs": {"sampling"},
    "sampling_params": {"sampling", "config", "structured_outputs"},
    "grammars": {"sampling", "speculation"},
    "request_specs": {"config", "sampling_params", "wire"},
    "models": {"stats", "cache", "speculation", "config"},
    "windows": {"stats", "cache", "sampling", "speculation", "config", "policy", "models"},
    "stages": BELOW_MODELS | {"models", "windows"},
    "observe": {"stats", "wire", "config"},
    "hub": ENGINE,
    "engine": ENGINE | {"client", "windows", "stages"},
    "gateway": ENGINE | {"structured_outputs"},
    "supervise": {"stats", "policy", "wire", "observe", "config"},
    "integrations": BELOW_MODELS - {"cache"} | {"client"},
    "child_hub": ENGINE | {"engine", "supervise"},
    "local_star": ENGINE | {"client", "hub", "engine", "child_hub"},
    "lab": {"config", "wire"},
    "inputs": {"config", "sampling_params"},
    "outputs": {"stats", "wire"},
    "llm": ENGINE | {"windows", "engine", "local_star", "inputs", "outputs"},
    "harness": SERVERS | {"llm", "local_star", "__init__"},
    "bench": SERVERS | {"stages", "lab", "harness", "llm", "local_star", "__init__"},
    "doctor": ENGINE | {"hub", "engine", "stages", "local_star", "harness", "integrations"},
    "train": ENGINE | {"llm", "harness"},
    "cli": SERVERS | {"lab", "llm", "local_star", "harness", "bench", "doctor", "train", "__init__"},
    "__init__": {"config", "sampling_params", "structured_outputs", "outputs", "llm"},
    "__main__": {"cli"},
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The package or root module that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> Iterator[str]:
    """Parts of ours that a file imports, at whatever depth of its code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the arrow"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            words = name.split(".")
            if words[0] == "starspec":
                yield words[1] if len(words) > 1 else "__init__"


def imported_libraries(path: Path) -> Iterator[str]:
    """Top-level packages that a file imports, ours among them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    part = part_of(path)
    forbidden = set(imported_parts(path)) - ARROWS[part] - LEAVES - {part, "__version__"}
    assert not forbidden, f"{part} must not import {sorted(forbidden)}"


def test_the_arrows_have_no_cycle() -> None:
    left = {part: targets - LEAVES for part, targets in ARROWS.items()}
    while left:
        bottom = {part for part, targets in left.items() if not targets & left.keys()}
        assert bottom, f"a cycle among {sorted(left)}"
        left = {part: targets for part, targets in left.items() if part not in bottom}


def test_only_the_command_line_imports_the_benchmarks() -> None:
    assert [part for part, targets in ARROWS.items() if "bench" in targets] == ["cli"]


def imported_modules(path: Path, known: set[str]) -> Iterator[str]:
    """Modules of ours that a file imports while it is loaded, or for type checking: imports in functions excepted."""
    nodes: list[ast.stmt] = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.If):
            nodes += [*node.body, *node.orelse]


def module_of(path: Path) -> str:
    return ".".join(["starspec", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {path: module_of(path) for path in modules()}
    known = set(names.values())
    left = {name: {each for each in imported_modules(path, known) if each in known} for path, name in names.items()}
    while left:
        bottom = {name for name, imported in left.items() if not imported & left.keys()}
        assert bottom, f"a circle among {sorted(left)}"
        left = {name: imported for name, imported in left.items() if name not in bottom}


def test_hub_and_engine_do_not_know_each_other() -> None:
    assert "engine" not in ARROWS["hub"]
    assert "hub" not in ARROWS["engine"]


DEVICES_AND_WAITING = {"torch", "zmq", "socket", "asyncio", "threading", "time", "subprocess"}


@pytest.mark.parametrize("path", sorted((SOURCE / "policy").rglob("*.py")), ids=lambda path: path.stem)
def test_policies_import_no_sockets_devices_or_sleep(path: Path) -> None:
    assert not set(imported_libraries(path)) & DEVICES_AND_WAITING


@pytest.mark.parametrize("path", sorted((SOURCE / "policy").rglob("*.py")), ids=lambda path: path.stem)
def test_policies_are_told_the_time_and_ask_no_clock(path: Path) -> None:
    arguments = [node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.arg)]
    assert not [name for name in arguments if "clock" in name]


@pytest.mark.parametrize(
    "module",
    [
        "starspec",
        "starspec.cli",
        "starspec.wire.messages",
        "starspec.wire.session",
        "starspec.wire.stage_session",
        "starspec.client.connection",
        "starspec.client.tag",
        "starspec.integrations.vllm",
        "starspec.lab",
    ],
)
def test_what_holds_no_model_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_servers_and_the_offline_api_are_imported_without_transformers() -> None:
    """It is imported once it is needed, in an order that leaves torch's compiler out (`import_config_checks`)."""
    code = "import sys, starspec.llm, starspec.hub.server, starspec.engine.build, starspec.gateway.server\n"
    code += "sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
