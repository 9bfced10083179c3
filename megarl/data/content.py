"""Whether two sources hold the same problems: a position in the one means nothing in the other."""

import hashlib
import json

from megarl.data.file_source import FileSource
from megarl.data.problem import Source


def content_fingerprint(source: Source) -> str:
    """SHA-256, in hex, of the rows of a file's training problems, and of the evaluation problems of any source.

    What else a source gives it makes up, by rules of its own that show in the evaluation problems too.
    """
    state = hashlib.sha256()
    if isinstance(source, FileSource):
        for row in source.training_rows:
            state.update(_encoded(row.prompt, row.answer, row.demonstration))
    for problem in source.evaluation():
        state.update(_encoded(problem.id, problem.prompt, problem.answer))
    return state.hexdigest()


def _encoded(*texts: str | None) -> bytes:
    return json.dumps(texts).encode("ascii")
