# SPDX-License-Identifier: Apache-2.0
"""Invalid requests to the API, with and without nginx."""

import contextlib
import errno
import json
import random
import socket
import sys
import time

from monasca_common.tests import web
from monasca_common.tests.functional import nginx
from monasca_common.tests.functional.api.api_case import ApiProcessCase, metric
from monasca_common.tests.periodic import periodic
from monasca_common.tests.waiting import PATIENCE_SECONDS

# Not server errors: the responses of RFC 9110 and 9112 for unknown versions, methods and encodings. Reads without a
# database are 501, too.
ALLOWED_5XX = (501, 505)

BODY = json.dumps(metric()).encode()
HEAD = b"POST /v2.0/metrics HTTP/1.1\r\nHost: x\r\nX-Project-Id: t1\r\nContent-Type: application/json\r\n"
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /v2.0 HTTP/1.1\r\nHost: x\r\n\r\n"

REQUEST_LINES = [
    b"",
    b"\r\n",
    b" ",
    b"\0",
    b"\0" * 5000,
    b"\xff\xfe\xfd\r\n\r\n",
    b"A" * 100_000,
    b"GET",
    b"GET\r\n\r\n",
    b"GET /v2.0\r\n",  # HTTP/0.9
    b"GET /v2.0\r\n\r\n",
    b"GET  /v2.0 HTTP/1.1\r\n\r\n",
    b"GET /v2.0  HTTP/1.1\r\n\r\n",
    b"GET /v2.0 HTTP/1.1 \r\n\r\n",
    b"GET\t/v2.0\tHTTP/1.1\r\n\r\n",
    b" GET /v2.0 HTTP/1.1\r\n\r\n",
    b"get /v2.0 HTTP/1.1\r\n\r\n",
    b"GET /v2.0 http/1.1\r\n\r\n",
    b"GET /v2.0 HTTP/1\r\n\r\n",
    b"GET /v2.0 HTTP/1.10\r\n\r\n",
    b"GET /v2.0 HTTP/9.9\r\n\r\n",
    b"GET /v2.0 HTTP/-1.1\r\n\r\n",
    b"GET /v2.0 ICY/1.1\r\n\r\n",
    b"GET /v2.0 HTTP/1.1\r\r\n\r\n",
    b"GET /v2.0 HTTP/1.1\n\n",
    b"FROB /v2.0 HTTP/1.1\r\n\r\n",
    b"M-SEARCH * HTTP/1.1\r\n\r\n",
    b"TRACE /v2.0 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",  # start of HTTP/2
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\x5a" * 500,  # start of TLS
    b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + GET,
    b"*1\r\n$4\r\nPING\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
]
TARGETS = [
    b"http://elsewhere/v2.0",
    b"http://",
    b"http:///",
    b"http://[::1/v2.0",
    b"https://u:p@elsewhere:99999/v2.0?x=y",
    b"file:///etc/passwd",
    b"elsewhere:443",
    b"*",
    b"//elsewhere/v2.0",
    b"/../../etc/passwd",
    b"/%2e%2e/%2e%2e/etc/passwd",
    b"/%00",
    b"/v2.0/alarms/%00/state-history",
    b"/v2.0/metrics%00",
    b"/%",
    b"/%zz",
    b"/%ff%fe",
    b"/%c0%af",
    b"/%0d%0aX-Injected:%201",
    b"/v2.0?%00=%00",
    b"/v2.0/metrics/names?limit=%ff",
    b"/v2.0/metrics/names?" + b"&".join([b"a=b"] * 2000),
    b"/" + b"/" * 5000,
    b"/" + b"a" * 9000,
    b"/v2.0#" + b"a" * 9000,
    b"/\x80\xff",
    b"/\x7f",
]
HEADERS = [
    b": x",
    b"A",
    b"A : b",
    b" A: b",
    b"A: b\r\n c",
    b"A: \0",
    b"A: \xff",
    b"A: b\rc",
    b"\xff: b",
    b"A: " + b"b" * 70_000,
    b"\r\n".join([b"A: b"] * 5000),
    b"\r\n".join([b"A%d: b" % number for number in range(5000)]),
    b"Host: y",
    b"SCRIPT_NAME: /elsewhere",
    b"Script-Name: /elsewhere",
    b"Content-Length: 1",
    b"Content-Length: -1",
    b"Content-Length: +1",
    b"Content-Length: 0x1",
    b"Content-Length: 1, 1",
    b"Content-Length: 1\r\nContent-Length: 2",
    b"Content-Length:",
    b"Content-Length: \xc2\xb2",
    b"Content-Length: " + b"9" * 30,
    b"Content-Length: 18446744073709551615",
    b"Content-Length: 3\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer_Encoding: chunked",
    b"Expect: 100-continue",
    b"Expect: a miracle",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Connection: " + b"close, " * 500,
    b"Accept: \xff",
    b"Content-Encoding: \xff",
    b"Range: bytes=9-1",
    b"X-Project-Id: \xff",
    b"X-Openstack-Request-Id: " + b"x" * 1000,
]
CHUNKS = [
    b"",
    b"-1\r\na\r\n0\r\n\r\n",
    b"+1\r\na\r\n0\r\n\r\n",
    b"0x1\r\na\r\n0\r\n\r\n",
    b" 1\r\na\r\n0\r\n\r\n",
    b"1 \r\na\r\n0\r\n\r\n",
    b"g\r\n\r\n",
    b"\r\n\r\n",
    b"1\na\n0\n\n",
    b"1\r\nabc\r\n0\r\n\r\n",
    b"5\r\na\r\n0\r\n\r\n",
    b"f" * 15 + b"\r\n",
    b"f" * 16 + b"\r\n",
    b"f" * 17 + b"\r\na\r\n",
    b"0" * 70_000 + b"1\r\na\r\n0\r\n\r\n",
    b"1;" + b"x" * 100_000 + b"\r\na\r\n0\r\n\r\n",
    b"1\r\na\r\n" * 3000 + b"0\r\n\r\n",
    b"0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    b"0\r\nContent-Length: 5\r\n\r\nabcde",
    b"0\r\n",
]
PIPELINED = [
    GET * 3000,
    GET + b"\0" * 1000,
    GET + b"FROB / HTTP/1.1\r\n\r\n" + GET,
    GET + POST + CHUNKED + b"-1\r\n" + GET,
    POST + b"junk" + GET,
    CHUNKED + b"0\r\n\r\n" + b"0\r\n\r\n" + GET,
    HEAD + b"Content-Length: 9999999999\r\n\r\n" + GET,
    POST[:-5],
]
EACH = [
    *REQUEST_LINES,
    *[b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % target for target in TARGETS],
    *[b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % target for target in (b"elsewhere:443", b"/", b"*")],
    *[HEAD + header + b"\r\n\r\nabc" for header in HEADERS],
    *[CHUNKED + chunks for chunks in CHUNKS],
    *PIPELINED,
]
MUTATED = 200


class ProxiedCase(ApiProcessCase):
    """An API behind a real nginx with the published configuration."""

    def proxy(self, api, **changes):
        if nginx.PROGRAM is None:
            print(nginx.MISSING, file=sys.stderr)  # noqa: T201 - show that the test did not run
            self.skipTest(nginx.MISSING)
        return self.useFixture(nginx.Nginx(api.port, **changes))

    def ask(self, port, method, path, body=None, headers=None):
        """Return status, body and seconds of a response."""
        began = time.monotonic()
        status, _, text = web.request(port, method, path, body, headers)
        return status, text, time.monotonic() - began


def mutated(chance):
    """Return a valid request with some bytes changed, removed or repeated."""
    raw = bytearray(chance.choice([POST, GET, CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)]))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(raw))
        raw[at : at + chance.randint(0, 3)] = chance.choice(
            [b"", b"\r\n", b"\0", b":", b" ", raw[at : at + 20], bytes([chance.randrange(256)])]
        )
    return bytes(raw)


def answers_in(data):
    """Yield (status, headers, body) of each response except 100. nginx responds to HTTP/0.9 without a header."""
    while data.startswith(b"HTTP/"):
        head, _, data = data.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        length = int(headers.get("content-length", 0))
        body, data = data[:length], data[length:]
        if not line.startswith("HTTP/1.1 100 "):
            yield int(line.split()[1]), headers, body


class TestHostileRequests(ProxiedCase):
    def setUp(self):
        super().setUp()
        self.served = self.api()
        self.port = self.port_before(self.served)

    def port_before(self, api):
        return api.port

    def answers(self, raw):
        """Send only this, and return all responses until the server closes the connection; a hang fails by time-out."""
        received = b""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS) as client,
            contextlib.suppress(ConnectionResetError, BrokenPipeError),
        ):
            client.sendall(raw)
            try:
                client.shutdown(socket.SHUT_WR)
            # ENOTCONN: the server has reset the connection; `recv` returns the data that it sent
            except OSError as error:
                if error.errno != errno.ENOTCONN:
                    raise
            while piece := client.recv(1 << 16):
                received += piece
        return list(answers_in(received))

    def assert_withstood(self, all_raw):
        workers = [worker.pid for worker in self.served.workers()]
        for raw in all_raw:
            for status, headers, body in self.answers(raw):
                self.assertTrue(status < 500 or status in ALLOWED_5XX, (raw[:200], status, body))
                self.assertNotIn("x-injected", headers)
                if status >= 400 and "x-openstack-request-id" in headers:  # a response of the API instead of its server
                    self.assertEqual(status, json.loads(body)["error"]["code"], raw[:200])
        self.assertEqual([200], [status for status, _, _ in self.answers(GET)])
        self.assertEqual([204], [status for status, _, _ in self.answers(POST)])
        self.assertEqual(workers, [worker.pid for worker in self.served.workers()])
        self.assertEqual([], [line for line in self.served.text().splitlines() if " ERROR " in line])

    # Rule 53
    def test_hostile_requests_are_refused_or_disconnected_and_others_are_served(self):
        self.assert_withstood(EACH)

    @periodic("a random variant of the test of fixed requests")
    def test_mutated_requests_are_refused_or_disconnected_and_others_are_served(self):
        chance = random.Random(14)
        self.assert_withstood(mutated(chance) for _ in range(MUTATED))


class TestHostileRequestsToProxy(TestHostileRequests):
    def port_before(self, api):
        return self.proxy(api).port
