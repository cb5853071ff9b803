import json
import re

import pytest
import transformers
from tiny import SHAPE, make_model

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.loading.load import load_runner

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
OWN_SHAPES = (transformers.Gemma3Config, transformers.ViTConfig, transformers.T5Config)
NOT_SUPPORTED = {
    "window by layer": (transformers.Gemma2Config, {}, "sliding-window attention"),
    "window on every layer": (transformers.MistralConfig, {"sliding_window": 64}, "sees only 64 tokens"),
    "state space": (transformers.MambaConfig, {}, r"\(linear_attention\), which cannot be rolled back"),
    "hybrid": (transformers.JambaConfig, {}, "more state than keys and values|recurrent state"),
    "linear attention": (transformers.Qwen3NextConfig, {}, r"linear_attention"),
    "recurrent": (transformers.RwkvConfig, {}, "recurrent state"),
    "encoder-decoder": (transformers.T5Config, {}, "encoder-decoder"),
    "encoder": (transformers.BertConfig, {}, "bidirectional encoder"),
    "own attention": (transformers.BloomConfig, {}, "has its own attention"),
    "latent attention": (transformers.DeepseekV3Config, {}, "latent attention"),
    "images too": (transformers.Gemma3Config, {}, "several models"),
    "classifier": (transformers.LlamaConfig, {"architectures": ["LlamaForSequenceClassification"]}, "not a causal"),
    "masked": (transformers.BertConfig, {"architectures": ["BertForMaskedLM"]}, "is a BertForMaskedLM, not a causal"),
    "images only": (transformers.ViTConfig, {}, "not a causal language model"),
    "quantized": (transformers.LlamaConfig, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"\(gptq\)"),
}


def refusal(config, folder):
    config.save_pretrained(folder)
    with pytest.raises(ModelError) as raised:
        load_runner(ModelConfig(model=str(folder), max_model_len=128))
    return str(raised.value)


@pytest.mark.parametrize("kind", NOT_SUPPORTED)
def test_what_the_cache_cannot_serve_is_refused_in_one_sentence(kind, tmp_path):
    config_class, changes, why = NOT_SUPPORTED[kind]
    sentence = refusal(config_class(**{**({} if config_class in OWN_SHAPES else SIZES), **changes}), tmp_path)
    assert re.search(why, sentence), sentence
    assert "\n" not in sentence


def test_code_in_a_model_folder_is_never_run(tmp_path):
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('ran')\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "modeling_own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config\.json of .* cannot be read"):
        load_runner(ModelConfig(model=str(tmp_path)))


def test_a_window_that_no_sequence_outgrows_is_plain_attention(tmp_path, save_with_tokenizer):
    model = make_model("mistral", sliding_window=64)
    save_with_tokenizer(model, tmp_path)
    runner = load_runner(ModelConfig(model=str(tmp_path), max_model_len=64))
    assert runner.info.max_model_len == 64


def test_the_window_sentence_says_which_length_works(tmp_path):
    sentence = refusal(transformers.MistralConfig(**{**SHAPE, "sliding_window": 64}), tmp_path)
    assert "--max-model-len 64" in sentence
