"""Opens a dump, whoever wrote it: a file, or a folder of megarl's."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from megarl.dumps.errors import DumpError
from megarl.dumps.folder import DUMPS_FOLDER, dump_files
from megarl.dumps.importers import ROW_FORMATS, RowFormat
from megarl.dumps.importers.row import Row, checked, to_responses
from megarl.dumps.parquet import ROWS, open_parquet, read_batches, read_header, read_responses
from megarl.dumps.responses import Responses
from megarl.dumps.schema import HEADER_KEY


class _Read(Protocol):
    def __call__(self) -> Iterator[Responses]: ...


@dataclass(frozen=True)
class Dump:
    """A dump that can be read.

    Attributes:
        path: as it was given.
        source: the trainer that wrote it, such as 'megarl'.
        about: what it says of itself, by names for people.
        tokenizer: fingerprint of its vocabulary; None where it does not say.
        pieces: text of each token by id, where it has them.
        read: its responses, a few at a time, from the start at every call.
    """

    path: Path
    source: str
    about: Mapping[str, str]
    tokenizer: str | None
    pieces: Mapping[int, str]
    read: _Read


def open_dump(path: Path) -> Dump:
    """Looks at what the path holds. Responses are read, and checked, by `Dump.read`.

    Args:
        path: a parquet, JSONL or .pt file; a folder of megarl's dumps, or a run's folder with one.

    Raises:
        DumpError: there is no dump, or none of a known format, or it cannot be read.
    """
    if path.is_dir():
        return _megarl(path, _files(path))
    if not path.is_file():
        raise DumpError(f"{path} does not exist; name a dump file, or a folder of dumps.")
    if path.suffix == ".parquet":
        metadata = open_parquet(path).schema_arrow.metadata or {}
        return _megarl(path, [path]) if HEADER_KEY in metadata else _of_rows(path, _parquet_rows(path))
    if path.suffix == ".jsonl":
        return _of_rows(path, _json_rows(path))
    if path.suffix == ".pt":
        # Imported here: of the readers this one alone needs torch's own format.
        from megarl.dumps.importers.slime import read_slime

        return Dump(path, "slime", {}, None, {}, partial(read_slime, path))
    raise DumpError(f"{path} is no .parquet, .jsonl or .pt file; those are the dumps that can be read.")


def _files(folder: Path) -> list[Path]:
    files = dump_files(folder) or dump_files(folder / DUMPS_FOLDER)
    if not files:
        raise DumpError(f"{folder} holds no step-*.parquet; a run writes them with observe.dump_every above 0.")
    return files


def _megarl(path: Path, files: list[Path]) -> Dump:
    headers, pieces = [], {}
    for file in files:
        header, texts = read_header(file)
        headers.append(header)
        pieces.update(texts)
        if header.tokenizer != headers[0].tokenizer:
            raise DumpError(
                f"{file} was made with another tokenizer than {files[0]}, so their token ids do not mean the same; "
                "report them apart."
            )
    first = headers[0]
    steps = sorted({header.step for header in headers})
    about = {
        "run": first.run,
        "steps": str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]} ({len(steps)} dumps)",
        "engine": first.engine,
        "trainer's precision": first.precision,
        "recipe hash": first.recipe_hash[:12],
        "megarl": first.megarl,
    }
    return Dump(path, "megarl", about, first.tokenizer, pieces, lambda: chain.from_iterable(map(read_responses, files)))


def _of_rows(path: Path, rows: Iterator[Mapping[str, Any]]) -> Dump:
    first = next(rows, None)
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
    return Dump(path, layout.name, {}, None, {}, partial(_read_rows, path, layout))


def _read_rows(path: Path, layout: RowFormat) -> Iterator[Responses]:
    held: list[Row] = []
    for number, fields in enumerate(_parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)):
        layout.check(path, fields)
        held.append(checked(path, layout.name, number, partial(layout.read, fields, number)))
        if len(held) == ROWS:
            yield to_responses(path, held)
            held = []
    if held:
        yield to_responses(path, held)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    for batch in read_batches(path, ROWS):
        yield from batch.to_pylist()


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DumpError(
                    f"{path} has a line {number} that is no JSON ({error}); where it is the last, the file was cut "
                    "short: copy it again, or delete the line."
                ) from error
            if not isinstance(row, dict):
                raise DumpError(f"{path} has a line {number} that is no JSON object; give one a response.")
            yield row
