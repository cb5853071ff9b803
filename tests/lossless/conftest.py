import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "sampling"))  # for `spec_strategies`
sys.path.insert(0, str(Path(__file__).parent))  # for `table_star`
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `predictable`

from starspec.bench.claims import MAX_MODEL_LEN
from starspec.config import ModelConfig
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.workbench import Workbench

NUM_ROWS = 16  # of the largest batch


@pytest.fixture(scope="session")
def float32_bench(smollm2: Path) -> Workbench:
    """SmolLM2 in float32, loaded once for all files of this folder."""
    config = ModelConfig(model=str(smollm2), dtype="float32", num_rows=NUM_ROWS, max_model_len=MAX_MODEL_LEN)
    return Workbench(config)


@pytest.fixture(scope="session")
def float32_known() -> KnownPrompts:
    """Prompts that `float32_bench` has prefilled. How it does that has no part in drafting, so tests may share them."""
    return KnownPrompts()
