import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from megarl.config.data import DataConfig
from megarl.config.errors import DataError, RecipeError
from megarl.config.model import ModelConfig, TokenizerConfig
from megarl.config.names import KNOWN_FAMILIES
from megarl.config.rollout import RolloutConfig
from megarl.config.schema import Recipe
from megarl.config.training import SFTConfig
from megarl.data.fingerprint import vocabulary_fingerprint
from megarl.data.registry import build_source
from megarl.data.tokenizer import build_tokenizer, check_prompt_lengths, decode, encode, save_tokenizer

CHARACTERS = build_tokenizer(TokenizerConfig())
SOLUTION = "17+5=22;22-8=14;14+6=20;\\boxed{20}"
ALPHABET = "0123456789+-*=;()?ABCDE, #}"


def bytes_tokenizer(eos: str | None = "</s>", pad: str | None = None, **keys: Any) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["</s>", *letters])}
    model = Tokenizer(models.BPE(vocabulary, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token=eos, pad_token=pad, **keys)


def load(folder: Path) -> PreTrainedTokenizerFast:
    return build_tokenizer(TokenizerConfig(kind="hf", path=str(folder)))


def test_ids_are_in_the_documented_order() -> None:
    assert len(CHARACTERS) == 30
    assert (CHARACTERS.pad_token_id, CHARACTERS.eos_token_id, CHARACTERS.unk_token_id) == (0, 1, None)
    assert encode(CHARACTERS, ALPHABET) == list(range(2, 29))
    assert encode(CHARACTERS, "\\boxed{") == [29]


def test_characters_round_trip() -> None:
    ids = encode(CHARACTERS, SOLUTION)
    assert len(ids) == len(SOLUTION) - len("\\boxed{") + 1
    assert decode(CHARACTERS, ids) == SOLUTION
    assert decode(CHARACTERS, encode(CHARACTERS, "A , B #  ?")) == "A , B #  ?"
    assert encode(CHARACTERS, "") == []
    assert decode(CHARACTERS, []) == ""


def test_longest_word_is_matched_first() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(alphabet="abc\n", words=["ab", "abc", "a.c"]))
    assert encode(tokenizer, "abcab\nac") == [7, 6, 5, 2, 4]
    assert encode(tokenizer, "a.c") == [8]
    assert decode(tokenizer, [7, 6, 5, 2, 4]) == "abcab\nac"


def test_unknown_characters_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r'character "é" of "1\+é" .*tokenizer.alphabet'):
        encode(CHARACTERS, "1+é")
    with pytest.raises(DataError, match='character "<"'):
        encode(CHARACTERS, "1<eos>")
    with pytest.raises(DataError, match=r'character "\\\\"'):
        encode(CHARACTERS, "\\boxed")


def test_text_that_spells_a_special_token_is_text() -> None:
    tokenizer = build_tokenizer(TokenizerConfig(alphabet="<>eospad", words=["x"]))
    ids = encode(tokenizer, "<eos><pad>")
    assert min(ids) > 1
    assert decode(tokenizer, ids) == "<eos><pad>"


def test_decode_ends_at_the_first_end_token_and_drops_padding() -> None:
    assert decode(CHARACTERS, [0, 2, 3, 0, 4, 1, 5, 1, 0, 0]) == "012"
    assert decode(CHARACTERS, [1, 5]) == ""


def test_saved_tokenizer_loads_again(tmp_path: Path) -> None:
    save_tokenizer(CHARACTERS, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    # what transformers 4 needs; the test environment has transformers 5 only
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "backend" not in config
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), load(tmp_path)):
        assert encode(loaded, SOLUTION) == encode(CHARACTERS, SOLUTION)
        assert loaded(SOLUTION)["input_ids"] == encode(CHARACTERS, SOLUTION)
        assert decode(loaded, encode(CHARACTERS, SOLUTION)) == SOLUTION
        assert (loaded.pad_token_id, loaded.eos_token_id, len(loaded)) == (0, 1, 30)
        with pytest.raises(DataError, match='character "x"'):
            encode(loaded, "x")


@pytest.mark.parametrize("family", KNOWN_FAMILIES)
def test_saved_beside_a_model_it_has_the_same_vocabulary(family: str, tmp_path: Path) -> None:
    """What transformers makes of the folder depends on the model's config.json."""
    save_tokenizer(CHARACTERS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    loaded = load(tmp_path)
    assert loaded.get_vocab() == CHARACTERS.get_vocab()
    assert vocabulary_fingerprint(loaded) == vocabulary_fingerprint(CHARACTERS)
    assert loaded.unk_token is None and loaded.bos_token is None


def test_saving_twice_is_the_same(tmp_path: Path) -> None:
    save_tokenizer(CHARACTERS, tmp_path / "one")
    save_tokenizer(load(tmp_path / "one"), tmp_path / "two")
    assert (tmp_path / "one/tokenizer.json").read_bytes() == (tmp_path / "two/tokenizer.json").read_bytes()
    assert load(tmp_path / "two").eos_token_id == 1


def test_special_tokens_are_listed_as_transformers_4_reads_them(tmp_path: Path) -> None:
    tokenizer = bytes_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<tool>"]})
    save_tokenizer(tokenizer, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == ["<tool>"]
    assert "extra_special_tokens" not in config
    assert load(tmp_path).convert_tokens_to_ids("<tool>") == tokenizer.convert_tokens_to_ids("<tool>")


def test_hf_tokenizer_round_trips_any_text(tmp_path: Path) -> None:
    bytes_tokenizer(pad="Ġ").save_pretrained(tmp_path)
    tokenizer = load(tmp_path)
    text = "x é → 日本\n\t(1,2)."
    assert decode(tokenizer, encode(tokenizer, text)) == text.replace(" ", "")
    assert tokenizer.pad_token == "Ġ"


def test_hf_padding_is_the_end_token_where_there_is_none(tmp_path: Path) -> None:
    bytes_tokenizer().save_pretrained(tmp_path)
    tokenizer = load(tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 0
    assert decode(tokenizer, [*encode(tokenizer, "a b"), 0, 0]) == "a b"


def test_hf_unknown_characters_are_refused_by_name(tmp_path: Path) -> None:
    model = Tokenizer(models.WordLevel({"[UNK]": 0, "[END]": 1, "a": 2}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="[END]", unk_token="[UNK]").save_pretrained(tmp_path)
    tokenizer = load(tmp_path)
    assert encode(tokenizer, "a a") == [2, 2]
    with pytest.raises(DataError, match='character "b" of "a b a"'):
        encode(tokenizer, "a b a")


def test_refused_folders(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tokenizer.path=null is not a folder"):
        build_tokenizer(TokenizerConfig(kind="hf"))
    with pytest.raises(RecipeError, match="is not a folder"):
        load(tmp_path / "none")
    with pytest.raises(RecipeError, match="holds no tokenizer"):
        load(tmp_path)
    bytes_tokenizer(eos=None).save_pretrained(tmp_path / "endless")
    with pytest.raises(RecipeError, match="without an eos_token"):
        load(tmp_path / "endless")
    bytes_tokenizer().save_pretrained(tmp_path / "broken")
    (tmp_path / "broken/tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(RecipeError, match="holds no tokenizer") as caught:
        load(tmp_path / "broken")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("alphabet", "words", "message"),
    [
        ("aba", ["x"], 'tokenizer.alphabet=aba holds "a" twice'),
        ("ab", ["xy", "xy"], 'holds "xy" twice'),
        ("ab", ["a"], 'holds "a" twice or as another token'),
        ("ab", ["<eos>"], '"<eos>" twice or as another token'),
        ("ab", [""], "empty word"),
    ],
)
def test_refused_alphabets(alphabet: str, words: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_tokenizer(TokenizerConfig(alphabet=alphabet, words=words))


def check(recipe: Recipe) -> None:
    check_prompt_lengths(build_source(recipe), build_tokenizer(recipe.tokenizer), recipe)


def sized(context: int, new_tokens: int, sft_steps: int = 0, **keys: Any) -> Recipe:
    return Recipe(
        model=ModelConfig(max_position_embeddings=context),
        rollout=RolloutConfig(max_new_tokens=new_tokens),
        sft=SFTConfig(steps=sft_steps),
        **keys,
    )


def test_prompts_must_leave_room_for_the_response() -> None:
    check(sized(9 + 20, 20))
    with pytest.raises(DataError, match=r"prompt evaluation/0 has 9 tokens.*max_new_tokens=20.*raise it to 29"):
        check(sized(9 + 20 - 1, 20))


def test_demonstrations_must_fit_with_their_end_token() -> None:
    # prompt 9, three steps of 8, the box of 4 and the end token
    check(sized(9 + 24 + 4 + 1, 5, sft_steps=1))
    with pytest.raises(DataError, match=r"demonstration demonstration/0 has 38 tokens.*raise it to 38"):
        check(sized(9 + 24 + 4, 5, sft_steps=1))
    check(sized(9 + 24 + 4, 5))


def test_late_demonstrations_are_looked_at() -> None:
    with pytest.raises(DataError, match=r"demonstration/\d+: the character"):
        check(
            sized(
                128,
                5,
                sft_steps=1,
                tokenizer=TokenizerConfig(alphabet="0123456789+-=", words=["}", "\\boxed{"]),
                data=DataConfig(options={"clean_until": 0.0, "careful": 0.05}),
            )
        )


def test_every_row_of_a_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": f"{number}=", "answer": number} for number in range(400)]
    rows[290]["prompt"] = "1+1+1+1+1="
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig("file", str(path), eval_prompts=1)
    with pytest.raises(DataError, match=r"prompt training/epoch-0/row-291 has 10 tokens"):
        check(sized(12, 4, data=data))
    check(sized(14, 4, data=data))
    rows[290]["prompt"] = "1+x"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=r'training/epoch-0/row-291: the character "x"'):
        check(sized(14, 4, data=data))


def test_a_huge_text_is_refused_unencoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": "1" * 30_000_000, "answer": 1}, {"prompt": "2", "answer": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"row-1 has 30000000 characters, which no 20 tokens .* can hold"):
        check(sized(20, 4, data=DataConfig("file", str(path), eval_prompts=1)))
    assert time.perf_counter() - start < 10


def test_the_longest_text_that_fits_is_encoded(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"prompt": "\\boxed{" * 16, "answer": 1}, {"prompt": "2", "answer": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    check(sized(20, 4, data=DataConfig("file", str(path), eval_prompts=1)))


def test_sft_needs_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "1", "answer": 1}\n{"prompt": "2", "answer": 2}\n', encoding="utf-8")
    with pytest.raises(DataError, match="demonstration_column=null"):
        check(sized(20, 4, sft_steps=1, data=DataConfig("file", str(path), eval_prompts=1)))
