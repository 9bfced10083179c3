"""A server that speaks vLLM's token and weight endpoints and takes a stated time for a token, whatever the CPU does.

    python -m tests.engines.simulated_latency_server --vocab 28 --token-ms 10 --tokens 4 16 --slots 64

Real engines exist here, but on the trainer's own cores: what runs beside training cannot be timed with them. This one
only waits. Its tokens are uniform over the vocabulary, and so are the log-probs that it gives; a response depends on
its request alone, not on weights. It takes weights as vLLM does, and counts real digests of what it is given.

Requests for so few tokens as a sync's probe asks for are answered at once, by a real model with the weights that came.
"""

import argparse
import hashlib
import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from torch import Tensor
from transformers import AutoConfig

from megarl.rollout.embedded import EmbeddedEngine
from megarl.rollout.types import Request, SamplingParams
from megarl.sync.digest import digest
from megarl.sync.readers import READERS

MODEL = Path(__file__).resolve().parents[1] / "data/base"
"""Whose config.json the model has."""
PROBED = 8
"""Tokens of the longest response that the model makes."""


@dataclass
class Response:
    """One response under way: what it will be, and the version that each token was made with."""

    tokens: list[int]
    versions: list[str] = field(default_factory=list)
    finish_reason: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


class SimulatedLatencyEngine:
    """Gives every running response one more token each tick, at most `slots` of them at once."""

    def __init__(self, vocab: int, token_s: float, lengths: tuple[int, int], slots: int) -> None:
        self.version, self.paused = "none", False
        self._vocab, self._token_s, self._lengths, self._slots = vocab, token_s, lengths, slots
        self._lock = threading.Lock()
        self._under_way: list[Response] = []
        self._digests: dict[str, str] = {}
        self._model = Model()
        threading.Thread(target=self._tick, daemon=True).start()

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        if sampling["max_tokens"] <= PROBED:
            return self._model.generate(body)
        response = Response(self._drawn(body["request_id"], sampling["max_tokens"], sampling["stop_token_ids"][0]))
        with self._lock:
            self._under_way.append(response)
        response.ended.wait()
        done = len(response.versions)
        spans: list[dict[str, Any]] = []
        for place, version in enumerate(response.versions):
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": place, "end": place})
            spans[-1]["end"] = place + 1
        log_probs = [-math.log(self._vocab)] * done
        return choice(response.tokens[:done], log_probs, response.finish_reason, spans)

    def pause(self, mode: str) -> None:
        with self._lock:
            self.paused = True
            if mode == "abort":
                for response in self._under_way:
                    response.finish_reason = "abort"
                    response.ended.set()
                self._under_way.clear()

    def resume(self) -> None:
        self.paused = False

    def begin_update(self) -> None:
        assert self.paused
        self._digests = {}
        self._model.begin_update()

    def receive(self, where: dict[str, Any], digests_of: list[str] | None) -> None:
        assert self.paused
        with READERS["shared_memory"]().read(where) as tensors:
            wanted = tensors if digests_of is None else digests_of
            self._digests |= {name: digest(tensors[name]) for name in wanted}
            self._model.receive(tensors)

    def finish_update(self, version: str) -> None:
        self._model.load(version)
        self.version = version

    def rpc(self, method: str) -> list[Any]:
        return [self._digests if method == "megarl_digests" else []]

    def _drawn(self, request_id: str, most: int, stop: int) -> list[int]:
        seed = hashlib.shake_128(request_id.encode()).digest(8 * (most + 1))
        draws = [int.from_bytes(seed[place : place + 8], "little") for place in range(0, len(seed), 8)]
        low, high = self._lengths
        length = low + draws[0] % (high - low + 1)
        others = [token for token in range(self._vocab) if token != stop]
        tokens = [others[draw % len(others)] for draw in draws[1 : min(length, most) + 1]]
        return tokens if length > most else [*tokens[:-1], stop]

    def _tick(self) -> None:
        while True:
            time.sleep(self._token_s)
            with self._lock:
                if self.paused:
                    continue
                for response in self._under_way[: self._slots]:
                    response.versions.append(self.version)
                    if len(response.versions) == len(response.tokens):
                        response.finish_reason = "stop"
                        response.ended.set()
                self._under_way = [response for response in self._under_way if not response.ended.is_set()]


class Model:
    """Answers a probe as an engine does that computes with the weights which it was given."""

    def __init__(self) -> None:
        config = AutoConfig.from_pretrained(MODEL)
        self._engine = EmbeddedEngine(config, seed=0, max_batch_size=1, device=torch.device("cpu"))
        self._received: dict[str, Tensor] = {}
        # of the model, which answers one request at a time
        self._lock = threading.Lock()

    def begin_update(self) -> None:
        self._received = {}

    def receive(self, tensors: dict[str, Tensor]) -> None:
        self._received |= {name: tensor.clone() for name, tensor in tensors.items()}

    def load(self, version: str) -> None:
        with self._lock:
            self._engine.load_weights(self._received.items(), int(version))

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body["sampling_params"]
        request = Request(body["request_id"], 0, tuple(body["token_ids"]), "")
        sampling = SamplingParams(asked["temperature"], asked["max_tokens"], asked["stop_token_ids"][0])
        with self._lock:
            (done,) = self._engine.generate([request], sampling)
        spans = [{"version": str(span.version), "start": span.start, "end": span.end} for span in done.versions]
        return choice(list(done.token_ids), list(done.log_probs), done.finish_reason, spans)


def choice(
    tokens: list[int], log_probs: Sequence[float | None], finish_reason: str, spans: list[dict[str, Any]]
) -> dict[str, Any]:
    """An answer as vLLM writes it."""
    content = [{"token_id": token, "logprob": log_prob} for token, log_prob in zip(tokens, log_probs, strict=True)]
    answer = {
        "finish_reason": finish_reason,
        "token_ids": tokens,
        "logprobs": {"content": content},
        "weight_versions": spans,
        "routed_experts": None,
    }
    return {"choices": [answer]}


class Handler(BaseHTTPRequestHandler):
    """vLLM's paths."""

    protocol_version = "HTTP/1.1"
    # headers and body in one packet, which else waits for the other's acknowledgement
    wbufsize = -1
    engine: SimulatedLatencyEngine
    settings: dict[str, Any]
    secret: str
    release: str

    def do_GET(self) -> None:
        if self._refused():
            return
        model = self.settings
        known = {
            "/health": None,
            "/is_paused": {"is_paused": self.engine.paused},
            "/version": {"version": self.release},
            "/server_info": {"vllm_config": {"model_config": model}},
        }
        self._answer(known[urlsplit(self.path).path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self._refused():
            return
        parts, engine = urlsplit(self.path), self.engine
        answer: Any = {}
        if parts.path == "/inference/v1/generate":
            answer = engine.generate(body)
        elif parts.path == "/pause":
            engine.pause(parse_qs(parts.query)["mode"][0])
        elif parts.path == "/resume":
            engine.resume()
        elif parts.path == "/start_weight_update":
            engine.begin_update()
        elif parts.path == "/update_weights":
            engine.receive(**body["update_info"])
        elif parts.path == "/finish_weight_update":
            engine.finish_update(body["weight_version"])
        elif parts.path == "/collective_rpc":
            answer = {"results": engine.rpc(body["method"])}
        else:
            assert parts.path in ("/init_weight_transfer_engine", "/reset_prefix_cache"), parts.path
        self._answer(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _refused(self) -> bool:
        known = self.headers.get("Authorization") == f"Bearer {self.secret}"
        if self.secret and not known:
            self._answer("a token is needed", status=401)
        return bool(self.secret) and not known

    def _answer(self, body: Any, status: int = 200) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(ThreadingHTTPServer):
    """Takes as many connections as come at once."""

    daemon_threads = True
    request_queue_size = 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0, help="0 for a free one; it is the first line of the output")
    parser.add_argument("--vocab", type=int, required=True, help="tokens")
    parser.add_argument("--token-ms", type=float, required=True, help="milliseconds that a token takes")
    parser.add_argument("--tokens", type=int, nargs=2, required=True, help="shortest and longest response")
    parser.add_argument("--slots", type=int, default=64, help="responses worked on at once")
    parser.add_argument("--secret", default="", help="token without which it answers nothing; none where empty")
    parser.add_argument("--context", type=int, default=128, help="the model's")
    parser.add_argument("--log-probs", default="processed_logprobs", help="of which distribution it says they are")
    parser.add_argument("--release", default="1.0", help="that it says it is of")
    given = parser.parse_args()
    low, high = given.tokens
    Handler.engine = SimulatedLatencyEngine(given.vocab, given.token_ms / 1000, (low, high), given.slots)
    Handler.secret, Handler.release = given.secret, given.release
    Handler.settings = {
        "dtype": "torch.float32",
        "max_model_len": given.context,
        "logprobs_mode": given.log_probs,
    }
    server = Server(("127.0.0.1", given.port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
