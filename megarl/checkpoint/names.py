"""Names of checkpoints in a folder, such as "1-rl-00000012". Imports nothing heavy."""

import re
from pathlib import Path

_NAME = re.compile(r"\d-[a-z]+-\d{8}")


def names_in(folder: Path) -> list[str]:
    """The checkpoints' names, oldest first; what a user keeps under another name is none, and no folder has none."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())
