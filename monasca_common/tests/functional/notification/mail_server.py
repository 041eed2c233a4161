# SPDX-License-Identifier: Apache-2.0
"""A real SMTP server on this machine that temporarily refuses some mails."""

import asyncio
import email
import itertools
import threading

from aiosmtpd.smtp import SMTP

_SECONDS = 60


class MailServer:
    """``taken``: the id of each accepted mail, in order. Of every ``refuses_each`` mails, one is refused."""

    def __init__(self, refuses_each=3):
        self.taken = []
        self._refuses_each = refuses_each
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_SECONDS)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self):
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()

    async def handle_DATA(self, _server, _session, envelope):  # noqa: N802 - what aiosmtpd calls
        if next(self._numbers) % self._refuses_each == 0:
            return "451 4.3.0 later"
        self.taken.append(email.message_from_bytes(envelope.content)["Message-ID"].strip("<>").partition("@")[0])
        return "250 OK"

    def _listen(self):
        return self._loop.create_server(lambda: SMTP(self, loop=self._loop), "127.0.0.1", 0)
