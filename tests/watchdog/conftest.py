"""A place for trainings and their watches, and a webhook."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from watching import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A folder in which nothing is left running."""
    made = Place(tmp_path)
    yield made
    made.end()


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[bytes]]]:
    """A URL and the bodies that were posted to it."""
    bodies: list[bytes] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Takes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/x", bodies
    server.shutdown()
    thread.join()
    server.server_close()
