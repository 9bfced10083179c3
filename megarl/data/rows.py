"""Rows of prompts and answers, read from JSONL or parquet files."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from megarl.config.data import DataConfig
from megarl.config.errors import DataError
from megarl.config.names import nearest
from megarl.config.refusal import in_words, is_unicode
from megarl.data.json_lines import NoObjectError, numbered_objects


@dataclass(frozen=True)
class Row:
    """One row of a file.

    Attributes:
        number: line of a JSONL file or row of a parquet file, counted from 1.
        prompt: text of the prompt column.
        answer: text of the answer column; numbers are taken as they are written.
        demonstration: text of the demonstration column; None where the recipe names none.
    """

    number: int
    prompt: str
    answer: str
    demonstration: str | None


def read_rows(key: str, path: str, data: DataConfig) -> list[Row]:
    """All rows of a file, in its order.

    Args:
        key: recipe key that names the file, for messages.
        path: a .jsonl file in UTF-8 (blank lines are skipped) or a .parquet file.
        data: names the columns.

    Raises:
        DataError: the file cannot be read, is empty or lacks a column, or a row lacks a prompt or an answer.
    """
    columns = {"data.prompt_column": data.prompt_column, "data.answer_column": data.answer_column}
    if data.demonstration_column is not None:
        columns["data.demonstration_column"] = data.demonstration_column
    rows = read_texts(key, path, columns)
    return [Row(number, texts[0], texts[1], texts[2] if len(texts) > 2 else None) for number, texts in rows]


def read_texts(key: str, path: str, columns: Mapping[str, str]) -> list[tuple[int, list[str]]]:
    """The number of each row, from 1, and its texts in some columns.

    Args:
        key: what names the file, for messages.
        path: see `read_rows`.
        columns: names of columns by the recipe's keys that give them.

    Raises:
        DataError: see `read_rows`.
    """
    suffix = Path(path).suffix
    if suffix not in (".jsonl", ".parquet"):
        raise DataError(f"{key}={path} is neither .jsonl nor .parquet; convert the file to one of them.")
    if not os.path.isfile(path):
        raise DataError(f"{key}={path} is not a file; check the path, which is relative to the working folder.")
    records = _jsonl_records(path) if suffix == ".jsonl" else _parquet_records(path, columns)
    unit = "line" if suffix == ".jsonl" else "row"
    rows = [(number, _texts(f"{path}, {unit} {number}", record, columns)) for number, record in records]
    if not rows:
        raise DataError(f"{key}={path} is empty; give a file with at least one row.")
    return rows


def _jsonl_records(path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        yield from numbered_objects(path, _as_written)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); mend its permissions or give another.") from error
    except NoObjectError as error:
        raise DataError(f"{path}, {error}; write a row as one object, or remove the line.") from error


def _as_written(line: bytes) -> Any:
    """A line's value, its numbers as text: an answer 0.10 stays 0.10."""
    return json.loads(line.decode(), parse_int=str, parse_float=str)


def _parquet_records(path: str, columns: Mapping[str, str]) -> Iterable[tuple[int, Mapping[str, Any]]]:
    try:
        there = pyarrow.parquet.read_schema(path).names
        for key, column in columns.items():
            _require(path, key, column, there)
        table = pyarrow.parquet.read_table(path, columns=list(dict.fromkeys(columns.values())))
    except (pyarrow.ArrowException, OSError) as error:
        first_line = str(error).split("\n")[0]
        raise DataError(f"{path} cannot be read as parquet ({first_line}); write the file again.") from error
    try:
        return enumerate(table.to_pylist(), start=1)
    # times in nanoseconds and bytes that are no UTF-8 fail only when they become Python's
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        first_line = str(error).split("\n")[0]
        raise DataError(
            f"{path}: {', '.join(columns.values())} hold values that are neither text nor numbers ({first_line}); "
            "write them as text."
        ) from error


def _texts(place: str, record: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    texts = []
    for key, column in columns.items():
        _require(place, key, column, list(record))
        texts.append(_text(place, key, column, record[column]))
    return texts


def _require(place: str, key: str, column: str, there: Sequence[str]) -> None:
    if column in there:
        return
    guess = nearest(column, there)
    fix = f"did you mean {guess}?" if guess else f"set {key} to the right one."
    raise DataError(f"{place}: no column {column} ({key}) among {in_words(', '.join(there))}; {fix}")


def _text(place: str, key: str, column: str, value: Any) -> str:
    if isinstance(value, str) and not is_unicode(value):
        raise DataError(
            f"{place}: {column}={in_words(ascii(value))} ({key}) holds half a surrogate pair, which is no character; "
            "mend or remove the row."
        )
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value)
    if number or (isinstance(value, str) and value.strip()):
        return str(value)
    what = "blank" if isinstance(value, str) else "neither text nor a number"
    raise DataError(f"{place}: {column}={in_words(value)} ({key}) is {what}; give a text or remove the row.")
