"""Weights from the policy to the engine, with proof that they arrived."""

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.policy import FrozenModel
from megarl.rollout.engine import EngineLost, LocalEngine, ServedEngine, WeightsError
from megarl.sync.bucket import Bucket, TensorSpec, plan_buckets
from megarl.sync.digest import digest
from megarl.sync.senders import build_sender
from megarl.sync.transport import Sender
from megarl.sync.verify import first_mismatch

_SAMPLED = 16
"""One tensor in so many is compared after a sync that need not be compared in full."""
_MIB = 2**20


@dataclass(frozen=True)
class SyncCost:
    """What one update took.

    Attributes:
        nbytes: of the weights, whole.
        whole_s: seconds from asking the engine to pause until it had resumed.
        packing_s: seconds of them in which the main rank gathered, counted digests and wrote buckets.
    """

    nbytes: int
    whole_s: float
    packing_s: float


class LocalSync:
    """To engines in the trainer's processes, a parameter at a time; the engine itself refuses what does not fit."""

    def __init__(self, policy: FrozenModel, engine: LocalEngine) -> None:
        self._policy, self._engine = policy, engine

    def push(self, version: int) -> None:
        """Gives the engine the policy's weights. Collective; peak extra memory is one parameter, gathered."""
        self._engine.load_weights(self._policy.export(), version)

    def close(self) -> None:
        """Nothing to remove."""


class ServedSync:
    """To servers, in buckets. The plan is made once; peak extra memory is two buckets on the main rank."""

    def __init__(self, recipe: Recipe, policy: FrozenModel, engine: ServedEngine | None) -> None:
        """Collective. Args: recipe: says how. policy: the weights. engine: on the main rank, elsewhere None."""
        self._policy, self._engine = policy, engine
        self._always = recipe.sync.verify == "always"
        self._specs = [TensorSpec(*spec) for spec in policy.export_plan.specs]
        self.buckets = plan_buckets(self._specs, recipe.sync.bucket_mib * _MIB)
        self._sender: Sender | None = None if engine is None else build_sender(recipe, engine)
        self._proven = False
        self.last: SyncCost | None = None
        """Of the newest update, on the main rank."""

    def push(self, version: int) -> None:
        """Gives every server the policy's weights under this version, whatever dies meanwhile. Collective.

        Raises:
            WeightsError: what a worker received is not what was sent; on every rank, and the engine stays paused.
            EngineError: a server does not come back; on every rank.
        """
        while not self._pushed(version):
            self._proven = False

    def close(self) -> None:
        """Removes what the transport made."""
        if self._sender is not None:
            self._sender.close()

    def _pushed(self, version: int) -> bool:
        """One update, begun again by the caller where a server was lost in it."""
        tensors = self._policy.export()
        outcome: list[Exception | None] = [None]
        if self._engine is not None:
            try:
                self._update(self._engine, tensors, version)
            except Exception as error:
                assert self._sender is not None
                self._sender.reset()
                outcome[0] = error
        for _ in tensors:
            # the other ranks' part of the gathering, and the main rank's where it gave up
            pass
        if dist.get_world_size() > 1:
            dist.broadcast_object_list(outcome)
        if outcome[0] is not None and not isinstance(outcome[0], EngineLost):
            raise outcome[0]
        return outcome[0] is None

    def _update(self, engine: ServedEngine, tensors: Iterator[tuple[str, Tensor]], version: int) -> None:
        assert self._sender is not None
        if engine.revive():
            self._proven = False
            self._sender.reset()
        began, packing_s = time.perf_counter(), 0.0
        transport = self._sender.describe()
        names = self._to_compare(version)
        sent: dict[str, str] = {}
        with (
            ThreadPoolExecutor(1, thread_name_prefix="sync") as pool,
            ThreadPoolExecutor(1, thread_name_prefix="digest") as digests,
        ):
            # the first bucket is written while the engine pauses
            busy: list[Future[Any]] = [pool.submit(engine.begin_update, transport)]
            for number, bucket in enumerate(self.buckets):
                if number >= self._sender.slots:
                    while len(busy) >= self._sender.slots:
                        busy.pop(0).result()
                started = time.perf_counter()
                stream = _digested(bucket, tensors, names, sent, digests)
                where = self._sender.write(number % self._sender.slots, bucket, stream)
                packing_s += time.perf_counter() - started
                busy.append(pool.submit(engine.receive, where, sorted(names & {spec.name for spec in bucket.specs})))
            for future in busy:
                future.result()
        for worker in engine.received_digests():
            mismatch = first_mismatch(self._specs, sent, worker)
            if mismatch is not None:
                raise WeightsError(mismatch)
        left_out = engine.finish_update(version)
        if left_out:
            raise WeightsError(
                f"the engine's {left_out[0]} got no weights, nor did {len(left_out) - 1} more of its layers; the names "
                "that were sent are not those of its model, or a head that the engine does not tie was not sent"
            )
        self._proven = True
        nbytes = sum(spec.nbytes for spec in self._specs)
        self.last = SyncCost(nbytes, time.perf_counter() - began, packing_s)

    def _to_compare(self, version: int) -> set[str]:
        every = 1 if self._always or not self._proven else _SAMPLED
        return {spec.name for number, spec in enumerate(self._specs) if (number - version) % every == 0}


def _digested(
    bucket: Bucket, tensors: Iterator[tuple[str, Tensor]], names: set[str], sent: dict[str, str], pool: Executor
) -> Iterator[Tensor]:
    """The bucket's tensors from the policy's stream; digests of those named are noted in `sent`, counted meanwhile."""
    for spec in bucket.specs:
        name, tensor = next(tensors)
        if name != spec.name or tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
            raise RuntimeError(f"the plan has {spec} where the policy gives {name}, {tuple(tensor.shape)}")
        counted = pool.submit(digest, tensor) if name in names else None
        yield tensor
        if counted is not None:
            # before the next is gathered: one parameter at a time
            sent[name] = counted.result()


def build_sync(recipe: Recipe, policy: FrozenModel, engine: Any) -> LocalSync | ServedSync:
    """The way from this policy to this engine. Collective."""
    if recipe.rollout.engine == "embedded":
        return LocalSync(policy, engine)
    return ServedSync(recipe, policy, engine)
