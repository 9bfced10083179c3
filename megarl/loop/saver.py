"""Saves a run's state as one checkpoint, in the background where asked; one at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from megarl.checkpoint.hf import write_hf
from megarl.checkpoint.responses import save_responses
from megarl.checkpoint.state import RunState
from megarl.checkpoint.store import Digest, digest_of
from megarl.checkpoint.tensors import PendingTensors, plan_tensors
from megarl.config.errors import DivergedError, RunFolderError
from megarl.megatron.finite import all_finite
from megarl.megatron.precision import whole_precision
from megarl.platform.checkpoint_writer import HostMemory
from megarl.platform.platform import current

if TYPE_CHECKING:
    from megarl.loop.run import Run

HF = "hf"
"""Folder of a checkpoint with the policy in Hugging Face layout."""


@dataclass
class _Save:
    """A save under way on this rank.

    Attributes:
        state: as it was, on the main rank with the responses that wait.
        facts: for the manifest.
        parts: what all ranks write, by trainee.
        more: what this rank writes beside it.
        digests: of the files that this rank has written, by path in the staging folder.
        is_main: whether this is the main rank.
        thread: that writes, in the background.
        error: of the writing.
    """

    state: RunState
    facts: dict[str, Any]
    parts: list[PendingTensors]
    more: Callable[[], None]
    staging: Path
    digests: dict[str, Digest]
    is_main: bool
    thread: threading.Thread | None = None
    error: Exception | None = None

    def write(self) -> None:
        """Writes this rank's files and digests them."""
        for part in self.parts:
            part.write()
            for file in part.files:
                self.digests[str(file.relative_to(self.staging))] = digest_of(file)
        self.more()
        for file in sorted((self.staging / HF).iterdir()) if self.is_main and (self.staging / HF).exists() else ():
            self.digests[str(file.relative_to(self.staging))] = digest_of(file)

    def try_to_write(self) -> None:
        """As `write`; what goes wrong is kept, for all ranks to learn of it."""
        try:
            self.write()
        except Exception as error:
            self.error = error


class Saver:
    """Every method is collective."""

    def __init__(self, run: "Run") -> None:
        """Args: run: whose state is saved."""
        self._run = run
        self._pending: _Save | None = None
        self._memory = HostMemory()

    def begin(self, facts: dict[str, Any], stepped: dict[str, bool]) -> None:
        """Copies the state and begins to write it, once the save before is over; without a background writes it all.

        Args:
            facts: for the manifest.
            stepped: by trainee, whether its optimizer has moments that are saved.

        Raises:
            RunFolderError: it could not be written; the checkpoints before are whole. On every rank.
            DivergedError: a weight is not finite.
        """
        self.finish()
        self._refuse_nonfinite()
        run, in_background = self._run, self._run.recipe.checkpoint.background
        with self._agreed():
            if run.layout.is_main:
                run.store.begin()
        with self._told():
            parts = [
                plan_tensors(
                    trainee,
                    run.store.staging,
                    with_optimizer=stepped[name],
                    name=name,
                    with_rng=trainee is run.policy,
                    memory=self._memory if in_background else None,
                )
                for name, trainee in run.trainees.items()
            ]
        state = deepcopy(run.state)
        save = _Save(state, facts, parts, self._more(state), run.store.staging, {}, run.layout.is_main)
        if in_background:
            save.thread = threading.Thread(target=save.try_to_write, name="checkpoint", daemon=True)
            save.thread.start()
            self._pending = save
        else:
            save.try_to_write()
            self._complete(save)

    def _refuse_nonfinite(self) -> None:
        """Finite gradients may still make weights that overflow."""
        weights = (whole_precision(weight) for each in self._run.trainees.values() for weight in each.weights())
        if not all_finite(weights, self._run.layout.world_size):
            raise DivergedError(
                f"step {self._run.state.step}: a weight is not finite, so nothing was saved; the checkpoints before it "
                "are finite: go on from the newest, or start anew with a lower learning rate."
            )

    @property
    def is_writing(self) -> bool:
        """Whether a save was begun and is not completed."""
        return self._pending is not None

    def poll(self) -> None:
        """Completes a save that all ranks have written; tells of one that failed.

        Raises:
            RunFolderError: as `begin`.
        """
        if self._pending is None or self._pending.thread is None:
            return
        done = torch.tensor(int(not self._pending.thread.is_alive()), device=current().device)
        if self._run.layout.world_size > 1:
            dist.all_reduce(done, op=dist.ReduceOp.MIN)
        if done:
            self.finish()

    def finish(self) -> None:
        """Waits until the save that is under way, if there is one, is over.

        Raises:
            RunFolderError: as `begin`.
        """
        save, self._pending = self._pending, None
        if save is None:
            return
        if save.thread is not None:
            save.thread.join()
        self._complete(save)

    def _complete(self, save: _Save) -> None:
        """Makes a checkpoint of what all ranks have written."""
        run = self._run
        with self._agreed():
            if save.error is not None:
                raise save.error
        with self._told():
            for part in save.parts:
                part.finish()
        digests: list[Any] = [save.digests]
        if run.layout.world_size > 1:
            digests = [None] * run.layout.world_size
            dist.gather_object(save.digests, digests if run.layout.is_main else None)
        with self._agreed():
            if run.layout.is_main:
                together = {name: digest for each in digests for name, digest in each.items()}
                run.store.commit(save.state, save.facts, together)

    def _more(self, state: RunState) -> Callable[[], None]:
        """What the main rank writes beside the tensors; what it takes from the policy is gathered here. Collective."""
        run, staging = self._run, self._run.store.staging
        exported = run.policy.export() if run.recipe.checkpoint.hf else iter(())
        # one process holds the whole model for it
        held = [(name, tensor.to("cpu", copy=True)) for name, tensor in exported if run.layout.is_main]
        if not run.layout.is_main:
            return lambda: None

        def write() -> None:
            save_responses(staging, state.awaited)
            if held:
                write_hf(held, run.recipe.model, run.policy.vocab_size, staging / HF, run.tokenizer)

        return write

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Puts into words that the checkpoint cannot be written. Where ranks wait for this one, its end ends them."""
        try:
            yield
        except OSError as error:
            raise self._refused(error.strerror or str(error)) from error

    @contextlib.contextmanager
    def _agreed(self) -> Iterator[None]:
        """What fails in the block on one rank fails on all, with the first rank's reason. Collective on its way out."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        reasons = [None if failure is None else _reason(failure)]
        if self._run.layout.world_size > 1:
            mine, reasons = reasons[0], [None] * self._run.layout.world_size
            dist.all_gather_object(reasons, mine)
        if failure is not None and not isinstance(failure, OSError):
            raise failure
        if (reason := next(filter(None, reasons), None)) is not None:
            raise self._refused(reason) from failure

    def _refused(self, reason: str) -> RunFolderError:
        return RunFolderError(
            f"output_dir={self._run.recipe.output_dir} did not take a checkpoint ({reason}), and those before it are "
            "as they were; make room or mend the file system, and the same command goes on from the newest whole one."
        )


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
