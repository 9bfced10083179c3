"""What runs inside an SGLang worker: a loader of SGLang's own kind that reads megarl's buckets.

SGLang imports it by name, from --custom-weight-loader. Its update endpoint answers with a word alone, so what the
worker counted goes back in a file.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from megarl.sync.digest import digest
from megarl.sync.readers import open_reader
from megarl.sync.sglang_message import decode
from megarl.sync.transport import Reader
from megarl.sync.written import Written


@dataclass
class _Update:
    """What one update brought so far."""

    name: str
    written: Written = field(default_factory=Written)


_updates: dict[int, _Update] = {}
"""The newest update of each model of this process."""
_readers: dict[str, Reader] = {}
"""Of the transport that the newest update came by, by its description."""


def load_bucket(model: Any, tensors: list[tuple[str, Tensor]]) -> None:
    """Loads the bucket that the message in `tensors` tells of, and writes what it counted to the file named there.

    A failure goes into the file too: raised here, it would take the server down with it.

    Args:
        model: SGLang's own, a torch module with load_weights.
        tensors: what `sglang_message.encode` made.
    """
    message = decode(tensors)
    try:
        answer = _load(model, message)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    beside = f"{message['answer']}.new"
    with open(beside, "w") as file:
        json.dump(answer, file)
    os.rename(beside, message["answer"])


def _load(model: Any, message: dict[str, Any]) -> dict[str, Any]:
    update = _updates.get(id(model))
    if update is None or update.name != message["update"]:
        update = _updates[id(model)] = _Update(message["update"])
    if message["where"] is None:
        return {"left_out": update.written.left_out(model)}
    wanted = message["digests_of"]
    with _reader(message["transport"]).read(message["where"]) as bucket:
        digests = {name: digest(tensor) for name, tensor in bucket.items() if wanted is None or name in wanted}
        with update.written:
            model.load_weights(bucket.items())
    return {"digests": digests}


def _reader(transport: dict[str, Any]) -> Reader:
    described = json.dumps(transport, sort_keys=True)
    if described not in _readers:
        _readers.clear()
        _readers[described] = open_reader(transport)
    return _readers[described]
