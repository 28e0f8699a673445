"""The store by which Horovod's ranks without MPI find each other: what horovodrun runs, on the port that they are told.

It runs without site and imports nothing of gridtf. A key is /scope/rank; a scope is for all ranks, those of a host, or
a process set. A rank puts its addresses, gets those of the others, and deletes its key when it has met them all.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Lock
from typing import ClassVar


class Store(ThreadingTCPServer):
    """The store, of which a process has one."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 1024

    lock = Lock()
    kept: ClassVar[dict[str, dict[str, bytes]]] = defaultdict(dict)  # scope -> rank -> addresses
    met: ClassVar[dict[str, set[str]]] = defaultdict(set)  # scope -> the ranks that have met the others


class Request(BaseHTTPRequestHandler):
    """A request of a rank."""

    timeout = 30
    server: Store

    def _answer(self) -> None:
        scope, _, rank = self.path.rpartition("/")
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            kept, met = self.server.kept[scope], self.server.met[scope]
            value = kept.get(rank) if self.command == "GET" else b""
            if self.command == "PUT":
                kept[rank] = sent
            elif self.command == "DELETE":
                met.add(rank)
                # all ranks have put something before the first has met all; they may meet once more
                if len(met) >= len(kept):
                    kept.clear()
                    met.clear()
        self.send_response(404 if value is None else 200)
        self.send_header("Content-Length", str(len(value or b"")))
        self.end_headers()
        self.wfile.write(value or b"")

    do_GET = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    try:
        server = Store(("", int(sys.argv[1])), Request)
    except OSError as error:
        sys.exit(f"gridtf: cannot listen on port {sys.argv[1]}: {error.strerror}")
    server.serve_forever()
