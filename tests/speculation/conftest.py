import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "sampling"))  # for `spec_strategies`
