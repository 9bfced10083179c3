"""Failed writes that libraries wrap in exceptions of their own."""

import errno
import os
import re

_OF_RUST = re.compile(r"\(os error (\d+)\)")


def of_the_disk(error: BaseException) -> OSError | None:
    """The failed write behind an exception, if it is one.

    torch's archive complains of its own place in the file; safetensors and tokenizers, of Rust, name the system's
    error.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    text = str(error).splitlines()[0] if str(error) else ""
    if (number := _OF_RUST.search(text)) is not None:
        return OSError(int(number[1]), os.strerror(int(number[1])))
    written_in_c = any(word in text for word in ("inline_container", "iostream", "PytorchStreamWriter"))
    return OSError(errno.EIO, f"torch could not write an archive: {text}") if written_in_c else None
