import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "hub"))  # for `hub_toys`
sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for `toy_hub`
sys.path.insert(0, str(Path(__file__).parent))  # for what tests of policies share
