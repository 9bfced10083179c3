"""Checkpoint folders: written beside, digested, renamed; the newest that is whole is the one to resume.

A checkpoint is a folder with `manifest.json`, written last, that holds the size and SHA-256 of every other file.
"""

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megarl.checkpoint.manifest import complaint
from megarl.checkpoint.names import committed
from megarl.checkpoint.retention import Retention
from megarl.checkpoint.state import RunState
from megarl.config.errors import RunFolderError
from megarl.observe.files import sync_to_disk, write_atomic

MANIFEST = "manifest.json"
_WRITING = ".writing"
_REPLACED = ".replaced."
"""Before the name of one that a save of the same state takes the place of."""
_DROPPED = ".dropped"
Digest = dict[str, Any]
"""A file's size in bytes and its SHA-256, in hex."""

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run. Only the main rank writes through it."""

    def __init__(self, folder: Path, keep: int | Retention) -> None:
        """Args: folder: holds the checkpoints. keep: which of them stay after a save; a number is of the last."""
        self.folder = folder
        self._keep = keep if isinstance(keep, Retention) else Retention(keep)

    @property
    def staging(self) -> Path:
        """Where the next checkpoint is written before it counts."""
        return self.folder / _WRITING

    def recover(self) -> None:
        """Gives a checkpoint its name again that a killed save had moved away for its own, not yet in its place.

        For the process that alone works in the folder.

        Raises:
            OSError: it cannot be renamed.
        """
        for replaced in self.folder.glob(f"{_REPLACED}*"):
            final = self.folder / replaced.name.removeprefix(_REPLACED)
            if not final.exists():
                replaced.rename(final)

    def begin(self) -> Path:
        """Empties and makes the staging folder; what an interrupted save left there goes."""
        shutil.rmtree(self.staging, ignore_errors=True)
        self.staging.mkdir(parents=True)
        return self.staging

    def commit(self, state: RunState, facts: dict[str, Any], digests: Mapping[str, Digest] | None = None) -> Path:
        """Turns the staging folder into the checkpoint of `state`, and drops what `keep` does not keep.

        Args:
            state: goes into the manifest.
            facts: what else the manifest tells: recipe, library versions, and as "score" what `Retention` ranks by.
            digests: of files that were digested where they were written, by path in the staging folder.

        Raises:
            OSError: something could not be written or renamed, or what another rank wrote is not seen here; the older
                checkpoints are as they were.
        """
        paths = {str(path.relative_to(self.staging)): path for path in _files(self.staging)}
        if unseen := sorted((digests or {}).keys() - paths.keys()):
            raise OSError(errno.ENOENT, f"{unseen[0]} was written by another process and is not seen by this one")
        files = {name: (digests or {}).get(name) or digest_of(path) for name, path in paths.items()}
        manifest = {"state": state.as_dict(), "files": files, **facts}
        manifest["digest"] = _manifest_digest(manifest)
        write_atomic(self.staging / MANIFEST, json.dumps(manifest, indent=1).encode())
        # the names of what is in it, before the folder counts
        for path in {file.parent for file in paths.values()}:
            sync_to_disk(path)
        final = self.folder / state.folder_name
        replaced, dropped = self.folder / f"{_REPLACED}{final.name}", self.folder / _DROPPED
        shutil.rmtree(dropped, ignore_errors=True)
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        self._rename(final, manifest["digest"])
        shutil.rmtree(replaced, ignore_errors=True)
        # a later one is there only if it is damaged, and must not push this one out
        until_this = [name for name in self.names() if name <= final.name]
        for old in self._keep.dropped(until_this, {name: self._score(name) for name in until_this}):
            # renamed first: a folder that is half deleted must not look like a checkpoint
            (self.folder / old).rename(dropped)
            shutil.rmtree(dropped)
        return final

    def _rename(self, final: Path, digest: str) -> None:
        """Gives the staging folder its name, and looks whether it has it.

        A network file system may say that a rename failed which its server has made, and the other way round.
        """
        try:
            self.staging.rename(final)
        except OSError:
            if self.staging.exists() or not final.exists():
                raise
        sync_to_disk(self.folder)
        if self.staging.exists() or _read_manifest(final)[0].get("digest") != digest:
            raise OSError(errno.EIO, f"a rename was reported and not made, of {self.staging} to {final.name}")

    def _score(self, name: str) -> float:
        score = _read_manifest(self.folder / name)[0].get("score")
        return score if isinstance(score, float) else math.nan

    def names(self) -> list[str]:
        """Names of the committed checkpoints, oldest first."""
        return committed(self.folder)

    def newest(
        self, why_not: Callable[[dict[str, Any]], str | None] | None = None
    ) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint whose files are all as the manifest says, with its manifest.

        Damaged ones are passed over, each with a warning that says why. None where there is no checkpoint at all.

        Args:
            why_not: what else is wrong with a checkpoint, by its manifest; None where nothing is.

        Raises:
            RunFolderError: there are checkpoints, and none is whole: to start anew would overwrite the run.
        """
        damage = None
        for name in reversed(self.names()):
            path = self.folder / name
            manifest, damage = _verify(path)
            if damage is None and why_not is not None:
                damage = why_not(manifest)
            if damage is None:
                return path, manifest
            _log.warning("passed over checkpoint %s: %s", path, damage)
        if damage is not None:
            raise RunFolderError(
                f"No checkpoint in {self.folder} is whole (the last one looked at: {damage}); "
                "restore one from a copy, or start anew in another output_dir."
            )
        return None


def damage_of(checkpoint: Path) -> str | None:
    """What is wrong with a committed checkpoint; None where its files are all as its manifest says."""
    return _verify(checkpoint)[1]


def digest_of(path: Path) -> Digest:
    """Size and SHA-256 of a file, which is on the disk by then."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}


def _verify(path: Path) -> tuple[dict[str, Any], str | None]:
    """The manifest, and what is wrong with the folder (None where nothing is)."""
    manifest, damage = _read_manifest(path)
    damage = damage or complaint(manifest, path.resolve().name)
    if damage is not None:
        return manifest, damage
    for name, digest in manifest["files"].items():
        file = path / name
        try:
            if not file.is_file():
                return manifest, f"{name} is missing"
            if digest_of(file) != digest:
                return manifest, f"{name} is not what was written"
        except OSError as error:
            return manifest, f"{name} cannot be read ({error.strerror})"
    return manifest, None


def _read_manifest(path: Path) -> tuple[dict[str, Any], str | None]:
    """What a checkpoint's manifest says, and what is wrong with it; then it says nothing."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        is_whole = isinstance(manifest, dict) and _manifest_digest(manifest) == manifest.get("digest")
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"its manifest cannot be read ({error})"
    if not is_whole:
        return {}, f"{MANIFEST} is not what was written"
    return manifest, None


def _manifest_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of the manifest without its own digest."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
