# SPDX-License-Identifier: Apache-2.0
"""A relay between a persister and InfluxDB that counts writes, because InfluxDB stores equal points only once."""

import collections
import contextlib
import http.client
import threading

from monasca_common.tests.functional.storage import influxdb_case
from monasca_common.tests.served import body_of, http_server, serve

_SECONDS = 60


class InfluxRelay:
    """``writes``: the lines of each request that InfluxDB has acknowledged, in order."""

    def __init__(self):
        self.writes: list[list[str]] = []
        self._withheld = threading.Event()  # set after an answer was withheld
        self._is_withholding = False
        self._is_refusing = False
        self._server = http_server(self._answer, keep_alive=True)
        self.close = serve(self._server)

    @property
    def port(self):
        return self._server.server_port

    def withhold_answers(self):
        """Withhold all answers to writes from now on."""
        self._is_withholding = True

    def has_withheld(self):
        """Return whether a write was stored whose answer was withheld."""
        return self._withheld.is_set()

    def refuse(self, *, refuse=True):
        """Start or stop answering with status 503."""
        self._is_refusing = refuse

    def answer(self):
        """Stop withholding answers. Withheld answers are never sent."""
        self._is_withholding = False
        self._withheld.clear()

    def lines(self):
        """Return the number of writes of each line."""
        return collections.Counter(line for write in list(self.writes) for line in write)

    def _answer(self, handler):
        answer = self._write(handler.path, handler.headers.get("Content-Type", "text/plain"), body_of(handler))
        with contextlib.suppress(ConnectionError):  # the client was killed
            if answer is None:
                handler.close_connection = True
                handler.rfile.read(1)  # until the waiting client is gone
                return
            status, text = answer
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text)

    def _write(self, path, content_type, body):
        """Return InfluxDB's status and answer, or ``None`` to withhold the answer."""
        is_points = path.startswith("/write")
        if is_points and self._is_refusing:
            return 503, b'{"error":"away for a test"}'
        connection = http.client.HTTPConnection("127.0.0.1", influxdb_case.server().http_port, timeout=_SECONDS)
        connection.request("POST", path, body, {"Content-Type": content_type})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
        connection.close()
        if is_points and status == http.HTTPStatus.NO_CONTENT:
            self.writes.append(body.decode().splitlines())
            if self._is_withholding:
                self._withheld.set()
                return None
        return status, text
