"""Saves a run's state as one checkpoint, in the background where asked; one at a time."""

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from megarl.checkpoint.hf import write_hf
from megarl.checkpoint.responses import save_responses
from megarl.checkpoint.state import RunState
from megarl.checkpoint.tensors import plan_tensors
from megarl.config.errors import DivergedError, RunFolderError
from megarl.loop.save import HF, Save
from megarl.megatron.finite import all_finite
from megarl.megatron.precision import whole_precision
from megarl.platform.pending_write import HostMemory
from megarl.platform.platform import current

if TYPE_CHECKING:
    from megarl.loop.run import Run


class Saver:
    """Every method is collective."""

    def __init__(self, run: "Run") -> None:
        """Args: run: whose state is saved."""
        self._run = run
        self._pending: Save | None = None
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
        save = Save(run.store, state, facts, parts, self._more(state), run.layout.is_main, in_background)
        if in_background:
            for trainee in run.trainees.values():
                trainee.hold_until(save.await_copies)
        save.write()
        self._pending = save
        if not in_background:
            self.finish()

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
        """Takes a save to its next stage once all ranks have done their part; tells of one that failed.

        Raises:
            RunFolderError: as `begin`.
        """
        if (save := self._pending) is None:
            return
        done = torch.tensor(int(not save.is_busy), device=current().device)
        if self._run.layout.world_size > 1:
            dist.all_reduce(done, op=dist.ReduceOp.MIN)
        if done:
            self._advance(save)

    def finish(self) -> None:
        """Waits until the save that is under way, if there is one, is over.

        Raises:
            RunFolderError: as `begin`.
        """
        while self._pending is not None:
            self._advance(self._pending)

    def _advance(self, save: Save) -> None:
        """Waits for a save's part on this rank and begins the next, if there is one."""
        run = self._run
        # one that fails is over
        self._pending = None
        with self._agreed():
            save.join()
        if save.is_written:
            return
        with self._told():
            for part in save.parts:
                part.finish()
        digests: list[Any] = [save.digests]
        if run.layout.world_size > 1:
            digests = [None] * run.layout.world_size
            dist.gather_object(save.digests, digests if run.layout.is_main else None)
        save.commit({name: digest for each in digests for name, digest in (each or {}).items()})
        self._pending = save

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
