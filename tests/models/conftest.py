import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `tiny`


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M."""
    models = Path(os.environ.get("STARSPEC_MODELS", Path.home() / ".cache" / "starspec-models"))
    return models / "smollm2-135m"
