"""What a client makes of a server's answers, and of none."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from megarl.config.errors import TokenError
from megarl.rollout.engine import EngineError
from megarl.rollout.http_client import Client, release_in
from megarl.rollout.replica import ServerUnreachableError
from tests.ports import free_port

SECRET = "a-secret"


class Handler(BaseHTTPRequestHandler):
    """Answers with the status that the path names, to whoever knows the token."""

    body = b'{"answer": 1}'

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Bearer {SECRET}"
        body = self.body
        self.send_response(int(self.path[1:]) if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def client(url: str, token: str) -> Client:
    return Client(url, token, connections=1, timeout_s=10, health_timeout_s=10)


def test_an_answer_may_be_waited_for_longer_than_a_sign_of_health(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after ten times the one and a tenth of the other."""
    answer = Handler.do_GET

    def late(handler: Handler) -> None:
        time.sleep(1.0)
        answer(handler)

    monkeypatch.setattr(Handler, "do_GET", late)
    asked = Client(url, SECRET, connections=1, timeout_s=10, health_timeout_s=0.1)
    with pytest.raises(ServerUnreachableError, match="ReadTimeout"):
        asked.get("/200")
    assert asked.get("/200", timeout_s=10) == {"answer": 1}


def test_it_gets_in_with_the_token_alone(url: str) -> None:
    assert client(url, SECRET).get("/200") == {"answer": 1}
    for token in ("", "guessed"):
        with pytest.raises(TokenError, match=r"^engine\.urls=http://127.* answered 401, .* set the environment"):
            client(url, token).get("/200")


def test_waiting_for_a_server_ends_where_it_wants_another_token(url: str) -> None:
    with pytest.raises(TokenError):
        client(url, "guessed").up()
    assert not client(f"http://127.0.0.1:{free_port()}", SECRET).up()


def test_what_is_raised_shows_no_token(url: str) -> None:
    asked = client(url, SECRET)
    with pytest.raises(EngineError, match=r"/500 answered 500: .*answer") as refused:
        asked.get("/500")
    asked.close()
    with pytest.raises(ServerUnreachableError) as dropped:
        asked.get("/200")
    assert SECRET not in f"{refused.value!r}{dropped.value!r}"


@pytest.mark.parametrize("body", [b"<html>", b"[" * 100_000, b"\xff\xfe\xfd"])
def test_what_is_no_json_is_told_with_where_it_came_from(
    url: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "body", body)
    with pytest.raises(EngineError, match=r"^http://127.*/200 answered what is no JSON: "):
        client(url, SECRET).get("/200")


@pytest.mark.parametrize("answer", [None, [], "0.9", {}, {"version": 9}, {"version": ""}, {"version": "\x1b[31m"}])
def test_a_server_that_tells_no_release_is_refused_by_its_address(answer: object) -> None:
    with pytest.raises(EngineError, match=r"^http://h/version tells no release of its software: "):
        release_in(answer, "http://h/version")


def test_a_release_is_short() -> None:
    assert release_in({"version": "0.11.2rc1.dev3+g123"}, "") == "0.11.2rc1.dev3+g123"
    assert len(release_in({"version": "9" * 100_000}, "")) < 1000
