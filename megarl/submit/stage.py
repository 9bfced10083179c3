"""A copy of a file or folder on a node's own disk, made once."""

import fcntl
import os
import shutil
from pathlib import Path


def stage(source: Path, target: Path) -> None:
    """Copies `source` to `target`, unless an earlier copy has the same files, by name, size and time of change.

    Args:
        source: file or folder.
        target: where the copy goes; the folder that holds it is this copy's alone.

    Raises:
        OSError: the copy cannot be made; `target` is then as it was, or missing.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if target.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{target.parent} belongs to another user")
    with open(target.parent / ".lock", "w") as lock:
        # two jobs on one node copy the same thing
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if target.exists() and _listing(target) == _listing(source):
            return
        beside = target.with_name(f".{target.name}.new")
        _remove(beside)
        if source.is_dir():
            shutil.copytree(source, beside)
        else:
            shutil.copy2(source, beside)
        _remove(target)
        beside.rename(target)


def _listing(place: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and nanoseconds of the last change of every file."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return [(str(path.relative_to(place)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
