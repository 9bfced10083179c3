"""Which jobs were submitted from a folder: a small file beside each script."""

from dataclasses import asdict, dataclass
from pathlib import Path

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
    """Every record in the folder, the oldest submission first; none where the folder is not there."""
    held = [read_json(path) for path in logs.glob(f"*{_SUFFIX}")]
    records = [Record(**{**record, "jobs": tuple(record["jobs"]), "runs": tuple(record["runs"])}) for record in held]
    return sorted(records, key=lambda record: record.submission)
