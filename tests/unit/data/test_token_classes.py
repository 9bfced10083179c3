"""Kinds of token, by what a tokenizer says of its vocabulary."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from megarl.config.model import TokenizerConfig
from megarl.data.token_classes import token_classes
from megarl.data.tokenizer import build_tokenizer
from megarl.drift import TokenClass


def test_a_vocabulary_of_characters() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(alphabet="0129+=", words=["ab", "34", "5x"]))
    found = dict(zip(tokenizer.convert_ids_to_tokens(range(len(tokenizer))), token_classes(tokenizer), strict=True))
    digits = [token for token, kind in found.items() if kind == TokenClass.DIGITS]
    assert digits == ["0", "1", "2", "9", "34"]
    assert found["<pad>"] == TokenClass.SPECIAL
    assert found["<eos>"] == TokenClass.END
    assert {int(found[token]) for token in "+="} == {0}


def test_blanks_before_digits_as_vocabularies_write_them() -> None:
    words = {"▁7": 0, "Ġ42": 1, "▁": 2, "Ġx": 3, "٣": 4, "²": 5, "</s>": 6, "<tool>": 7}
    backend = Tokenizer(models.WordLevel(words))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool>"]})
    kinds = [TokenClass(int(kind)) for kind in token_classes(tokenizer)]
    none = TokenClass(0)
    # an Arabic three is a decimal digit, a superscript two is none
    assert kinds == [
        TokenClass.DIGITS,
        TokenClass.DIGITS,
        none,
        none,
        TokenClass.DIGITS,
        none,
        TokenClass.END,
        TokenClass.SPECIAL,
    ]


def test_a_folder_s_tokenizer() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(kind="hf", path=str(Path("tests/data/base"))))
    classes = token_classes(tokenizer)
    assert len(classes) == len(tokenizer)
    assert classes[tokenizer.eos_token_id] == TokenClass.END
