# SPDX-License-Identifier: Apache-2.0
"""Clients that stay silent or send single bytes, and reconnect when they are disconnected."""

import contextlib
import itertools
import resource
import selectors
import socket
import threading
import time

import fixtures

_HEAD = b"POST /v2.0/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_TOKEN = b"X-Auth-Token: a\r\n"
SILENT = b""
HEADER = _HEAD + _TOKEN + b"X-Long: "
BODY = _HEAD + _TOKEN + b"Content-Length: 100000\r\n\r\n["
CHUNKED = _HEAD + _TOKEN + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n["
WITHOUT_TOKEN = _HEAD + b"Content-Length: 100000\r\n\r\n["
_PAUSE_SECONDS = 1.0
_ADDRESSES = 50


class SlowClients(fixtures.Fixture):
    """``counts``: the number of clients that start with these bytes and then send a byte per second. They have many
    addresses, because a proxy limits the requests of one."""

    def __init__(self, port, counts):
        self._port = port
        self._counts = counts
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._addresses = itertools.cycle(f"127.0.1.{number + 1}" for number in range(_ADDRESSES))
        self.all_connected = threading.Event()
        self.reconnections = 0

    def _setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.addCleanup(self._close)
        thread = threading.Thread(target=self._run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self._over.set)

    def _close(self):
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _run(self):
        for beginning, count in self._counts.items():
            for _ in range(count):
                self._connect(beginning)
        self.all_connected.set()
        due = time.monotonic()
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                self._receive(key)
            if time.monotonic() >= due:
                due = time.monotonic() + _PAUSE_SECONDS
                for key in list(self._selector.get_map().values()):
                    if key.data != SILENT:
                        with contextlib.suppress(OSError):
                            key.fileobj.send(b"a")

    def _connect(self, beginning):
        client = socket.create_connection(("127.0.0.1", self._port), source_address=(next(self._addresses), 0))
        client.sendall(beginning)
        self._selector.register(client, selectors.EVENT_READ, beginning)

    def _receive(self, key):
        with contextlib.suppress(OSError):
            if key.fileobj.recv(65_536):
                return
        self._selector.unregister(key.fileobj)
        key.fileobj.close()
        self.reconnections += 1
        with contextlib.suppress(OSError):
            self._connect(key.data)
