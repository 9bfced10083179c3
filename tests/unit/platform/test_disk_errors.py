"""A disk that takes no more is the system's error, whichever library meets it. A limit on files stands in for it."""

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megarl.checkpoint.responses import save_responses
from megarl.config.model import TokenizerConfig
from megarl.data.tokenizer import build_tokenizer, save_tokenizer
from megarl.observe.files import JsonlFile
from megarl.rollout import Completion, Request

LIMIT = 200


@contextmanager
def no_room() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def responses(folder: Path) -> None:
    each = Completion(Request("a", 0, (7, 8), "rl/5"), (1,) * 99, (-1.0,) * 99, "stop", ())
    save_responses(folder, {0: {0: each}})


def tokenizer(folder: Path) -> None:
    save_tokenizer(build_tokenizer(TokenizerConfig(alphabet="0123456789+=")), folder)


@pytest.mark.parametrize("write", [responses, tokenizer], ids=lambda write: write.__name__)
def test_it_is_an_error_of_the_system(write: Callable[[Path], None], tmp_path: Path) -> None:
    with no_room(), pytest.raises(OSError) as told:
        write(tmp_path)
    assert told.value.errno == errno.EFBIG and told.value.strerror


def test_a_log_tells_it_once_and_keeps_what_was_whole(tmp_path: Path) -> None:
    """Closing it is no second failure, and what the disk took of the last line is dropped at the next opening."""
    log = JsonlFile(tmp_path / "log.jsonl")
    line = {"phase": "rl", "step": 1, "text": "x" * 60}
    with no_room():
        log.append(line)
        with pytest.raises(OSError):
            for _ in range(2):
                log.append(line)
        log.close()
    assert (tmp_path / "log.jsonl").stat().st_size == LIMIT
    again = JsonlFile(tmp_path / "log.jsonl")
    assert again.rewind(("rl",), "rl", 1) == [line] * (LIMIT // 99)
    again.close()
