"""One update of an SGLang server's weights, bucket by bucket."""

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megarl.config.schema import Recipe
from megarl.rollout.engine import EngineError
from megarl.rollout.server import Server
from megarl.rollout.sglang.command import LOADER
from megarl.sync.sglang_message import encode


class Update:
    """Between /begin_weight_update and /end_weight_update: what was sent, and what the workers say of it.

    Attributes:
        digests: by worker, over the bytes that it received.
        left_out: the engine's own names of parameters that nothing was written into; known once it is finished.
    """

    def __init__(self, server: Server, recipe: Recipe, folder: Path, transport: Mapping[str, Any]) -> None:
        """Args: server: whose. recipe: says how. folder: of the run on this machine. transport: a Sender's own."""
        self._server, self._transport = server, dict(transport)
        self._name = secrets.token_hex(8)
        self._workers = recipe.engine.tensor
        # where the workers can write: they may be on another machine, which sees the buckets' folder alone
        shared = Path(recipe.sync.folder or f"{recipe.output_dir}/sync") if transport["transport"] == "disk" else folder
        shared.mkdir(parents=True, exist_ok=True)
        self._answers = [shared.resolve() / f"answer-{self._name}-{rank}.json" for rank in range(self._workers)]
        self.digests: list[dict[str, str]] = [{} for _ in range(self._workers)]
        self.left_out: list[str] = []

    def receive(self, bucket: Mapping[str, Any], digests_of: Sequence[str] | None) -> None:
        """Has every worker load the bucket.

        Raises:
            EngineError: a worker could not.
        """
        # until it is whole, the engine says that it has no version
        for counted, answer in zip(self.digests, self._send(bucket, digests_of, "-1", flush=False), strict=True):
            counted.update(answer["digests"])

    def finish(self, version: int, *, flush: bool) -> None:
        """Sets the version, with `flush` drops what was cached with the old weights, and asks what was left out."""
        answers = self._send(None, None, str(version), flush=flush)
        self.left_out = sorted({name for answer in answers for name in answer["left_out"]})

    def _send(
        self, bucket: Mapping[str, Any] | None, digests_of: Sequence[str] | None, version: str, *, flush: bool
    ) -> list[dict[str, Any]]:
        message = {
            "update": self._name,
            "transport": self._transport,
            "where": None if bucket is None else dict(bucket),
            "digests_of": None if digests_of is None else list(digests_of),
        }
        self._server.order(
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": [encode(message | {"answer": str(path)}) for path in self._answers],
                "load_format": LOADER,
                "flush_cache": flush,
                "weight_version": version,
            },
        )
        answers = [self._answer(path) for path in self._answers]
        for answer in answers:
            if "error" in answer:
                raise EngineError(f"a worker of the engine could not load the weights: {answer['error']}")
        return answers

    def _answer(self, path: Path) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        return answer
