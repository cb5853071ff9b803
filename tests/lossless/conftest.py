import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "sampling"))  # for `spec_strategies`
sys.path.insert(0, str(Path(__file__).parent))  # for `table_star`
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `predictable`
