"""Dependencies point one way: the arrows of docs/architecture.md, read off the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import starspec

SOURCE = Path(starspec.__file__).parent
LEAVES = {
    "draft_methods",
    "errors",
    "fingerprint",
    "ids",
    "openmp",
    "tracing",
}  # every package may import these; they import nothing of ours
ENGINE = {"speculation", "length", "cache", "models", "wire", "observe", "config", "sampling_params", "request_specs"}
SERVERS = ENGINE | {"draft", "target", "gateway", "supervise"}

# a package or root module -> what it may import besides itself and the leaves
ARROWS = {
    "draft_methods": set(),
    "errors": set(),
    "fingerprint": set(),
    "ids": set(),
    "openmp": set(),
    "tracing": set(),
    "config": {"speculation"},
    "speculation": set(),
    "sampling_params": {"speculation", "config"},
    "request_specs": {"sampling_params", "wire"},
    "length": {"speculation", "config"},
    "cache": {"speculation"},
    "wire": {"speculation", "config"},
    "models": {"cache", "speculation", "config"},
    "observe": {"speculation", "wire", "config"},
    "draft": ENGINE,
    "target": ENGINE,
    "gateway": ENGINE,
    "supervise": {"speculation", "wire", "observe", "config"},
    "integrations": {"speculation", "wire", "config"},
    "local_star": ENGINE | {"draft", "target"},
    "llm": ENGINE | {"target", "local_star"},
    "bench": SERVERS | {"llm", "local_star", "__init__"},
    "doctor": ENGINE | {"draft", "target", "local_star", "bench", "integrations"},
    "train": ENGINE | {"llm", "bench"},
    "cli": SERVERS | {"llm", "local_star", "bench", "doctor", "train", "__init__"},
    "__init__": {"config", "sampling_params", "llm"},
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


def test_draft_and_target_do_not_know_each_other() -> None:
    assert "target" not in ARROWS["draft"]
    assert "draft" not in ARROWS["target"]


@pytest.mark.parametrize(
    "module",
    ["starspec", "starspec.cli", "starspec.wire.messages", "starspec.wire.session", "starspec.integrations.vllm"],
)
def test_what_holds_no_model_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
