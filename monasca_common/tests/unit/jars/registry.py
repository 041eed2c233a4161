# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a Maven repository, whose next responses for a file can be wrong in a chosen way."""

import hashlib
import socket
import struct
import threading
from collections import defaultdict
from pathlib import Path

import fixtures

from monasca_common.tests.served import http_server, serve

RIGHT, TRUNCATED, RESET, UNAVAILABLE, EMPTY, NOT_FOUND = "right", "truncated", "reset", "503", "empty", "404"


class Registry(fixtures.Fixture):
    """``jar_list``: the file that pins its jars. ``faults``: the next responses by the name of the jar, oldest first.
    ``requests``: (name, Authorization) of each request. ``held``: answers wait for this event."""

    def __init__(self, *names):
        self._names = names

    def _setUp(self):
        self.contents = {f"{name}-1.0.jar": f"content of {name}".encode() * 100 for name in self._names}
        self.faults = defaultdict(list)
        self.requests = []
        self.held, self.asked = threading.Event(), threading.Event()
        self.held.set()
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.jar_list = folder / "a-list.txt"
        self.jar_list.write_text(
            "".join(
                f"{hashlib.sha256(self.contents[f'{name}-1.0.jar']).hexdigest()}  org.example:{name}:1.0\n"
                for name in self._names
            )
        )
        self.environ = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
        server = http_server(self.answer)
        self.url = f"http://127.0.0.1:{server.server_port}/maven2"
        self.environ["MONASCA_COMMON_MAVEN_REPOSITORY"] = self.url
        self.addCleanup(serve(server))
        self.addCleanup(self.held.set)

    @property
    def asked_for(self):
        return [name for name, _ in self.requests]

    def answer(self, handler):
        name = handler.path.rpartition("/")[2]
        self.requests.append((name, handler.headers["Authorization"]))
        self.asked.set()
        self.held.wait()
        content = self.contents[name]
        fault = self.faults[name].pop(0) if self.faults[name] else RIGHT
        if fault in (UNAVAILABLE, NOT_FOUND):
            handler.send_error(int(fault))
            return
        handler.send_response(200)
        handler.send_header("Content-Length", "0" if fault == EMPTY else str(len(content)))
        handler.end_headers()
        if fault == RIGHT:
            handler.wfile.write(content)
        elif fault == TRUNCATED:
            handler.wfile.write(content[:-1])
        elif fault == RESET:
            handler.wfile.write(content[:10])
            handler.wfile.flush()
            # Closing such a socket sends a reset.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
