"""Text to token ids and back."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from megarl.config.errors import DataError
from megarl.config.model import TokenizerConfig
from megarl.config.refusal import refusal
from megarl.config.schema import Recipe
from megarl.data.file_source import FileSource
from megarl.data.problem import Problem, Source
from megarl.platform.disk_errors import of_the_disk

PAD, EOS = "<pad>", "<eos>"

_CHECKED = 256
"""Problems looked at in a source without an end."""

_MOST_SHRUNK = 4
"""Characters that a tokenizer's normalisation makes one of, at most; NFC takes three for a Hangul syllable."""

_EXCERPT = 60
"""Characters of a text that a message shows."""


def build_tokenizer(cfg: TokenizerConfig, key: str = "tokenizer.path") -> PreTrainedTokenizerFast:
    """The recipe's tokenizer; it has an end token and a padding token.

    Of kind 'characters': <pad> is 0, <eos> is 1, then come the alphabet and the words, each in its order; a word is
    matched before characters, the longest first; there is no unknown token. Of kind 'hf': what `path` holds, where a
    missing padding token is made the end token, which no code here may then tell from the end of a text.

    Args:
        cfg: says which.
        key: what the user gave the folder as, for refusals.

    Raises:
        RecipeError: an alphabet or word twice, a folder that holds no fast tokenizer, or one without an end token.
    """
    return _characters(cfg) if cfg.kind == "characters" else _from_folder(cfg.path, key)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Token ids of a text, with no token added.

    Raises:
        DataError: the tokenizer has no token for a character of the text.
    """
    unknown = tokenizer.unk_token_id
    backend = tokenizer.backend_tokenizer
    if unknown is None and isinstance(backend.model, models.WordLevel):
        # by pieces, so that the character is known, and that a text which spells <eos> does not end there
        pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        piece_ids = [backend.token_to_id(piece) for piece in pieces]
        if None in piece_ids:
            raise _unknown(pieces[piece_ids.index(None)], text, "add it to tokenizer.alphabet")
        return piece_ids
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = encoded["input_ids"]
    # some tokenizers name their end token as the unknown one and have no unknown text
    if unknown is not None and unknown != tokenizer.eos_token_id and unknown in ids:
        start, end = encoded["offset_mapping"][ids.index(unknown)]
        raise _unknown(text[start:end], text, "use a tokenizer that has it")
    return ids


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    """Text of a response: all before its first end token, without padding."""
    kept = list(ids)
    if tokenizer.eos_token_id in kept:
        kept = kept[: kept.index(tokenizer.eos_token_id)]
    kept = [token for token in kept if token != tokenizer.pad_token_id]
    text: str = tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> None:
    """Writes the tokenizer in Hugging Face layout, such that transformers 4 and 5 both load it.

    Raises:
        OSError: it could not be written.
    """
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:
        # tokenizers raises nothing more special
        raise of_the_disk(error) or error from error
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("backend", None)
    # names and shapes that transformers 5 writes and 4 refuses
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    config["model_input_names"] = ["input_ids", "attention_mask"]
    # beside some models' config.json transformers loads that family's own class, which adds its default of each that
    # is not named here to the vocabulary
    for name in ("bos_token", "unk_token"):
        config.setdefault(name, None)
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_prompt_lengths(source: Source, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
    """Refuses prompts that leave no room for a response, and demonstrations that do not fit the context.

    Looks at every evaluation problem and row of a file, and at the first 256 problems of an endless source.

    Raises:
        DataError: a prompt is empty, has a character that the tokenizer lacks or is too long; with `sft.steps` above
            0, a demonstration is too long or there is none.
    """
    longest = recipe.model.max_position_embeddings
    new_tokens = recipe.rollout.max_new_tokens
    most = _MOST_SHRUNK * longest * max(map(len, tokenizer.get_vocab()))
    count = source.rows if isinstance(source, FileSource) else _CHECKED
    for problem in (*source.evaluation(), *(source.training(index) for index in range(count))):
        _check_characters(f"prompt {problem.id}", problem.prompt, most, longest)
        tokens = _tokens(tokenizer, problem, problem.prompt)
        if tokens == 0:
            raise DataError(f"prompt {problem.id} has no tokens; give it text or remove it.")
        if tokens + new_tokens > longest:
            raise DataError(
                f"prompt {problem.id} has {tokens} tokens, which with rollout.max_new_tokens={new_tokens} exceeds "
                f"model.max_position_embeddings={longest}; raise it to {tokens + new_tokens} or shorten the prompt."
            )
    for index in range(count if recipe.sft.steps > 0 else 0):
        # spread over the warm start, since what is imitated may change on its way
        problem, response = source.demonstration(index, index / count)
        _check_characters(f"demonstration {problem.id}", response, most, longest)
        _check_characters(f"demonstration {problem.id}", problem.prompt, most, longest)
        tokens = _tokens(tokenizer, problem, problem.prompt) + _tokens(tokenizer, problem, response) + 1
        if tokens > longest:
            raise DataError(
                f"demonstration {problem.id} has {tokens} tokens, prompt and end token included, more than "
                f"model.max_position_embeddings={longest}; raise it to {tokens} or shorten the demonstration."
            )


def _check_characters(name: str, text: str, most: int, longest: int) -> None:
    """Refuses what cannot fit without encoding it, which takes minutes for tens of megabytes."""
    if len(text) > most:
        raise DataError(
            f"{name} has {len(text)} characters, which no {longest} tokens (model.max_position_embeddings) can hold; "
            "shorten or remove it."
        )


def _characters(cfg: TokenizerConfig) -> PreTrainedTokenizerFast:
    tokens = [PAD, EOS, *cfg.alphabet, *cfg.words]
    for key, value in (("tokenizer.alphabet", cfg.alphabet), ("tokenizer.words", cfg.words)):
        for token in value:
            if not token or tokens.count(token) > 1:
                what = f"holds {_quoted(token)} twice or as another token" if token else "holds an empty word"
                raise refusal(key, value, what, "remove it")
    model = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}))
    words = [re.escape(word) for word in sorted(cfg.words, key=len, reverse=True)]
    model.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*words, r"[\s\S]"])), behavior="isolated")
    model.decoder = decoders.Fuse()
    model.add_special_tokens([AddedToken(PAD, special=True), AddedToken(EOS, special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _from_folder(path: str | None, key: str) -> PreTrainedTokenizerFast:
    if path is None or not os.path.isdir(path):
        raise refusal(key, path, "is not a folder", "give the folder of a Hugging Face tokenizer")
    # imported here: it loads seconds of models' code, which a tokenizer of characters has no use for
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    # what is raised depends on the broken file, and tokenizers raises a bare Exception
    except Exception as error:
        first_line = str(error).split("\n")[0]
        raise refusal(key, path, f"holds no tokenizer ({first_line})", "check the folder") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        reason = f"holds a {type(tokenizer).__name__}, which has no tokenizer.json"
        raise refusal(key, path, reason, "save it as a fast tokenizer")
    if tokenizer.eos_token_id is None:
        raise refusal(key, path, "holds a tokenizer without an eos_token", "name one in its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _tokens(tokenizer: PreTrainedTokenizerFast, problem: Problem, text: str) -> int:
    try:
        return len(encode(tokenizer, text))
    except DataError as error:
        raise DataError(f"{problem.id}: {error}") from error


def _unknown(character: str, text: str, fix: str) -> DataError:
    excerpt = text if len(text) <= _EXCERPT else text[:_EXCERPT] + "..."
    return DataError(f"the character {_quoted(character)} of {_quoted(excerpt)} has no token; {fix} or mend the text.")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
