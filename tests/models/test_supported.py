import json
import re

import pytest
import transformers

from starspec.config import ModelConfig
from starspec.errors import ModelError, StarspecError
from starspec.models.loading.load import load_runner
from starspec.models.loading.transformers_calls import first_line

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
OWN_SHAPES = (transformers.Gemma3Config, transformers.ViTConfig, transformers.T5Config)
NOT_SUPPORTED = {
    "chunks": (transformers.Llama4TextConfig, {}, "attend in chunks"),
    "positions by the batch": (
        transformers.LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
            "max_position_embeddings": 256,
        },
        "use --max-model-len 64",
    ),
    "state space": (transformers.MambaConfig, {}, r"\(linear_attention\), which cannot be rolled back"),
    "hybrid": (transformers.JambaConfig, {}, "more state than keys and values|recurrent state"),
    "linear attention": (transformers.Qwen3NextConfig, {}, r"linear_attention"),
    "recurrent": (transformers.RwkvConfig, {}, "recurrent state"),
    "encoder-decoder": (transformers.T5Config, {}, "encoder-decoder"),
    "encoder": (transformers.BertConfig, {}, "bidirectional encoder"),
    "own attention": (transformers.BloomConfig, {}, "has its own attention"),
    "own attention, with rotary positions": (transformers.GPTJConfig, {}, "has its own attention"),
    "own attention, Falcon": (transformers.FalconConfig, {}, "has its own attention"),
    "own attention, MPT": (transformers.MptConfig, {}, "has its own attention"),
    "images too": (transformers.Gemma3Config, {}, "several models"),
    "classifier": (transformers.LlamaConfig, {"architectures": ["LlamaForSequenceClassification"]}, "not a causal"),
    "masked": (transformers.BertConfig, {"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, not a causal"),
    "images only": (transformers.ViTConfig, {}, "not a causal language model"),
    "quantized": (transformers.LlamaConfig, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"\(gptq\)"),
}


def refusal(config, folder):
    config.save_pretrained(folder)
    with pytest.raises(StarspecError) as raised:
        load_runner(ModelConfig(model=str(folder), max_model_len=128))
    return str(raised.value)


@pytest.mark.parametrize("kind", NOT_SUPPORTED)
def test_what_the_cache_cannot_serve_is_refused_in_one_sentence(kind, tmp_path):
    config_class, changes, why = NOT_SUPPORTED[kind]
    sentence = refusal(config_class(**{**({} if config_class in OWN_SHAPES else SIZES), **changes}), tmp_path)
    assert re.search(why, sentence), sentence
    assert "\n" not in sentence
    assert str(tmp_path) in sentence


def test_code_in_a_model_folder_is_never_run(tmp_path):
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('ran')\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "modeling_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json of .* cannot be read"):
        load_runner(ModelConfig(model=str(tmp_path)))


@pytest.mark.parametrize("error", [
    "Shapes do not fit. For details look at the above report!",
    "Shapes do not fit. For details look at the `CONVERSION` entries of the above report!",
])  # fmt: skip
def test_no_sentence_points_to_a_report_that_nobody_sees(error):
    assert first_line(RuntimeError(error)) == "Shapes do not fit"
