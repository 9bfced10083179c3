"""What checkpoints and the files in them are called. Imports nothing heavy."""

import re
from pathlib import Path

_NAME = re.compile(r"[0-9]-(sft|rl|done)-[0-9]{8,}")


def committed(folder: Path) -> list[str]:
    """Names of the checkpoints in a folder, in the order of training.

    What has another name, such as a copy that somebody made, is none of the run's.
    """
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())


def rank_file(what: str, rank: int) -> str:
    """Name of a file that one rank writes for itself, such as its generators' (`rng`)."""
    return f"{what}-{rank:05d}.safetensors"
