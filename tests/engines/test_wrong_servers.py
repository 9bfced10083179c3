"""`engine.urls` that name something else than the recipe's servers: one sentence, before the run does anything."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.forked_runs import train
from tests.ports import free_port
from tests.runs import metrics

pytestmark = pytest.mark.parallel

SIZES = ("sft.steps=2", "rl.steps=1", "evaluate.samples_per_prompt=0", "engine.start_timeout_s=5")
MODEL = {"dtype": "float32", "max_model_len": 128, "logprobs_mode": "processed_logprobs"}
OF_VLLM: dict[str, Any] = {
    "/health": None,
    "/version": {"version": "1.0"},
    "/server_info": {"vllm_config": {"model_config": MODEL}},
    "/is_paused": {"is_paused": False},
}
"""What a vLLM answers that was not started for weights to be sent to."""


@contextmanager
def server_of(answers: dict[str, Any], otherwise: tuple[int, str]) -> Iterator[str]:
    """A server that answers these paths, and all else with a status and a text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status, text = (200, json.dumps(answers[path])) if path in answers else otherwise
            body = b"" if text == "null" else text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def refused(folder: Path, url: str, *more: str) -> str:
    """The sentence by which a run is refused that is given this server."""
    finished = train(f"output_dir={folder}", "rollout.engine=vllm", f"engine.urls=[{url}]", *SIZES, *more)
    assert finished.returncode == 2, finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    (line,) = [line for line in finished.stderr.splitlines() if line.startswith("megarl: error: ")]
    assert line.startswith(f'megarl: error: engine.urls=["{url}"] cannot be ')
    assert line.endswith("); start a server with this recipe's settings, as docs/engines.md says.")
    return line


WRONG: dict[str, tuple[dict[str, Any], tuple[int, str], list[str], str]] = {
    "of files": ({}, (404, "not here"), [], "/health answered 404: not here"),
    "of pages": ({}, (200, "<html>"), [], "/health answered what is no JSON: <html>"),
    "of anything": ({}, (200, "{}"), [], "is no vLLM, or not one that can be given weights: it does not tell its"),
    "of a list": ({"/health": None}, (200, "[1]"), [], "is no vLLM, or not one that can be given weights"),
    "of others' vLLM": ({"/health": None}, (404, "Not Found"), [], "config_format=json answered 404: Not Found"),
    "of SGLang's name": ({}, (200, "[]"), ["rollout.engine=sglang"], "is no SGLang, or not one that can be given"),
}


@pytest.mark.parametrize("case", WRONG)
def test_another_kind_of_server_is_refused_at_the_start(case: str, tmp_path: Path) -> None:
    answers, otherwise, more, words = WRONG[case]
    with server_of(answers, otherwise) as url:
        assert words in refused(tmp_path / "run", url, *more)
    assert metrics(tmp_path / "run") == []


def test_no_server_is_refused_at_the_start(tmp_path: Path) -> None:
    told = refused(tmp_path / "run", f"http://127.0.0.1:{free_port()}", "parallel.world_size=2")
    assert "did not come up within engine.start_timeout_s=5" in told
    assert metrics(tmp_path / "run") == []


def test_a_server_that_takes_no_weights_is_refused_and_the_warm_start_is_kept(tmp_path: Path) -> None:
    """By two ranks, with its checkpoint written in the background."""
    more = ("parallel.world_size=2", "checkpoint.background=true")
    with server_of(OF_VLLM, (404, "no such path")) as url:
        assert "/pause?mode=abort answered 404: no such path" in refused(tmp_path / "run", url, *more)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["1-rl-00000000"]
