import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "target"))  # for `toy` and `toy_hub`
sys.path.insert(0, str(Path(__file__).parent))  # for `toy_vllm`
