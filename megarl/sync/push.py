"""Weights from the policy to the engine, with proof that they arrived."""

import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from megarl.config.schema import Recipe
from megarl.megatron.policy import FrozenModel
from megarl.rollout.engine import EngineLost, LocalEngine, ServedEngine, WeightsError
from megarl.rollout.types import Completion
from megarl.sync.bucket import Bucket, TensorSpec, plan_buckets
from megarl.sync.digest import digest
from megarl.sync.int8 import Int8Source, WeightSource
from megarl.sync.probe import Agreement, Probe
from megarl.sync.senders import build_sender
from megarl.sync.transport import Sender
from megarl.sync.verify import MismatchError, first_mismatch, likeliest_cause

_SAMPLED = 16
"""One tensor in so many is compared after a sync that need not be compared in full."""
_MIB = 2**20

Value = TypeVar("Value")


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
        self._source: WeightSource = Int8Source(policy) if recipe.engine.quantization == "int8" else policy
        self._engine = engine
        self._probe = Probe(recipe, policy)
        self._always = recipe.sync.verify == "always"
        self._specs = [TensorSpec(*spec) for spec in self._source.export_specs]
        self.buckets = plan_buckets(self._specs, recipe.sync.bucket_mib * _MIB)
        self._sender: Sender | None = None if engine is None else build_sender(recipe, engine)
        self._proven = False
        self._digests: dict[str, str] = {}
        self._reported = 0
        self.agreement: Agreement | None = None
        """Of log-probs, after the newest update that was compared in full."""
        self.last: SyncCost | None = None
        """Of the newest update, on the main rank."""

    def push(self, version: int) -> None:
        """Gives every server the policy's weights under this version, whatever dies meanwhile. Collective.

        Raises:
            WeightsError: what a worker received is not what was sent, and the engine stays paused; or what an engine
                computes is not what the policy does. On every rank.
            EngineError: a server does not come back; on every rank.
        """
        while not self._pushed(version):
            self._proven = False

    def sent_bytes(self) -> int:
        """Bytes that the transport carried since this was last asked; on the main rank."""
        assert self._sender is not None
        before, self._reported = self._reported, self._sender.bytes_written
        return self._reported - before

    def close(self) -> None:
        """Removes what the transport made."""
        if self._sender is not None:
            self._sender.close()

    def _pushed(self, version: int) -> bool:
        """One update, begun again by the caller where a server was lost in it."""
        tensors = self._source.export()
        outcome: bool | Exception = False
        if self._engine is not None:
            try:
                outcome = self._update(self._engine, tensors, version)
            except Exception as error:
                assert self._sender is not None
                self._sender.reset()
                outcome = error
        _exhaust(tensors)
        outcome = _from_main(outcome)
        if isinstance(outcome, MismatchError):
            raise WeightsError(self._explained(outcome))
        if isinstance(outcome, Exception) and not isinstance(outcome, EngineLost):
            raise outcome
        in_full = outcome is True
        return not isinstance(outcome, EngineLost) and (not in_full or self._probed(version))

    def _probed(self, version: int) -> bool:
        """Whether every server lived long enough to be asked; raises where one's answers are not the policy's."""
        requests = self._probe.requests()
        answers: list[list[Completion]] | Exception = []
        if self._engine is not None:
            try:
                answers = self._engine.generate_on_each(requests, self._probe.sampling)
            except Exception as error:
                answers = error
        answers = _from_main(answers)
        if isinstance(answers, EngineLost):
            return False
        if isinstance(answers, Exception):
            raise answers
        self.agreement = self._probe.check(answers, version)
        return True

    def _explained(self, mismatch: MismatchError) -> str:
        """The mismatch in a sentence, with the likeliest cause. Collective: the weights are gathered once more."""
        tensors, cause = self._source.export(), ""
        if self._engine is not None:
            cause = likeliest_cause(mismatch, tensors, self._digests)
        _exhaust(tensors)
        return mismatch.sentence(_from_main(cause))

    def _update(self, engine: ServedEngine, tensors: Iterator[tuple[str, Tensor]], version: int) -> bool:
        """Returns whether all digests were compared."""
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
                raise mismatch
        left_out = engine.finish_update(version)
        if left_out:
            raise WeightsError(
                f"the engine's {left_out[0]} got no weights, nor did {len(left_out) - 1} more of its layers; the names "
                "that were sent are not those of its model, or a head that the engine does not tie was not sent"
            )
        self._proven = True
        self._digests |= sent
        nbytes = sum(spec.nbytes for spec in self._specs)
        self.last = SyncCost(nbytes, time.perf_counter() - began, packing_s)
        return len(names) == len(self._specs)

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


def _exhaust(tensors: Iterator[tuple[str, Tensor]]) -> None:
    for _ in tensors:
        # the other ranks' part of the gathering, and the main rank's where it gave up
        pass


def _from_main(value: Value) -> Value:
    """The main rank's, on every rank. Collective."""
    held = [value]
    if dist.get_world_size() > 1:
        dist.broadcast_object_list(held)
    return held[0]


def build_sync(recipe: Recipe, policy: FrozenModel, engine: Any) -> LocalSync | ServedSync:
    """The way from this policy to this engine. Collective."""
    if recipe.rollout.engine == "embedded":
        return LocalSync(policy, engine)
    return ServedSync(recipe, policy, engine)
