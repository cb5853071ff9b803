import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / each) for each in ("stages", "models", "engine")]  # toys; `stages`, `tiny`; `toy_hub`
