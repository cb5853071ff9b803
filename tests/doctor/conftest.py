import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "models"), str(Path(__file__).parent)]  # `predictable`, `plain_vllm`


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from predictable import write_target

    return write_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def narrow_target(target_folder: Path, tmp_path: Path) -> Path:
    """The same tokenizer, and hidden states of half the size."""
    folder = shutil.copytree(target_folder, tmp_path / "narrow")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": config["hidden_size"] // 2}))
    return folder
