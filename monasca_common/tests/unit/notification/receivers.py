# SPDX-License-Identifier: Apache-2.0
"""Real servers on this machine that receive notifications, and fail, hang, disconnect or redirect on request."""

import contextlib
import ipaddress
import json
import re
import socketserver
import ssl
import threading

from monasca_common.alarms.transitions import AlarmChange, AlarmedMetric
from monasca_common.tests.served import body_of, http_server, respond, serve

ALLOWED = (ipaddress.ip_network("127.0.0.0/8"),)
_SECONDS = 60


def change(**facts):
    """Return a change of an alarm.

    ``facts``: the fields that differ from the defaults.
    """
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
        self.flooded = 0
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

    def drips(self, handler):
        """Send an endless status, one digit after another."""
        handler.wfile.write(b"HTTP/1.1 ")
        while not self.over.wait(0.01):
            handler.wfile.write(b"2")

    def floods_after(self, head):
        """Return a response that sends ``head``, and then counts the ``flooded`` bytes until the client disconnects."""

        def answer(handler):
            handler.wfile.write(head)
            while not self.over.is_set():
                handler.wfile.write(b"x" * 65536)
                self.flooded += 65536

        return answer

    def cuts(self, handler):
        """Close the connection in the middle of a line."""
        handler.wfile.write(b"HTTP/1.1 20")

    def hangs_for(self, seconds):
        """Return a response that closes the connection after this time, when the client can be gone."""
        return lambda _handler: self.over.wait(seconds)

    def answers_after(self, seconds, status):
        def answer(handler):
            self.over.wait(seconds)
            self.answers(status)(handler)

        return answer

    def _received(self, handler):
        self.requests.append((handler.path, dict(handler.headers), body_of(handler)))
        with contextlib.suppress(OSError):  # the client can be gone
            self.answer(handler)


class SmtpReceiver:
    """A mail server with the commands that a sender needs.

    ``mails``: (receiver, text) of each mail. ``refuses``: the response to a refused command. ``hangs_at``: a command
    without a response. ``tls``: the file of a certificate, for STARTTLS.
    """

    def __init__(self, tls=None):
        self.mails = []
        self.encrypted = 0
        self.refuses = {}
        self.hangs_at = None
        self.over = threading.Event()
        self.context = None
        if tls is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(tls)
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        self._close = serve(self._server)

    def close(self):
        self.over.set()
        self._close()

    def _handler(receiver):  # noqa: N805 - the handler has a self of its own
        class Handler(socketserver.StreamRequestHandler):
            def say(self, line):
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self):
                with contextlib.suppress(OSError):
                    self.say("220 test")
                    while line := self.rfile.readline():
                        self.obey(line.decode().strip())

            def obey(self, line):
                command = line.partition(" ")[0].upper()
                if command == receiver.hangs_at:
                    receiver.over.wait(_SECONDS)
                elif command in receiver.refuses:
                    self.say(receiver.refuses[command])
                elif command == "EHLO":
                    self.say("250-test")
                    self.say("250 STARTTLS" if receiver.context else "250 OK")
                elif command == "STARTTLS":
                    self.say("220 go ahead")
                    self.request = receiver.context.wrap_socket(self.request, server_side=True)
                    self.setup()
                    receiver.encrypted += 1
                elif command == "RCPT":
                    self.receiver = line.partition(":")[2]
                    self.say("250 OK")
                elif command == "DATA":
                    self.say("354 go ahead")
                    lines = []
                    while (text := self.rfile.readline()) != b".\r\n":
                        lines.append(text)
                    receiver.mails.append((self.receiver, b"".join(lines)))
                    self.say("250 OK")
                else:
                    self.say("221 bye" if command == "QUIT" else "250 OK")

        return Handler


class JiraReceiver(HttpReceiver):
    """The parts of Jira that a notifier needs.

    ``issues``: {key: fields}, with ``comments``. ``cloud``: whether it behaves like Jira Cloud.
    """

    def __init__(self):
        super().__init__()
        self.issues = {}
        self.cloud = False
        self.answer = self._answer

    def _answer(self, handler):
        path, _, body = self.requests[-1]
        message = json.loads(body)
        searches = {"/rest/api/2/search/jql": True, "/rest/api/2/search": not self.cloud}
        if path in searches and not searches[path]:
            return self.answers(410)(handler)
        if path in searches:
            found = {"issues": [{"key": key} for key, each in self.issues.items() if _matches(each, message["jql"])]}
        elif path == "/rest/api/2/issue":
            found = {"key": f"OPS-{len(self.issues) + 1}"}
            self.issues[found["key"]] = {**message["fields"], "comments": []}
        else:
            found = {"id": "1"}
            self.issues[path.split("/")[-2]]["comments"].append(message["body"])
        return self.answers(200, json.dumps(found).encode())(handler)


def _matches(fields, jql):
    texts = [fields["description"], *fields["comments"]]
    wanted = re.findall('comment ~ "(.*?)"', jql)
    labels = re.findall('labels = "(.*?)"', jql)
    is_labelled = set(labels) <= set(fields["labels"])
    return is_labelled and all(any(each in text for text in texts) for each in wanted)
