"""Texts of a dump's tokens: its own, or a tokenizer's that is proven to be the one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from megarl.dumps.errors import DumpError
from megarl.dumps.open import Dump

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def texts_of(dump: Dump, tokenizer: Path | None) -> Mapping[int, str]:
    """Text of each token by id: those that the dump has, and where a tokenizer is given, its own.

    Args:
        dump: the dump.
        tokenizer: folder in Hugging Face layout; None for the dump's texts alone.

    Raises:
        DumpError: the dump was made with another tokenizer, or has token ids that this one does not know.
        RecipeError: the folder holds no tokenizer.
    """
    if tokenizer is None:
        return dump.pieces
    # Imported here: transformers takes seconds, and most dumps have their own texts.
    from megarl.data.fingerprint import token_texts

    known = tokenizer_of(dump, tokenizer, "--tokenizer")
    ids = sorted({token for chunk in dump.read() for token in chunk.token_ids_N.unique().tolist()})
    if ids and not 0 <= ids[0] <= ids[-1] < len(known):
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise DumpError(
            f"{dump.path} was made with another tokenizer than --tokenizer={tokenizer}: it has the token id {wrong}, "
            f"and that one {len(known)} tokens; give the run's own."
        )
    return token_texts(known, ids)


def tokenizer_of(dump: Dump, folder: Path, option: str) -> "PreTrainedTokenizerFast":
    """The tokenizer in a folder, which is the dump's as far as that says. Args: option: that gave it, for refusals.

    Raises:
        DumpError: the dump was made with another tokenizer.
        RecipeError: the folder holds no tokenizer.
    """
    from megarl.config.model import TokenizerConfig
    from megarl.data.fingerprint import vocabulary_fingerprint
    from megarl.data.tokenizer import build_tokenizer

    known = build_tokenizer(TokenizerConfig(kind="hf", path=str(folder)), option)
    fingerprint = vocabulary_fingerprint(known)
    if dump.tokenizer is not None and dump.tokenizer != fingerprint:
        raise DumpError(
            f"{dump.path} was made with another tokenizer than {option}={folder} (vocabulary "
            f"{dump.tokenizer[:12]}, not {fingerprint[:12]}); give the run's own, or leave the option out."
        )
    return known
