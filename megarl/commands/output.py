"""What is refused of files that a command is to write, before it does what takes long."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from megarl.config.errors import UserError
from megarl.config.refusal import in_words


def check_outputs(outputs: Mapping[str, Path | None], read: Sequence[Path]) -> None:
    """Looks whether each file can be written.

    Args:
        outputs: by option; None where it was not given.
        read: what the command reads.

    Raises:
        UserError: a file cannot be put there, would take the place of a device or pipe, or is read or written besides.
    """
    taken = {os.path.realpath(path): f"{path}, which is read" for path in read}
    for option, path in outputs.items():
        if path is None:
            continue
        place = f"{option}={in_words(str(path))}"
        folder = path.parent
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            # a new file, if its folder is there
            pass
        except OSError as error:
            raise UserError(f"{place} cannot be written ({error.strerror}); name another file.") from error
        if os.path.isdir(path):
            raise UserError(f"{place} is a folder; name a file in it.")
        # a file is written beside and renamed, which would put it in the place of /dev/null itself
        if os.path.exists(path) and not os.path.isfile(path):
            raise UserError(f"{place} is a device or pipe, which a file would take the place of; name a file.")
        if not os.path.isdir(folder):
            raise UserError(f"{place} would lie in {folder}, which is no folder; make it, or name another file.")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise UserError(f"{place} would lie in {folder}, which takes no files from you; name another file.")
        if (other := taken.get(os.path.realpath(path))) is not None:
            raise UserError(f"{place} is the same file as {other}; name another file.")
        taken[os.path.realpath(path)] = f"{option}, which is written"
