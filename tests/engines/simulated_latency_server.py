"""A server that speaks vLLM's token and weight endpoints and takes a stated time for a token, whatever the CPU does.

    python -m tests.engines.simulated_latency_server --vocab 28 --token-ms 10 --tokens 4 16 --slots 64

Real engines exist here, but on the trainer's own cores: what runs beside training cannot be timed with them. This one
only waits. Its tokens are uniform over the vocabulary, so its log-probs are right; a response depends on its request
alone, not on weights. It takes weights as vLLM does, and counts real digests of what it is given.
"""

import argparse
import hashlib
import json
import math
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from megarl.sync.digest import digest
from megarl.sync.readers import READERS


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
        threading.Thread(target=self._tick, daemon=True).start()

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
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
        log_prob = -math.log(self._vocab)
        content = [{"token_id": token, "logprob": log_prob} for token in response.tokens[:done]]
        choice = {
            "finish_reason": response.finish_reason,
            "token_ids": response.tokens[:done],
            "logprobs": {"content": content},
            "weight_versions": spans,
            "routed_experts": None,
        }
        return {"choices": [choice]}

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

    def receive(self, where: dict[str, Any], digests_of: list[str] | None) -> None:
        assert self.paused
        with READERS["shared_memory"]().read(where) as tensors:
            wanted = tensors if digests_of is None else digests_of
            self._digests |= {name: digest(tensors[name]) for name in wanted}

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


class Handler(BaseHTTPRequestHandler):
    """vLLM's paths."""

    protocol_version = "HTTP/1.1"
    # headers and body in one packet, which else waits for the other's acknowledgement
    wbufsize = -1
    engine: SimulatedLatencyEngine
    settings: dict[str, Any]

    def do_GET(self) -> None:
        model = {**self.settings, "logprobs_mode": "processed_logprobs"}
        known = {
            "/health": None,
            "/is_paused": {"is_paused": self.engine.paused},
            "/server_info": {"vllm_config": {"model_config": model}},
        }
        self._answer(known[urlsplit(self.path).path])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
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
            engine.version = body["weight_version"]
        elif parts.path == "/collective_rpc":
            answer = {"results": engine.rpc(body["method"])}
        else:
            assert parts.path in ("/init_weight_transfer_engine", "/reset_prefix_cache"), parts.path
        self._answer(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _answer(self, body: Any) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(200)
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
    parser.add_argument("--context", type=int, default=128, help="the model's")
    given = parser.parse_args()
    low, high = given.tokens
    Handler.engine = SimulatedLatencyEngine(given.vocab, given.token_ms / 1000, (low, high), given.slots)
    Handler.settings = {"dtype": "torch.float32", "max_model_len": given.context}
    server = Server(("127.0.0.1", given.port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
