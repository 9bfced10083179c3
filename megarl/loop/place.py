"""Whether a folder can be made and written to, found out before anything is."""

import os
import stat
import tempfile
from pathlib import Path

from megarl.config.errors import RunFolderError
from megarl.config.refusal import in_words

_ROOM = 255
"""Bytes that a path in the folder may be longer than the folder's own."""


def check_place(path: str, key: str = "output_dir") -> None:
    """Refuses a path that cannot become a folder to write to. Leaves nothing behind.

    Where the folder is not there, one is made and taken away again in the nearest folder above it that is: permission
    bits tell the superuser nothing, nor do they of /proc.

    Args:
        path: of the folder.
        key: what the user gave it as, for refusals.

    Raises:
        RunFolderError: the folder, or what is above it, is a file, a link to nothing, too long or not writable.
    """
    try:
        reason = _obstacle(Path(path))
    except (OSError, ValueError) as error:
        reason = f"cannot be used ({error.strerror if isinstance(error, OSError) else error})"
    if reason is not None:
        raise RunFolderError(f"{key}={in_words(path)} {reason}; name another folder.")


def _obstacle(folder: Path) -> str | None:
    place = _nearest(folder)
    if not stat.S_ISDIR(place.stat().st_mode):
        return "is a file" if place == folder else f"is below {in_words(str(place))}, which is no folder"
    if place == folder:
        return None if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "cannot be read and written by this user"
    longest = os.pathconf(place, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > longest for part in folder.parts):
        return f"has a name of more than {longest} bytes"
    if len(os.fsencode(folder)) + _ROOM > os.pathconf(place, "PC_PATH_MAX"):
        return f"leaves no {_ROOM} bytes for the names of files in it"
    os.rmdir(tempfile.mkdtemp(prefix=".megarl-", dir=place))
    return None


def _nearest(folder: Path) -> Path:
    """The folder or the nearest path above it that is there, be it a link to nothing."""
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return place
    raise FileNotFoundError(2, "the working folder is gone")
