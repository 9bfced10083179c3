"""Which jobs were submitted from a folder: a small file beside each script."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megarl.config.errors import RunFolderError
from megarl.observe.files import read_json, write_json_atomic

_SUFFIX = ".job.json"


@dataclass(frozen=True)
class Record:
    """One submission.

    Attributes:
        submission: when it was made, which its attempts have in common.
        name: the jobs' name.
        jobs: ids, in the order of a chain.
        runs: output folders of the runs, absolute; several for an array.
        script: the batch script.
    """

    submission: str
    name: str
    jobs: tuple[str, ...]
    runs: tuple[str, ...]
    script: str


def write(logs: Path, record: Record) -> None:
    """Writes the record into the folder of the logs."""
    write_json_atomic(logs / f"{record.name}-{record.submission}{_SUFFIX}", asdict(record))


def read(logs: Path) -> list[Record]:
    """Every record in the folder, the oldest submission first; none where the folder is not there.

    Raises:
        RunFolderError: a file of that name is none.
    """
    return sorted(map(_record, logs.glob(f"*{_SUFFIX}")), key=lambda record: record.submission)


def _record(path: Path) -> Record:
    held = read_json(path)
    texts, lists = ("submission", "name", "script"), ("jobs", "runs")
    whole = held.keys() == {*texts, *lists} and all(isinstance(held[name], str) for name in texts)
    if not whole or not all(_is_texts(held[name]) for name in lists):
        raise RunFolderError(f"{path} is no record of a submission, so its jobs cannot be followed; delete it.")
    return Record(**{**held, **{name: tuple(held[name]) for name in lists}})


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(each, str) for each in value)
