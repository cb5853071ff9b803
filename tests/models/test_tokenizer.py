import json
import subprocess
import sys

import pytest
from tiny import make_model
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from starspec.config import ModelConfig
from starspec.errors import ModelError, VocabularyMismatch
from starspec.fingerprint import vocab_fingerprint
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import (
    bad_words_of,
    check_pair,
    check_vocabularies,
    check_vocabulary_files,
    eos_token_ids,
    load_tokenizer,
)
from starspec.models.loading.transformers_calls import first_line

WORDS = ("<eos>", "red", "green", "blue")


def make_tokenizer(words=WORDS, added=()):
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=words[0])
    fast.add_tokens(list(added))
    return fast


def make_bpe():
    vocab = {token: index for index, token in enumerate(("Ġ", "a", "b", "Ġa", "ab", "Ġab"))}
    tokenizer = Tokenizer(BPE(vocab, [("a", "b"), ("Ġ", "ab"), ("Ġ", "a")]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def write_json(path, content):
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [
        ("ab", ((4,), (5,))),
        (" ab", ((4,), (5,))),  # as in vLLM: with and without the space
        ("b", ((2,),)),  # behind a space it has a token more, and the same last one
        ("aba", ((4, 1), (5, 1))),
        (" ", ((0,),)),
    ],
)
def test_bad_words_are_sequences_of_tokens_at_the_beginning_and_behind_a_space(text, token_ids):
    assert bad_words_of(make_bpe(), [text]) == token_ids


def test_the_fingerprint_is_of_the_ids_and_survives_saving(tmp_path):
    tokenizer = make_tokenizer(added=["<tool>"])
    tokenizer.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "llama", "vocab_size": 999})
    assert vocab_fingerprint(load_tokenizer(str(tmp_path))) == vocab_fingerprint(tokenizer)


@pytest.mark.parametrize(
    "other",
    [
        make_tokenizer(("<eos>", "green", "red", "blue")),
        make_tokenizer(WORDS[:-1]),
        make_tokenizer(added=["<tool>"]),
    ],
    ids=["swapped", "shorter", "added"],
)
def test_any_other_id_changes_the_fingerprint(other):
    assert vocab_fingerprint(other) != vocab_fingerprint(make_tokenizer())


def test_a_padded_embedding_is_the_same_vocabulary(tmp_path):
    """Qwen2.5 has 151936 embedding rows in its small models and 152064 in its large ones, with one tokenizer."""
    for name, vocab_size in (("small", 151936), ("large", 152064)):
        make_tokenizer().save_pretrained(tmp_path / name)
        write_json(tmp_path / name / "config.json", {"model_type": "qwen2", "vocab_size": vocab_size})
    check_pair(str(tmp_path / "small"), str(tmp_path / "large"))


def test_a_mismatch_names_sizes_and_the_first_different_token():
    with pytest.raises(
        VocabularyMismatch, match=r"4 tokens against 4, first different at id 1 \('red' against 'green'\)"
    ):
        check_vocabularies(make_tokenizer(), make_tokenizer(("<eos>", "green", "red", "blue")))


def test_a_shorter_vocabulary_is_a_mismatch():
    with pytest.raises(
        VocabularyMismatch, match=r"4 tokens against 3, first different at id 3 \('blue' against no token\)"
    ):
        check_vocabularies(make_tokenizer(), make_tokenizer(WORDS[:-1]))


def test_end_tokens_of_all_places_count(tmp_path):
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [7, 3]})
    write_json(tmp_path / "config.json", {"eos_token_id": 5})
    assert eos_token_ids(tmp_path, make_tokenizer()) == (0, 3, 5, 7)


def test_a_folder_that_names_no_end_token_has_none(tmp_path):
    write_json(tmp_path / "config.json", {"eos_token_id": None})
    assert eos_token_ids(tmp_path) == ()


def test_a_corrupt_generation_config_is_one_sentence(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json' cannot be read"):
        eos_token_ids(tmp_path)


def test_a_model_without_tokenizer_is_one_sentence(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    with pytest.raises(
        ModelError, match=r"has no tokenizer that can be read: there is none of tokenizer\.json, .* in its folder"
    ):
        load_tokenizer(str(tmp_path))


def test_what_an_error_lists_behind_a_colon_is_part_of_its_sentence():
    error = ValueError("Could not make it from one of: \n(1) a file,\n(2) another.\n")
    assert first_line(error) == "Could not make it from one of: (1) a file, (2) another"
    assert first_line(ValueError("It is broken.\nMuch more")) == "It is broken"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "it is not valid JSON"),
        ("[]", "it is not a JSON object"),
        ("[" * 20000, "it is nested too deeply"),
        ("9" * 5000, "it has an integer of 5000 digits"),
    ],
)
def test_a_broken_config_is_not_put_down_to_the_tokenizer(tmp_path, content, why):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=rf"the config\.json of .* cannot be read: {why}"):
        load_tokenizer(str(tmp_path))


def test_decoding_keeps_every_space_because_a_stream_cannot_take_one_back(tmp_path):
    backend = Tokenizer(WordLevel({"<unk>": 0, "do": 1, "n't": 2, "'": 3}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)
    tokenizer.save_pretrained(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "llama"})
    assert tokenizer.decode([1, 3, 1]) == "do'do"
    assert load_tokenizer(str(tmp_path)).decode([1, 3, 1]) == "do ' do"


def test_a_tokenizer_and_a_checkpoint_of_the_family_need_no_compiler(tmp_path, save_with_tokenizer):
    folder = save_with_tokenizer(make_model("llama"), tmp_path / "llama")
    code = (
        "import sys; from starspec.config import ModelConfig; from starspec.models.loading.load import load_runner; "
        f"load_runner(ModelConfig(model={str(folder)!r}, dtype='float32', numerics='fast')); "
        "sys.exit('torch._dynamo' in sys.modules or 'transformers.activations' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("fused", [True, False])
def test_an_activation_that_nobody_knows_is_one_sentence(tmp_path, save_with_tokenizer, fused):
    folder = save_with_tokenizer(make_model("llama"), tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "silly"}))
    with pytest.raises(ModelError, match="llama"):
        load_runner(ModelConfig(model=str(folder), dtype="float32", fused=fused))


def test_files_show_another_vocabulary_without_transformers(tmp_path):
    make_tokenizer().save_pretrained(tmp_path / "target")
    make_tokenizer(("<eos>", "green", "red", "blue")).save_pretrained(tmp_path / "other")
    make_tokenizer(added=("grey",)).save_pretrained(tmp_path / "added")
    (tmp_path / "head").mkdir()
    for folder in tmp_path.iterdir():
        (folder / "config.json").write_text("{}")
    with pytest.raises(VocabularyMismatch, match="first different at id 1"):
        check_vocabulary_files(str(tmp_path / "target"), str(tmp_path / "other"))
    for draft in ("target", "added", "head"):
        check_vocabulary_files(str(tmp_path / "target"), str(tmp_path / draft))
    (tmp_path / "head" / "tokenizer.json").write_text("{")  # whoever loads it says what is wrong
    check_vocabulary_files(str(tmp_path / "target"), str(tmp_path / "head"))
