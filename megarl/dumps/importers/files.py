"""Files of other trainers: whose each is, and its responses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from megarl.data.json_lines import NoObjectError, numbered_objects
from megarl.dumps.errors import DumpError
from megarl.dumps.importers import ROW_FORMATS, RowFormat
from megarl.dumps.importers.row import Row, checked, to_responses
from megarl.dumps.parquet import ROWS, read_batches
from megarl.dumps.responses import Responses

SUFFIXES = (".parquet", ".jsonl", ".pt")


@dataclass(frozen=True)
class Importer:
    """How a file is read. Attributes: name: the trainer that wrote it. read: its responses, a few at a time."""

    name: str
    read: Callable[[Path], Iterator[Responses]]


def importer_of(path: Path) -> Importer:
    """By the file's ending and its first row.

    Raises:
        DumpError: the file is of no known trainer, holds no response, lacks log-probs, or cannot be read.
    """
    if path.suffix == ".pt":
        # Imported here: of the readers this one alone needs torch's own format.
        from megarl.dumps.importers.slime import read_slime

        return Importer("slime", read_slime)
    first = next(_rows(path), None)
    if first is None:
        raise DumpError(f"{path} holds no response; name a dump that does.")
    layout = next((layout for layout in ROW_FORMATS if layout.fits(first)), None)
    if layout is None:
        known = ", ".join(["megarl", "slime", *(layout.name for layout in ROW_FORMATS)])
        raise DumpError(
            f"{path} has the columns {', '.join(sorted(first)[:8])}, which no known dump has ({known}); "
            "write megarl's columns, as docs/dumps.md lists them."
        )
    layout.check(path, first)
    return Importer(layout.name, partial(_read_rows, layout))


def _read_rows(layout: RowFormat, path: Path) -> Iterator[Responses]:
    held: list[Row] = []
    for number, fields in enumerate(_rows(path)):
        layout.check(path, fields)
        held.append(checked(path, layout.name, number, partial(layout.read, fields, number)))
        if len(held) == ROWS:
            yield to_responses(path, held)
            held = []
    if held:
        yield to_responses(path, held)


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    return _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    for batch in read_batches(path, ROWS):
        try:
            rows = batch.to_pylist()
        # times in nanoseconds and bytes that are no UTF-8 fail only when they become Python's
        except (pa.ArrowException, ValueError, OverflowError) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise DumpError(f"{path} holds values that cannot be read ({reason}); write it again.") from error
        yield from rows


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for _, row in numbered_objects(path):
            yield row
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror}); mend its permissions or name another.") from error
    except NoObjectError as error:
        raise DumpError(
            f"{path}, {error}; where it is the last, the file was cut short: copy it again, or delete the line."
        ) from error
