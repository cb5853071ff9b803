import sys

import pytest
import torch

from starspec.errors import ConfigError
from starspec.models.torchao_linear import TorchaoLinear


def test_without_torchao_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ConfigError, match=r"need torchao; install starspec\[cuda\]"):
        TorchaoLinear("int8", torch.zeros(32, 32), None)
