"""The broadcast to real workers in processes of their own, over gloo, whatever becomes of them."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from megarl.rollout.engine import EngineLost
from megarl.sync.broadcast import BroadcastSender
from megarl.sync.bucket import Bucket, TensorSpec
from megarl.sync.digest import digest
from tests.parallel.sync_reader import ReadersWithoutEngine

SMALL = Bucket.of([TensorSpec("small", (1000,), torch.float32)])
LARGE = Bucket.of([TensorSpec("large", (64 * 2**20,), torch.uint8)])
LIMIT_S = 30.0
"""Of the group; what must not wait for it is held to a third."""


@pytest.fixture
def engine() -> Iterator[ReadersWithoutEngine]:
    engine = ReadersWithoutEngine(workers=2)
    yield engine
    engine.close()


def push(sender: BroadcastSender, engine: ReadersWithoutEngine, seed: int) -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
    engine.receive(sender.write(seed % 2, SMALL, [tensor]))
    assert engine.received_digests()[0]["small"] == engine.received_digests()[1]["small"] == digest(tensor)


def test_all_workers_get_every_bucket(engine: ReadersWithoutEngine) -> None:
    sender = BroadcastSender(engine.workers, lambda: engine.lost, timeout_s=LIMIT_S)
    engine.begin_update(sender.describe())
    for seed in range(5):
        push(sender, engine, seed)
    sender.close()


def test_a_worker_that_dies_holds_up_nobody_and_the_next_group_works(engine: ReadersWithoutEngine) -> None:
    others = ReadersWithoutEngine(workers=2)
    held = [engine]
    sender = BroadcastSender(lambda: 2, lambda: held[0].lost, timeout_s=LIMIT_S)
    engine.begin_update(sender.describe())
    push(sender, engine, 0)
    began = time.monotonic()
    dying = engine.processes[1]
    assert dying.pid is not None
    # asleep, it comes for nothing, and its connections stay open
    os.kill(dying.pid, signal.SIGSTOP)
    threading.Timer(1.0, dying.kill).start()
    with pytest.raises(EngineLost):
        engine.receive(sender.write(1, LARGE, [torch.zeros(64 * 2**20, dtype=torch.uint8)]))
    sender.reset()
    held[0] = others
    others.begin_update(sender.describe())
    push(sender, others, 1)
    assert time.monotonic() - began < LIMIT_S / 3
    others.close()
    sender.close()


def test_a_worker_that_dies_as_it_receives_ends_the_transfer(engine: ReadersWithoutEngine) -> None:
    sender = BroadcastSender(engine.workers, lambda: engine.lost, timeout_s=LIMIT_S)
    engine.begin_update(sender.describe())
    push(sender, engine, 0)
    began = time.monotonic()
    where = sender.write(1, LARGE, [torch.zeros(64 * 2**20, dtype=torch.uint8)])
    threading.Timer(0.02, engine.processes[0].kill).start()
    with pytest.raises(EngineLost):
        engine.receive(where)
    sender.close()
    assert time.monotonic() - began < LIMIT_S / 3


def test_a_worker_that_never_comes_holds_up_nothing(engine: ReadersWithoutEngine) -> None:
    sender = BroadcastSender(lambda: 3, lambda: False, timeout_s=LIMIT_S)
    sender.describe()
    before = threading.active_count()
    sender.write(0, SMALL, [torch.zeros(1000)])
    sender.write(1, SMALL, [torch.zeros(1000)])
    sender.close()
    deadline = time.monotonic() + LIMIT_S / 3
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before
