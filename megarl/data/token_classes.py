"""Which tokens of a vocabulary are digits, ends or special: what drift is told apart by."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from megarl.drift.classes import TokenClass

_BLANKS = " Ġ▁"
"""How vocabularies write the blank before a word."""


def token_classes(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """The kinds of each token, as flags of `TokenClass` added up: int64 [V] on the CPU.

    Digits are tokens of decimal digits alone, with a blank before them or not. The end token is no special one here.
    """
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    digits = [token is not None and token.lstrip(_BLANKS).isdecimal() for token in tokens]
    classes_V = torch.tensor(digits, dtype=torch.int64) * TokenClass.DIGITS
    classes_V[tokenizer.all_special_ids] = int(TokenClass.SPECIAL)
    classes_V[tokenizer.eos_token_id] = int(TokenClass.END)
    return classes_V
