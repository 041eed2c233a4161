# SPDX-License-Identifier: Apache-2.0
"""Real servers on this machine that receive notifications, and fail, hang, disconnect or redirect on request."""

import asyncio
import contextlib
import ipaddress
import ssl
import threading

from aiosmtpd.smtp import SMTP

from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
from monasca_common.tests.served import body_of, http_server, respond, serve
from monasca_common.tests.threads import LoopThread

ALLOWED = (ipaddress.ip_network("127.0.0.0/8"),)
_SECONDS = 60


def change(**facts):
    """Return a change of an alarm. ``facts``: the fields that differ from the defaults."""
    usual = {
        "tenant": "t1",
        "alarm_id": "a1",
        "definition_id": "d1",
        "name": "cpu is busy",
        "description": "",
        "severity": "HIGH",
        "actions_enabled": True,
        "old_state": "OK",
        "new_state": "ALARM",
        "reason": "Thresholds were exceeded",
        "time_ms": 1_790_000_000_123,
        "link": None,
        "lifecycle_state": None,
        "metrics": [AlarmedMetric("cpu", {"hostname": "h1"})],
    }
    return AlarmChange(**{**usual, **facts})


class HttpReceiver:
    """A receiver of HTTP requests.

    ``requests``: (path, headers, body) of each request. ``answer(handler)``: sends the response; by default status 200.
    """

    def __init__(self, tls=None, host="127.0.0.1"):
        self.requests = []
        self.host = host
        self.names = []  # host names requested by TLS clients
        self.over = threading.Event()
        self.answer = self.answers(200)
        self._server = http_server(self._received, host)
        self.port = self._server.server_port
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            context.sni_callback = lambda _socket, name, _context: self.names.append(name)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._close = serve(self._server)

    def url(self, path="/hook", host=None, scheme="http"):
        return f"{scheme}://{host or self.host}:{self.port}{path}"

    def close(self):
        self.over.set()
        self._close()

    def answers(self, status, body=b"", **headers):
        def answer(handler):
            respond(handler, status, body, {name.replace("_", "-"): value for name, value in headers.items()})

        return answer

    def hangs(self, handler):
        """Send no response until the end of the test."""
        self.over.wait(_SECONDS)

    def cuts(self, handler):
        """Close the connection in the middle of a line."""
        handler.wfile.write(b"HTTP/1.1 20")

    def hangs_for(self, seconds):
        """Return a response that closes the connection after this time, when the client can be gone."""
        return lambda _handler: self.over.wait(seconds)

    def _received(self, handler):
        self.requests.append((handler.path, dict(handler.headers), body_of(handler)))
        with contextlib.suppress(OSError):  # the client can be gone
            self.answer(handler)


class MailServer:
    """A mail server on its own event loop.

    ``mails``: (receiver, text) of each mail, of which ``encrypted`` were encrypted. ``refuses``: the response to a
    refused command. ``hangs_at``: a command without a response. ``tls``: the file of a certificate, for STARTTLS.
    """

    def __init__(self, tls=None):
        self.mails = []
        self.encrypted = 0
        self.refuses = {}
        self.hangs_at = None
        self.context = None
        if tls is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(tls)
        self._loop = LoopThread()
        self._server = self._loop.run(self._listen(), _SECONDS)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self):
        def serve_client():
            return SMTP(self, hostname="test", tls_context=self.context, loop=self._loop.loop)

        return await self._loop.loop.create_server(serve_client, "127.0.0.1", 0)

    def close(self):
        self._loop.run(self._end(), _SECONDS)
        self._loop.stop()

    async def _end(self):
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _response(self, command):
        if command == self.hangs_at:
            await asyncio.sleep(_SECONDS)
        return self.refuses.get(command, "250 OK")

    # The names of these methods are those that aiosmtpd calls.

    async def handle_MAIL(self, _server, _session, envelope, address, _options):  # noqa: N802
        envelope.mail_from = address
        return await self._response("MAIL")

    async def handle_RCPT(self, _server, _session, envelope, address, _options):  # noqa: N802
        envelope.rcpt_tos.append(address)
        return await self._response("RCPT")

    async def handle_DATA(self, _server, session, envelope):  # noqa: N802
        response = await self._response("DATA")
        if response.startswith("250"):
            self.mails.append((envelope.rcpt_tos[0], envelope.content))
            self.encrypted += session.ssl is not None
        return response

    async def handle_QUIT(self, _server, _session, _envelope):  # noqa: N802
        return await self._response("QUIT")
