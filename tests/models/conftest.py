import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `tiny`


@pytest.fixture
def save_with_tokenizer():
    """The function of that name in `tiny`."""
    import tiny

    return tiny.save_with_tokenizer
