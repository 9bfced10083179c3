"""The dumps of a run: one file a step, old ones deleted, written whole or not at all."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from megarl.dumps.errors import DumpError
from megarl.dumps.schema import SCHEMA, Header, file_metadata
from megarl.observe.files import replaced

DUMPS_FOLDER = "dumps"
_NAME = re.compile(r"step-(\d+)\.parquet")


class DumpFolder:
    """The folder `dumps/` of a run. One process of the run writes to it."""

    def __init__(self, run_folder: Path, keep: int) -> None:
        """Makes nothing yet.

        Args:
            run_folder: the run's folder.
            keep: dumps that stay; 0 for all.
        """
        self._folder, self._keep = run_folder / DUMPS_FOLDER, keep

    def write(self, header: Header, pieces: Mapping[int, str], batches: Iterable[pa.RecordBatch]) -> Path:
        """Writes one step's dump, a row group a batch, and deletes the oldest beyond what is kept.

        Args:
            header: its step names the file.
            pieces: text of each token of the responses.
            batches: of `SCHEMA`, one at a time in memory.

        Raises:
            DumpError: the folder cannot be written to, or the disk is full; an older file of the step is unchanged.
        """
        path = self._folder / f"step-{header.step:08d}.parquet"
        schema = SCHEMA.with_metadata(file_metadata(header, pieces))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replaced(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in batches:
                    writer.write_batch(batch.cast(schema))
            for old in self._steps()[: -self._keep] if self._keep else ():
                old.unlink()
        except OSError as error:
            raise DumpError(
                f"{path} cannot be written ({error.strerror or error}); make room, or set observe.dump_every=0 to go "
                "on without dumps."
            ) from error
        return path

    def rewind(self, step: int | None) -> None:
        """Deletes the dumps of the steps after `step`, which a resumed run writes again; None deletes none."""
        for path in self._steps():
            if step is not None and step_of(path) > step:
                path.unlink()

    def _steps(self) -> list[Path]:
        return dump_files(self._folder)


def dump_files(folder: Path) -> list[Path]:
    """The dumps in a folder, by step; none where there is no such folder."""
    found = [path for path in folder.glob("step-*.parquet") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step in a dump's name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
