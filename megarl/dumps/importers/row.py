"""What the importers of files with one response a row have in common."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megarl.dumps.errors import DumpError
from megarl.dumps.responses import Key, Responses, Sampled, check_equal_lengths, check_no_nan

NULL = float("inf")
"""Stands for a log-prob that a file gives as null: not finite, and not NaN, which is refused."""


@dataclass(frozen=True)
class Row:
    """One response; its lists have one element a token.

    Attributes:
        key: which it is.
        token_ids: of the response.
        trainer_log_probs: in nats; None where the file has null.
        rollout_log_probs: likewise, by the engine.
        generated: whether the engine sampled the token.
        reward: NaN where not known.
        prompt: as text.
        text: the response as text.
        prompt_ids: tokens of the prompt; None where the file has none.
    """

    key: Key
    token_ids: Sequence[int]
    trainer_log_probs: Sequence[float | None]
    rollout_log_probs: Sequence[float | None]
    generated: Sequence[bool]
    reward: float
    prompt: str
    text: str
    prompt_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class RowFormat:
    """A trainer's file with one response a row.

    Attributes:
        name: the trainer.
        marks: a row with one of these sets of fields is of this format.
        needed: fields without which nothing can be measured: token ids, and log-probs of both sides.
        hint: how to get a file that has them, as an imperative.
        read: makes a row of its fields and its number in the file.
    """

    name: str
    marks: tuple[frozenset[str], ...]
    needed: tuple[str, ...]
    hint: str
    read: Callable[[Mapping[str, Any], int], Row]

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Whether a row with these fields is of this format."""
        return any(marks <= fields.keys() for marks in self.marks)

    def check(self, path: Path, fields: Mapping[str, Any]) -> None:
        """Refuses a row that lacks what is needed.

        Raises:
            DumpError: naming what is missing.
        """
        missing = [name for name in self.needed if fields.get(name) is None]
        if missing:
            raise DumpError(
                f"{path} is a dump of {self.name} without {', '.join(missing)}, and drift needs token ids and both "
                f"sides' log-probs; {self.hint}."
            )


def checked(path: Path, trainer: str, number: int, read: Callable[[], Row]) -> Row:
    """The row that `read` makes, its values of the types that `Row` says.

    Args:
        path: of the dump, for the message.
        trainer: whose dump it is, likewise.
        number: of the row, from 0.
        read: makes it of untrusted values.

    Raises:
        DumpError: a value is of another kind.
    """
    try:
        row = read()
        return replace(
            row,
            token_ids=_ids(row.token_ids),
            trainer_log_probs=[None if value is None else float(value) for value in row.trainer_log_probs],
            rollout_log_probs=[None if value is None else float(value) for value in row.rollout_log_probs],
            generated=[bool(value) for value in row.generated],
            prompt_ids=None if row.prompt_ids is None else _ids(row.prompt_ids),
        )
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise DumpError(
            f"{path} has a value of another kind in row {number + 1} ({error}); write it as {trainer} does."
        ) from error


def mask_or_all(mask: Sequence[bool] | None, token_ids: Sequence[int]) -> Sequence[bool]:
    """The mask, and where a file has none, every token; one of another length is refused with the other lists."""
    return [True] * len(token_ids) if mask is None else mask


def _ids(values: Sequence[int]) -> list[int]:
    """Whole numbers that fit 64 bits. Raises: TypeError, OverflowError: they are not."""
    ids: list[int] = np.array([operator.index(value) for value in values], dtype=np.int64).tolist()
    return ids


def to_responses(path: Path, rows: Sequence[Row]) -> Responses:
    """The rows end to end.

    Raises:
        DumpError: lists of unequal lengths, or NaN among the tokens that were generated.
    """
    keys = [row.key for row in rows]
    lists = ("token_ids", "trainer_log_probs", "rollout_log_probs", "generated")
    lengths = {name: np.array([len(getattr(row, name)) for row in rows]) for name in lists}
    check_equal_lengths(path, keys, "token_ids", lengths)
    lengths_B = torch.tensor(lengths["token_ids"], dtype=torch.int64)
    generated_N = torch.tensor([bool(value) for row in rows for value in row.generated], dtype=torch.bool)
    log_probs = {
        name: torch.tensor(
            [NULL if value is None else value for row in rows for value in getattr(row, name)], dtype=torch.float64
        )
        for name in lists[1:3]
    }
    row_N = torch.repeat_interleave(torch.arange(len(rows)), lengths_B)
    check_no_nan(path, keys, row_N, {name: torch.where(generated_N, v_N, 0.0) for name, v_N in log_probs.items()})
    return Responses(
        keys=keys,
        lengths_B=lengths_B,
        token_ids_N=torch.tensor([token for row in rows for token in row.token_ids], dtype=torch.int64),
        generated_N=generated_N,
        rewards_B=torch.tensor([row.reward for row in rows], dtype=torch.float64),
        prompts=[row.prompt for row in rows],
        texts=[row.text for row in rows],
        replica_N=torch.full_like(row_N, -1),
        age_N=torch.full_like(row_N, -1),
        trainer_log_probs_N=log_probs["trainer_log_probs"],
        rollout_log_probs_N=log_probs["rollout_log_probs"],
        prompt_ids=[row.prompt_ids for row in rows],
        sampled=[Sampled()] * len(rows),
    )
