"""`starspec train` on a device that is not the CPU: `train_on_accelerator.py TARGET PROMPTS OUT STEPS [OPTION...]`.

STEPS are those of each start, as in "4,6": a later one takes up the state of an earlier one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from pretend_accelerator import NAME, Crossing
from train_toys import train

from starspec.models.loading import checks, load
from starspec.train import features


def main() -> int:
    with Crossing():
        check_refusal()
    load.take_device = features.take_device = lambda _: torch.device(NAME)  # type: ignore[attr-defined]
    checks.check_there = lambda *_: None  # type: ignore[attr-defined]  # it looks for device files
    target, prompts, out, starts, *options = sys.argv[1:]
    with Crossing():
        for steps in starts.split(","):
            if code := train(Path(target), Path(prompts), Path(out), "--device", "cuda", "--steps", steps, *options):
                return code
    return 0


def check_refusal() -> None:
    """What would fail on a GPU fails here, or what follows shows nothing."""
    here, there = torch.ones(2), torch.ones(2).to(NAME)
    places = torch.tensor([1, 0])
    assert there[places].tolist() == [1, 1]  # as on a GPU, places may be here
    mistakes: dict[str, Callable[[], object]] = {
        "a sum": lambda: there + here,
        "an assignment": lambda: there.__setitem__(places, here),
        "numpy's view": there.numpy,
    }
    for name, mistake in mistakes.items():
        try:
            mistake()
        except (RuntimeError, TypeError):
            continue
        raise AssertionError(f"{name} of two devices is not refused")


if __name__ == "__main__":
    sys.exit(main())
