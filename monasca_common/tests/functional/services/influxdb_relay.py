# SPDX-License-Identifier: Apache-2.0
"""Stands between a persister and InfluxDB, which keeps one point of two that are equal: counts what was written."""

import collections
import contextlib
import http.client
import http.server
import threading

from monasca_common.tests.functional.storage import influxdb_case

_SECONDS = 60


class InfluxRelay:
    """``writes``: the lines of each request that InfluxDB has acknowledged, in order."""

    def __init__(self):
        self.writes: list[list[str]] = []
        self._withheld = threading.Event()  # an answer is
        self._is_withholding = False
        self._is_refusing = False
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self):
        return self._server.server_port

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SECONDS)

    def withhold_answers(self):
        """From now on nobody hears that what it wrote is stored."""
        self._is_withholding = True

    def has_withheld(self):
        """Whether something was stored of which nobody has heard."""
        return self._withheld.is_set()

    def refuse(self, *, refuse=True):
        """Answer with 503, or no longer."""
        self._is_refusing = refuse

    def answer(self):
        """No longer withhold anything; what was, stays without an answer."""
        self._is_withholding = False
        self._withheld.clear()

    def lines(self):
        """How often each line was written."""
        return collections.Counter(line for write in list(self.writes) for line in write)

    def _write(self, method, path, headers, body):
        """InfluxDB's status and answer; None if there is to be no answer."""
        is_points = path.startswith("/write")
        if is_points and self._is_refusing:
            return 503, b'{"error":"away for a test"}'
        connection = http.client.HTTPConnection("127.0.0.1", influxdb_case.server().http_port, timeout=_SECONDS)
        connection.request(method, path, body, {"Content-Type": headers.get("Content-Type", "text/plain")})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
        connection.close()
        if is_points and status == http.HTTPStatus.NO_CONTENT:
            self.writes.append(body.decode().splitlines())
            if self._is_withholding:
                self._withheld.set()
                return None
        return status, text

    def _handler(relay):  # noqa: N805 - the handler has a self of its own
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = relay._write("POST", self.path, self.headers, body)
                if answer is None:
                    with contextlib.suppress(ConnectionError):
                        self.rfile.read(1)  # until whoever waits for it is gone
                    self.close_connection = True
                    return
                status, text = answer
                with contextlib.suppress(ConnectionError):  # whoever asked is killed
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)

            def log_message(self, *_):
                pass

        return Handler
