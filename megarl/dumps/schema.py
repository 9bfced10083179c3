"""The dump's columns, one row a response, and what its file says of itself.

Lists called `..._ids` hold token ids. Every list of the response has one element a token of `response_ids`, end token
included; log-probs are in nats, of the distribution that was sampled from. docs/dumps.md is the page for readers.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1
"""Of the columns' names, types and meaning; a reader refuses a file of a later one."""

HEADER_KEY = b"megarl.dump"
PIECES_KEY = b"megarl.pieces"

_LOG_PROBS = pa.list_(pa.float32())
_SPAN = pa.struct([("version", pa.int64()), ("start", pa.int32()), ("end", pa.int32()), ("replica", pa.int32())])

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("problem_id", pa.string()),
        ("sample", pa.int32()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("trained", pa.list_(pa.bool_())),
        ("old_log_probs", _LOG_PROBS),
        ("rollout_log_probs", _LOG_PROBS),
        ("reference_log_probs", _LOG_PROBS),
        ("advantages", pa.list_(pa.float32())),
        ("versions", pa.list_(_SPAN)),
        ("finish_reason", pa.string()),
        ("reward", pa.float64()),
        ("task_reward", pa.float64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),
        ("max_new_tokens", pa.int32()),
        ("stop_token_id", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Header:
    """What a dump says of itself, as JSON under `megarl.dump` in the file's metadata.

    Attributes:
        run: the run's name.
        step: RL step, from 1, as in metrics.jsonl.
        recipe_hash: SHA-256 of the recipe, in hex.
        tokenizer: fingerprint of the vocabulary, in hex; None where it is not known.
        engine: what generated, such as 'vllm'.
        precision: dtype of the trainer's weights, such as 'bf16'.
        megarl: version that wrote the file.
        schema_version: see `SCHEMA_VERSION`.
    """

    run: str
    step: int
    recipe_hash: str
    tokenizer: str | None
    engine: str
    precision: str
    megarl: str
    schema_version: int = SCHEMA_VERSION

    @property
    def is_typed(self) -> bool:
        """Whether what was read has the types above."""
        texts = (self.run, self.recipe_hash, "" if self.tokenizer is None else self.tokenizer)
        numbers = (self.step, self.schema_version)
        return all(isinstance(text, str) for text in (*texts, self.engine, self.precision, self.megarl)) and all(
            isinstance(number, int) for number in numbers
        )


def file_metadata(header: Header, pieces: Mapping[int, str]) -> dict[bytes, bytes]:
    """The metadata of a dump: its header, and the text of each token of its responses by id."""
    return {
        HEADER_KEY: json.dumps(asdict(header)).encode("ascii"),
        PIECES_KEY: json.dumps({str(token): text for token, text in pieces.items()}).encode("ascii"),
    }


def parsed_header(raw: bytes) -> Header | None:
    """The header; None where it is not one."""
    held = _object(raw)
    try:
        header = None if held is None else Header(**held)
    except TypeError:
        return None
    return header if header is not None and header.is_typed else None


def parsed_pieces(raw: bytes | None) -> dict[int, str]:
    """Token texts by id; none where the file has none."""
    fields = None if raw is None else _object(raw)
    return {int(token): str(text) for token, text in (fields or {}).items() if token.isdecimal()}


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
