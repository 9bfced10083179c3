"""Whether two vocabularies are the same: what a file of token ids says of the tokenizer that it was made with."""

import hashlib
import json

from transformers import PreTrainedTokenizerFast


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256, in hex, of every token's text with its id, and of the end token's id.

    Merges, templates and padding are left out: they decide which ids a text becomes, not what an id means.
    """
    vocabulary = sorted(tokenizer.get_vocab().items())
    text = json.dumps([vocabulary, tokenizer.eos_token_id], separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def token_texts(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> dict[int, str]:
    """The text of each of these tokens alone; a token that is a part of a character has U+FFFD there."""
    texts = (tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False) for token in ids)
    return dict(zip(ids, texts, strict=True))
