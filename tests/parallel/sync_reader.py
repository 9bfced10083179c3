"""An engine's worker without the engine: the real readers in a process of their own, which load nothing."""

import multiprocessing as mp
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from torch import Tensor

from megarl.rollout.engine import EngineLost
from megarl.sync.digest import digest
from megarl.sync.readers import open_reader


class ReadersWithoutEngine:
    """A `ServedEngine` for tests of what lies between the trainer and an engine. It generates nothing."""

    def __init__(self, workers: int = 1) -> None:
        context = mp.get_context("spawn")
        self._pipes, self.processes = [], []
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)
        self._transport: Mapping[str, Any] = {}
        self.version = -1
        self.lost = False
        self.moved: list[int] = []
        """Bytes of the tensors of each finished update."""
        self.fresh = True

    def workers(self) -> int:
        return len(self.processes)

    def begin_update(self, transport: Mapping[str, Any]) -> None:
        if transport != self._transport:
            self._ask("open", dict(transport))
            self._transport = dict(transport)
        self._ask("begin")

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None = None) -> None:
        self._ask("read", dict(bucket), digests_of)

    def received_digests(self) -> list[dict[str, str]]:
        return [digests for digests, _ in self._ask("digests")]

    def finish_update(self, version: int) -> list[str]:
        self.version = version
        self.moved.append(self._ask("digests")[0][1])
        return []

    def revive(self) -> bool:
        was, self.fresh = self.fresh, False
        return was

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def _ask(self, *message: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(message)
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._pipes):
            for pipe in wait([pipe for pipe in self._pipes if pipe not in answers]):
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pipe.recv()
                except (EOFError, OSError):
                    self.lost, answers[pipe] = True, None
        if self.lost:
            raise EngineLost("a worker is gone")
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        return [answers[pipe] for pipe in self._pipes]


def _serve(pipe: Connection) -> None:
    reader, digests, moved = None, {}, 0
    while True:
        command, *rest = pipe.recv()
        try:
            if command == "open":
                reader = open_reader(rest[0])
            elif command == "begin":
                digests, moved = {}, 0
            elif command == "read":
                with reader.read(rest[0]) as tensors:
                    moved += sum(tensor.nbytes for tensor in tensors.values())
                    digests |= _digests(tensors, rest[1])
            pipe.send((digests, moved))
        except Exception as error:
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _digests(tensors: Mapping[str, Tensor], names: Sequence[str] | None) -> dict[str, str]:
    return {name: digest(tensor) for name, tensor in tensors.items() if names is None or name in names}
