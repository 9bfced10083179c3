"""One save on this rank: its copies, its files and, on the main rank, the checkpoint that comes of them."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import CheckpointStore, Digest, digest_of
from megarl.checkpoint.tensors import PendingTensors

HF = "hf"
"""Folder of a checkpoint with the policy in Hugging Face layout."""


@dataclass
class Save:
    """Nothing in it is collective.

    Attributes:
        store: takes the checkpoint.
        state: as it was, on the main rank with the responses that wait.
        facts: for the manifest.
        parts: what all ranks write, by trainee.
        more: what this rank writes beside it.
        is_main: whether this is the main rank.
        in_background: whether a thread does the work.
        digests: of the files that this rank has written, by path in the staging folder.
        is_written: whether all ranks have written, and the main one commits.
    """

    store: CheckpointStore
    state: RunState
    facts: dict[str, Any]
    parts: list[PendingTensors]
    more: Callable[[], None]
    is_main: bool
    in_background: bool
    digests: dict[str, Digest] = field(default_factory=dict)
    is_written: bool = False
    _copied: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: Exception | None = None

    def write(self) -> None:
        """Copies, writes and digests this rank's files."""
        self._start(self._write)

    def commit(self, digests: Mapping[str, Digest]) -> None:
        """Makes a checkpoint of what all ranks have written. Args: digests: of all ranks' files."""
        self.is_written = True
        if self.is_main:
            self._start(partial(self._commit, digests))

    def await_copies(self) -> None:
        """Returns once the weights and moments may change."""
        self._copied.wait()

    @property
    def is_busy(self) -> bool:
        """Whether the work that was begun last goes on."""
        return self._thread is not None and self._thread.is_alive()

    def join(self) -> None:
        """Waits for it.

        Raises:
            Exception: what went wrong in it.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _start(self, work: Callable[[], None]) -> None:
        if self.in_background:
            self._thread = threading.Thread(target=self._kept, args=(work,), name="checkpoint", daemon=True)
            self._thread.start()
        else:
            self._kept(work)

    def _kept(self, work: Callable[[], None]) -> None:
        """What goes wrong is kept, for all ranks to learn of it together."""
        try:
            work()
        except Exception as error:
            self._error = error

    def _write(self) -> None:
        try:
            for part in self.parts:
                part.copy()
        finally:
            # what could not be copied is not waited for either
            self._copied.set()
        for part in self.parts:
            part.write()
            self._digest(part.files)
        self.more()
        if self.is_main and (self.store.staging / HF).exists():
            self._digest(sorted((self.store.staging / HF).iterdir()))

    def _digest(self, files: list[Path]) -> None:
        for file in files:
            self.digests[str(file.relative_to(self.store.staging))] = digest_of(file)

    def _commit(self, digests: Mapping[str, Digest]) -> None:
        for part in self.parts:
            part.write_index()
        self.store.commit(self.state, self.facts, digests)
