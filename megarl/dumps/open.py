"""Opens a dump, whoever wrote it: a file, or a folder of files. The one door that every reader takes."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol

from megarl.dumps.errors import DumpError
from megarl.dumps.folder import DUMPS_FOLDER, dump_files
from megarl.dumps.importers.files import SUFFIXES, importer_of
from megarl.dumps.parquet import open_parquet, read_header, read_responses
from megarl.dumps.responses import Responses
from megarl.dumps.schema import HEADER_KEY
from megarl.observe.metrics import METRICS_FILE

_NUMBERS = re.compile(r"\d+")


class _Read(Protocol):
    def __call__(self, *, whole: bool = False) -> Iterator[Responses]: ...


@dataclass(frozen=True)
class Dump:
    """A dump that can be read.

    Attributes:
        path: as it was given.
        source: the trainer that wrote it, such as 'megarl'.
        about: what it says of itself, by names for people.
        tokenizer: fingerprint of its vocabulary; None where it does not say.
        pieces: text of each token by id, where it has them.
        read: its responses, a few at a time, from the start at every call; `whole` reads the prompts' ids and how each
            was sampled too.
        precision: dtype of the trainer's weights, such as 'bf16'; None where it does not say.
    """

    path: Path
    source: str
    about: Mapping[str, str]
    tokenizer: str | None
    pieces: Mapping[int, str]
    read: _Read
    precision: str | None = None


def open_dump(path: Path) -> Dump:
    """Looks at what the path holds. Responses are read, and checked, by `Dump.read`.

    Args:
        path: a parquet, JSONL or .pt file; a folder of such files of one trainer; or a run's folder with dumps.

    Raises:
        DumpError: there is no dump, or none of a known format, or it cannot be read.
    """
    if not os.path.isdir(path):
        if not os.path.isfile(path):
            raise DumpError(
                f"{path} does not exist, or lies where you may not look; name a dump file, or a folder of dumps."
            )
        if path.suffix not in SUFFIXES:
            raise DumpError(f"{path} is no .parquet, .jsonl or .pt file; those are the dumps that can be read.")
        return _megarl(path, [path]) if _is_megarls(path) else _of_others(path, [path])
    files = dump_files(path) or dump_files(path / DUMPS_FOLDER)
    return _megarl(path, files) if files else _of_others(path, _others(path))


def _is_megarls(file: Path) -> bool:
    return file.suffix == ".parquet" and HEADER_KEY in (open_parquet(file).schema_arrow.metadata or {})


def _others(folder: Path) -> list[Path]:
    """The files of another trainer, which names them by their steps."""
    try:
        found = [file for file in folder.iterdir() if file.is_file() and file.suffix in SUFFIXES]
    except OSError as error:
        raise DumpError(f"{folder} cannot be read ({error.strerror}); name another folder.") from error
    if not found or (folder / METRICS_FILE) in found:
        raise DumpError(
            f"{folder} holds no step-*.parquet, which a run writes with observe.dump_every above 0, and no dumps of "
            "another trainer; name a folder that does."
        )
    return sorted(found, key=lambda file: ([int(number) for number in _NUMBERS.findall(file.name)], file.name))


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
    return Dump(path, "megarl", about, first.tokenizer, pieces, partial(_all, files), first.precision)


def _all(files: list[Path], *, whole: bool = False) -> Iterator[Responses]:
    return chain.from_iterable(read_responses(file, whole=whole) for file in files)


def _of_others(path: Path, files: list[Path]) -> Dump:
    importers = [importer_of(file) for file in files]
    first = importers[0].name
    for file, importer in zip(files, importers, strict=True):
        if importer.name != first:
            raise DumpError(f"{file} is a dump of {importer.name}, and {files[0]} one of {first}; put them apart.")
    about = {} if len(files) == 1 else {"files": str(len(files))}

    def read(*, whole: bool = False) -> Iterator[Responses]:
        # what these files have of prompts and sampling is in their rows
        del whole
        return chain.from_iterable(importer.read(file) for importer, file in zip(importers, files, strict=True))

    return Dump(path, first, about, None, {}, read)
