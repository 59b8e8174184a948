"""The mail service of the demo: takes receipts over HTTP, and mails each idempotency key once.

It can be told to fail the first receipt for an address, and to hold the first one for another:
to have taken it, and not to answer.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Receipt = tuple[int, str]  # the order's number and the address: numbers alone can be given twice

LONGEST_HOLD = 60.0


class Receiver:
    """Serves from ``with`` on, in threads. What it saw is in the lists, in order of arrival."""

    def __init__(self, say: Callable[[str], Any]) -> None:
        self.say = say
        self.mailed: list[Receipt] = []
        self.failed: list[Receipt] = []
        self.duplicates: list[Receipt] = []
        self.holds = threading.Event()
        self.let_go = threading.Event()
        self._fail_first: set[str] = set()
        self._hold_first: set[str] = set()
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> "Receiver":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()

    def fail_first(self, email: str) -> None:
        """Answer 503 to the first receipt for ``email``."""
        self._fail_first.add(email)

    def hold_first(self, email: str) -> None:
        """Take the first receipt for ``email``, set ``holds``, and answer after ``let_go``."""
        self._hold_first.add(email)

    def receive(self, key: str, body: dict[str, Any]) -> int:
        """Take a receipt; the HTTP status that answers it."""
        receipt = body["order"], body["email"]
        with self._lock:
            status, words = self._judge(key, receipt)
        self.say(f"  receiver: receipt of order {receipt[0]}: {words}")
        if receipt[1] in self._hold_first:
            self._hold_first.discard(receipt[1])
            self.holds.set()
            self.let_go.wait(LONGEST_HOLD)
        return status

    def _judge(self, key: str, receipt: Receipt) -> tuple[int, str]:
        if receipt[1] in self._fail_first:
            self._fail_first.discard(receipt[1])
            self.failed.append(receipt)
            return 503, "out of order just now, answered 503"
        if key in self._keys:
            self.duplicates.append(receipt)
            return 200, f"seen before (Idempotency-Key {key}), not mailed again"
        self._keys.add(key)
        self.mailed.append(receipt)
        return 200, f"mailed to {receipt[1]}"


def _handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.receive(self.headers["Idempotency-Key"], json.loads(body))
            with suppress(OSError):  # the sender was killed while it waited for the answer
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: ``receive`` says it."""

    return Handler
