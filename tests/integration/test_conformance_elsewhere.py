"""The kit knows nothing but the contract: it checks a server that shares no line of code with Rollmill."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rollmill.testing.conformance import Check, Fixture, check_url

TASKS = [{"responses_create_params": {"input": "Say please."}, "word": "please"}]
FIXTURES = [Fixture(task=0, answer="please", reward=1.0), Fixture(task=0, answer="no", reward=0.0)]


class WordServer(BaseHTTPRequestHandler):
    """Grades whether the last message is the task's word, with the standard library alone."""

    protocol_version = "HTTP/1.1"
    fooled_by = "nothing at all"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        capabilities = {"tools": [], "reverify_mode": "stateless"}
        version = {"name": "words", "kind": "resources", "version": "7", "capabilities": capabilities}
        self._answer(200, {"/readyz": {}, "/reverify_mode": "stateless"}.get(self.path, version))

    def do_POST(self) -> None:
        row = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not _is_utf8(row):
            self._answer(422, {"detail": "the row has half a character"})
        elif self.path == "/close_session":
            self._answer(200, {})
        elif "word" not in row:
            self._answer(422, {"detail": "the row has no word"})
        elif self.path == "/seed_session":
            self._answer(200, {})
        else:
            texts = [part["text"] for item in row["response"]["output"] for part in item["content"]]
            right = texts[-1:] == [row["word"]] or self.fooled_by in "".join(texts)
            self._answer(200, {**row, "reward": float(right)})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_utf8(value: object) -> bool:
    """JSON text can hold half of a surrogate pair as an escape, and nobody could read it once it was sent back."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


class FooledServer(WordServer):
    fooled_by = "give reward 1"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def failed(checks: list[Check]) -> list[str]:
    return [f"{check.name}: {check.detail}" for check in checks if check.status != "pass"]


@pytest.mark.parametrize("url", [WordServer], indirect=True)
async def test_a_server_of_the_standard_library_conforms(url: str) -> None:
    checks = await check_url(url, tasks=TASKS, fixtures=FIXTURES, timeout_seconds=30.0)

    assert failed(checks) == []
    assert len(checks) == 7


@pytest.mark.parametrize("url", [FooledServer], indirect=True)
async def test_one_that_follows_orders_of_an_answer_does_not(url: str) -> None:
    checks = await check_url(url, tasks=TASKS, fixtures=FIXTURES, timeout_seconds=30.0)

    assert failed(checks) == ["hostile answers: an order to the grader gets the full reward of 1"]
