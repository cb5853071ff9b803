"""`starspec train` on a device that is not the CPU: `python train_on_accelerator.py TARGET PROMPTS OUT [OPTION...]`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from pretend_accelerator import NAME, Crossing
from train_toys import train

from starspec.models import load
from starspec.train import features


def main() -> int:
    check_refusal()
    load.take_device = features.take_device = lambda _: torch.device(NAME)  # type: ignore[attr-defined]
    target, prompts, out, *options = sys.argv[1:]
    with Crossing():
        return train(Path(target), Path(prompts), Path(out), "--device", "cuda", *options)


def check_refusal() -> None:
    """What would fail on a GPU fails here, or what follows shows nothing."""
    try:
        torch.ones(2).to(NAME) + torch.ones(2)
    except RuntimeError:
        return
    raise AssertionError("tensors of two devices were added")


if __name__ == "__main__":
    sys.exit(main())
