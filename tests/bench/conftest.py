"""A tiny Llama with random weights in a folder of its own, with the tokenizer of the synthetic models; and a pair
of a target and an EAGLE head whose every word is known."""

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from transformers import LlamaConfig, LlamaForCausalLM

from starspec.harness.figures import COLOURS
from starspec.models.synthetic.tokenizer import synthetic_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `predictable`


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    synthetic_tokenizer("synthetic:vocab=128").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def headed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and of its head, whose chains are right once."""
    from predictable import write_reader, write_target

    folder = tmp_path_factory.mktemp("headed")
    return str(write_target(folder / "target")), str(write_reader(folder / "head"))


@pytest.fixture(autouse=True)
def pictures_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every picture of this folder has axes with units, colours of one palette, and texts that do not overlap."""
    save = Figure.savefig

    def check_and_save(figure: Figure, *args: Any, **options: Any) -> None:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        assert any(panel.get_xlabel() for panel in figure.axes)
        for panel in figure.axes:
            assert not panel.lines or panel.get_xlabel(), panel
            marked = [line for line in panel.lines if line.get_marker() != "None"]
            assert {to_hex(line.get_color()).upper() for line in marked} <= {*COLOURS}
        texts = list(_texts(figure, canvas))
        for text, place in texts:
            assert figure.bbox.x0 <= place.x0 <= place.x1 <= figure.bbox.x1, text
            assert figure.bbox.y0 <= place.y0 <= place.y1 <= figure.bbox.y1, text
        for (one, first), (other, second) in combinations(texts, 2):
            assert not first.overlaps(second), (one, other)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", check_and_save)


def _texts(figure: Figure, canvas: FigureCanvasAgg) -> Iterator[tuple[str, Any]]:
    """Labels, titles and legends of a picture, each with where it is."""
    renderer = canvas.get_renderer()
    texts = [figure._suptitle, *(text for legend in figure.legends for text in legend.get_texts())]
    for panel in figure.axes:
        texts += [panel.xaxis.label, panel.yaxis.label, panel.title, panel._left_title, *panel.texts]
        texts += [] if panel.get_legend() is None else panel.get_legend().get_texts()
        texts += [tick.label1 for axis in (panel.xaxis, panel.yaxis) for tick in axis._update_ticks()]
    for text in texts:
        if text is not None and text.get_visible() and text.get_text():
            yield text.get_text(), text.get_window_extent(renderer)
