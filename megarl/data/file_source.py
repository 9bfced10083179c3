"""Prompts and answers from the user's own files."""

import logging
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megarl.config.data import DataConfig
from megarl.config.errors import DataError
from megarl.config.refusal import refusal
from megarl.data.problem import Problem
from megarl.data.rows import Row, read_rows
from megarl.data.template import fill_template

_TRAINING, _DEMONSTRATION = 0, 1
"""Streams: each has its own permutations."""


class FileSource:
    """The source. Each epoch is a permutation of the rows, drawn from the seed and the epoch's number.

    A training row whose prompt is also an evaluation prompt is dropped, with a warning that counts them.
    """

    def __init__(self, seed: int, data: DataConfig) -> None:
        """Reads the files.

        Raises:
            RecipeError: `data.options` is given, which this source does not read.
            DataError: a file cannot be read as prompts and answers, or leaves no row to train on.
        """
        if data.options:
            raise refusal("data.options", data.options, "is not read with data.source=file", "set data.options=null")
        if data.path is None:
            raise refusal("data.path", None, "is needed with data.source=file", "give a .jsonl or .parquet file")
        self._seed = seed
        self._data = data
        training, evaluation, kept_out = _split(data, data.path)
        prompts = {row.prompt for row in kept_out}
        self._rows = [row for row in training if row.prompt not in prompts]
        self._evaluation = [self._problem(f"evaluation/row-{row.number}", row) for row in evaluation]
        dropped = len(training) - len(self._rows)
        if not self._rows:
            raise DataError(f"data.path={data.path} holds evaluation prompts only; add rows to train on.")
        if dropped:
            logging.getLogger(__name__).warning(
                "%s: %d of %d training rows dropped, whose prompts are evaluation prompts too",
                data.path,
                dropped,
                len(training),
            )
        self._order = lru_cache(maxsize=4)(self._draw_order)

    @property
    def rows(self) -> int:
        """Training rows, which is the length of an epoch."""
        return len(self._rows)

    @property
    def training_rows(self) -> Sequence[Row]:
        """The rows of the training problems, in the file's order."""
        return self._rows

    def training(self, index: int) -> Problem:
        """The training problem at `index`; its id names its row and its epoch."""
        return self._at(_TRAINING, "training", index)[0]

    def evaluation(self) -> list[Problem]:
        """The evaluation problems, in the file's order."""
        return list(self._evaluation)

    def demonstration(self, index: int, progress: float) -> tuple[Problem, str]:
        """A training problem with the text of its demonstration column, whatever the progress.

        Raises:
            DataError: the recipe names no such column.
        """
        problem, row = self._at(_DEMONSTRATION, "demonstration", index)
        if row.demonstration is None:
            raise DataError(
                "data.demonstration_column=null leaves nothing to imitate; "
                "name the column of responses or set sft.steps=0."
            )
        return problem, row.demonstration

    def _at(self, stream: int, name: str, index: int) -> tuple[Problem, Row]:
        epoch, position = divmod(index, len(self._rows))
        row = self._rows[self._order(stream, epoch)[position]]
        # the epoch too, since the end of one and the start of the next may hold the same row in one batch
        return self._problem(f"{name}/epoch-{epoch}/row-{row.number}", row), row

    def _draw_order(self, stream: int, epoch: int) -> NDArray[np.int64]:
        bits = np.random.Philox(key=np.array([self._seed, epoch], np.uint64), counter=[0, 0, 0, stream])
        # numpy keeps a bit generator's stream for ever, but not that of Generator.permutation
        return np.argsort(bits.random_raw(len(self._rows)), kind="stable")

    def _problem(self, name: str, row: Row) -> Problem:
        return Problem(name, fill_template(self._data.prompt_template, row.prompt), row.answer)


def _split(data: DataConfig, path: str) -> tuple[list[Row], list[Row], list[Row]]:
    """Training rows, evaluation rows, and the rows whose prompts must not be trained on."""
    rows, wanted = read_rows("data.path", path, data), data.eval_prompts
    if data.eval_path is not None:
        kept_out = read_rows("data.eval_path", data.eval_path, data)
        if len(kept_out) < wanted:
            raise DataError(
                f"data.eval_prompts={wanted} is more than the {len(kept_out)} rows of {data.eval_path}; lower it."
            )
        return rows, kept_out[:wanted], kept_out
    if len(rows) <= wanted:
        raise DataError(
            f"data.eval_prompts={wanted} keeps all {len(rows)} rows of {path} out of training; "
            "lower it or name a data.eval_path."
        )
    return rows[:-wanted], rows[-wanted:], rows[-wanted:]
