import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "train"))  # for `slow_head`
sys.path.insert(0, str(Path(__file__).parent))  # for `hub_toys`
