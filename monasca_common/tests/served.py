# SPDX-License-Identifier: Apache-2.0
"""Run servers on a thread of the test process."""

import http.server
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

_SECONDS = 60


def serve(server: Any) -> Callable[[], None]:
    """Serve on a thread, and return a function that stops the server."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join(_SECONDS)

    return close


def http_server(
    answer: Callable[[BaseHTTPRequestHandler], object], host: str = "127.0.0.1", *, keep_alive: bool = False
) -> http.server.ThreadingHTTPServer:
    """Return an HTTP server on a free port, which calls ``answer(handler)`` for each GET and each POST."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        def do_POST(self):
            answer(self)

        do_GET = do_POST  # noqa: N815 - the name is the library's

        def log_message(self, *_):
            """Log nothing."""

    return http.server.ThreadingHTTPServer((host, 0), Handler)


def respond(
    handler: BaseHTTPRequestHandler, status: int = 200, body: bytes = b"", headers: Mapping[str, str] | tuple[()] = ()
) -> None:
    """Send a complete response."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **dict(headers)}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
