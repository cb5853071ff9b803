"""A training as a picture: the loss and how often the first token is right; acceptance lengths on held-out answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starspec.errors import ConfigError
from starspec.train.trainer import Progress

SMOOTHED = 20  # steps that one point of the loss is the mean of


def draw_curves(progress: Progress, path: Path) -> None:
    """Save both panels. Nothing is drawn without matplotlib.

    Raises: ConfigError if the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    except ImportError:
        return
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps, losses, shares = (
        (list(each) for each in zip(*progress.losses, strict=True)) if progress.losses else ([],) * 3
    )
    left.plot(_means(steps), _means(losses), color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss", color="tab:blue")
    beside = left.twinx()
    beside.plot(_means(steps), _means(shares), color="tab:orange")
    beside.set_ylabel("first token right", color="tab:orange")
    right.plot(*(list(each) for each in zip(*progress.acceptance, strict=True)), marker="o")
    right.set_xlabel("step")
    right.set_ylabel("tokens a round, chain of 4, held-out")
    right.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be written: {error.strerror}") from error


def _means(values: Sequence[float]) -> list[float]:
    """Of every `SMOOTHED` values."""
    pieces = [values[at : at + SMOOTHED] for at in range(0, len(values), SMOOTHED)]
    return [sum(piece) / len(piece) for piece in pieces]
