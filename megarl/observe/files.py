"""Files that survive a kill at any moment: whole replacements and line-by-line logs."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from megarl.config.errors import RunFolderError


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader sees the old bytes or the new ones, and a crash leaves one of the two.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full; `path` is then unchanged.
    """
    with replaced(path) as file:
        file.write(data)


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well; see `write_atomic`.

    Raises:
        OSError: as `write_atomic`.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    # The new name is in the folder's own data: without this a power cut can bring the old file back.
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Has a file's bytes, or a folder's names, on the disk. Raises: OSError: they do not get there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json_atomic(path: Path, value: Mapping[str, Any]) -> None:
    """Replaces a file by indented JSON in UTF-8, through `write_atomic`.

    Raises:
        ValueError: a number in `value` is NaN or infinite.
        OSError: as `write_atomic`.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, encode_text(text))


def encode_text(json_text: str) -> bytes:
    """JSON text as UTF-8; a lone surrogate, which UTF-8 does not have, becomes its JSON escape."""
    return json_text.encode("utf-8", errors="backslashreplace")


def nulled(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which NaN and infinities are None, their keys listed under "nonfinite" where there are any.

    JSON has no such numbers, and a reader must not take them for missing ones.
    """
    lost = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    kept = {name: None if name in lost else value for name, value in values.items()}
    return {**kept, "nonfinite": sorted(lost)} if lost else kept


def nonfinite_as_null(value: Any) -> Any:
    """A copy of nested dicts and sequences in which NaN and infinities are None, for files where null says so."""
    if isinstance(value, Mapping):
        return {name: nonfinite_as_null(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_as_null(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(line: Mapping[str, Any]) -> bytes:
    """One line of a .jsonl file, newline included.

    Raises:
        ValueError: a number in `line` is NaN or infinite.
    """
    return encode_text(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl_tolerant(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file without a last line that a kill tore; a missing file has none.

    A last line that is whole but for its newline is kept.

    Raises:
        RunFolderError: a line that was finished is not a JSON object.
    """
    if not path.exists():
        return []
    lines = []
    *finished, last = path.read_bytes().split(b"\n")
    for number, raw in enumerate(finished, start=1):
        line = _parsed(raw)
        if line is None:
            raise RunFolderError(
                f"Line {number} of {path} is not a JSON object, so the run's log cannot be read: "
                "delete the line or use another output_dir."
            )
        lines.append(line)
    whole = _parsed(last)
    return lines if whole is None else [*lines, whole]


def read_json(path: Path) -> dict[str, Any]:
    """The object of a .json file; a missing file is an empty one.

    Raises:
        RunFolderError: the file does not hold a JSON object.
    """
    if not path.exists():
        return {}
    value = _parsed(path.read_bytes())
    if value is None:
        raise RunFolderError(f"{path} is not a JSON object, so it cannot be summarised: delete it or evaluate again.")
    return value


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):  # the first is both UnicodeDecodeError and JSONDecodeError
        return None
    return value if isinstance(value, dict) else None


def _appending(path: Path) -> FileIO:
    """Unbuffered: what the disk did not take would be written again when the file is closed, and fail again."""
    return open(path, "ab", buffering=0)


class JsonlFile:
    """A log of lines that have a "phase" and a "step". Opening it drops a torn last line.

    Every line reaches the operating system before `append` returns, so that a killed process loses none.
    """

    def __init__(self, path: Path) -> None:
        """Opens `path` for appending; makes it, and its folder, where missing.

        Raises:
            RunFolderError: as `read_jsonl_tolerant`.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        if path.exists():
            self._replace(read_jsonl_tolerant(path))
        self._file = _appending(path)

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds one line.

        Raises:
            ValueError: a number in `line` is NaN or infinite.
            OSError: the disk took none of it, or a part, which the next opening drops.
        """
        rest = memoryview(json_line(line))
        while rest:
            # a disk that is nearly full takes a part
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Has every line on the disk, for a power cut too. Raises: OSError: they do not get there."""
        os.fsync(self._file.fileno())

    def rewind(self, phase_order: tuple[str, ...], phase: str, step: int) -> list[dict[str, Any]]:
        """Drops the lines after (`phase`, `step`), a point whose own lines stay, and returns those kept.

        Args:
            phase_order: every phase of the run, first to last.
            phase: phase of the last line to keep.
            step: step of the last line to keep; one below the first step keeps nothing of `phase`.

        Raises:
            ValueError: `phase`, or a line's phase, is not in `phase_order`.
        """
        point = (phase_order.index(phase), step)
        lines = read_jsonl_tolerant(self._path)
        kept = [line for line in lines if (phase_order.index(line["phase"]), line["step"]) <= point]
        self._file.close()
        self._replace(kept)
        self._file = _appending(self._path)
        return kept

    def close(self) -> None:
        """Closes the file; later appends fail."""
        self._file.close()

    def _replace(self, lines: Iterable[Mapping[str, Any]]) -> None:
        data = b"".join(json_line(line) for line in lines)
        if data != self._path.read_bytes():
            write_atomic(self._path, data)
