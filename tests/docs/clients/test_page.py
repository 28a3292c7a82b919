"""docs/clients/cartpole.mjs in a page of a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.clients.programs import FOLDER
from tests.docs.clients.test_clients import TOKEN, Judged
from tests.harness.chromium import NEEDS_CHROMIUM, Chromium

pytestmark = NEEDS_CHROMIUM


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    """Where the files of docs/clients/ are served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(FOLDER))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_same_file_trains_in_a_page_whose_origin_is_named_and_another_page_is_refused(port: int, tmp_path: Path) -> None:
    judged = Judged(f"http://127.0.0.1:{port}")
    with Chromium(tmp_path / "profile") as browser:
        page = browser.page()
        page.open(f"http://localhost:{port}/")
        events = "{onopen: () => found('opened'), onerror: () => found('refused')}"
        opened = f"new Promise(found => Object.assign(new WebSocket('{judged.address}'), {events}))"
        assert page.run(opened) == "refused" and f"http://localhost:{port}" in judged.refused[0]
        page.open(f"http://127.0.0.1:{port}/")
        trained = f"import('/cartpole.mjs').then(client => client.train('{judged.address}', '{TOKEN}', () => 0))"
        assert page.run(f"{trained}.catch(error => error.message)") == "the test is over"
        for _ in range(3):
            judged.first_observation()
    judged.server.close()
