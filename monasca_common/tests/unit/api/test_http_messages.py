# SPDX-License-Identifier: Apache-2.0
import json
from http.client import HTTPResponse
from io import BytesIO

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from oslotest import base

from monasca_common.api.http_messages import (
    HttpRequest,
    HttpRules,
    MalformedRequest,
    RequestReader,
    Stage,
    answer_of,
    error_answer,
)

LIMIT = 100_000
FUZZED = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
POST = b"POST /v2.0/metrics?tenant_id=a%20b HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class ReaderCase(base.BaseTestCase):
    def reader(self, *pieces, **rules):
        reader = RequestReader({"REMOTE_ADDR": "127.0.0.1"}, HttpRules(**{"max_body_bytes": LIMIT, **rules}))
        for piece in pieces:
            reader.feed(memoryview(piece))
        return reader

    def request(self, *pieces, **rules):
        (request,) = self.reader(*pieces, **rules).ready
        self.assertIsInstance(request, HttpRequest)
        return request

    def body(self, request):
        return request.environ["wsgi.input"].read()


class TestRequests(ReaderCase):
    def test_a_request_becomes_an_environ(self):
        request = self.request(POST + b"Content-Type: text/a\r\nX-B: 1 \r\nX-B: 2\r\nContent-Length: 3\r\n\r\nabc")
        environ = request.environ
        self.assertEqual("abc", self.body(request).decode())
        self.assertEqual(
            ["POST", "/v2.0/metrics", "tenant_id=a%20b", "HTTP/1.1", "text/a", "3", "x", "1,2", "127.0.0.1"],
            [
                environ[name]
                for name in (
                    "REQUEST_METHOD",
                    "PATH_INFO",
                    "QUERY_STRING",
                    "SERVER_PROTOCOL",
                    "CONTENT_TYPE",
                    "CONTENT_LENGTH",
                    "HTTP_HOST",
                    "HTTP_X_B",
                    "REMOTE_ADDR",
                )
            ],
        )
        self.assertEqual((True, True), (request.keep_alive, request.is_read))

    def test_a_path_is_decoded_to_bytes(self):
        self.assertEqual("/a/\xc3\xa9\0", self.request(b"GET /a%2f%C3%A9%00#f HTTP/1.1\r\n\r\n").environ["PATH_INFO"])

    def test_a_whole_url_is_a_path(self):
        for target, path in ((b"http://h:1/x?y", "/x"), (b"http://h", "/"), (b"*", "*")):
            self.assertEqual(path, self.request(b"OPTIONS %b HTTP/1.1\r\n\r\n" % target).environ["PATH_INFO"])

    @FUZZED
    @given(some.lists(some.integers(1, 20)))
    def test_it_does_not_matter_in_which_pieces_it_comes(self, sizes):
        whole = CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n" + POST + b"Content-Length: 1\r\n\r\nf"
        pieces, at = [], 0
        for size in sizes:
            pieces.append(whole[at : at + size])
            at += size
        first, second = self.reader(*pieces, whole[at:]).ready
        self.assertEqual((b"abcde", "5"), (self.body(first), first.environ["CONTENT_LENGTH"]))
        self.assertEqual((b"f", "1"), (self.body(second), second.environ["CONTENT_LENGTH"]))
        self.assertNotIn("HTTP_X_TRAILER", first.environ)

    def test_a_header_that_an_environ_could_take_for_another_is_left_out(self):
        environ = self.request(b"GET / HTTP/1.1\r\nX_Auth_Token: a\r\nSCRIPT_NAME: /x\r\n\r\n").environ
        self.assertNotIn("HTTP_X_AUTH_TOKEN", environ)
        self.assertNotIn("/x", environ.values())

    def test_what_asks_for_another_protocol_is_answered_in_this_one(self):
        asking = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n"
        for body in (b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"):
            first, second = self.reader(asking + body + POST + b"\r\n").ready
            self.assertEqual(b"abc", self.body(first))
            self.assertEqual("", second.environ.get("CONTENT_LENGTH", ""))
        self.assertEqual(b"abc", self.body(self.request(asking + b"Content-Length: 3\r\n\r\n", b"a", b"bc")))
        self.assertEqual(b"", self.body(self.request(asking + b"\r\n")))

    def test_a_proxy_that_is_trusted_says_what_its_client_spoke(self):
        header = b"GET / HTTP/1.1\r\nX-Forwarded-Proto: https\r\n\r\n"
        trusted = self.request(header, is_trusted_proxy=lambda address: address == "127.0.0.1")
        self.assertEqual("https", trusted.environ["wsgi.url_scheme"])
        self.assertNotIn("wsgi.url_scheme", self.request(header).environ)

    def test_http_1_0_closes_unless_it_says_otherwise(self):
        self.assertFalse(self.request(b"GET / HTTP/1.0\r\n\r\n").keep_alive)
        self.assertTrue(self.request(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive)

    def test_nothing_is_read_behind_the_last_request(self):
        reader = self.reader(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        self.assertEqual((1, True), (len(reader.ready), reader.is_ended))

    def test_few_requests_wait_for_the_answer_to_the_one_before(self):
        reader = self.reader(b"GET / HTTP/1.1\r\n\r\n" * 3000)
        self.assertEqual((16, True), (len(reader.ready), reader.is_ended))


class TestBodies(ReaderCase):
    def test_its_client_is_at_the_header_and_then_at_the_body(self):
        reader = self.reader()
        stages = []
        for piece in (b"\r\n", b"P", POST[1:], b"Content-Length: 2\r\n\r\n", b"a", b"b"):
            reader.feed(memoryview(piece))
            stages.append(reader.stage)
        self.assertEqual([Stage.NOTHING, Stage.HEADER, Stage.HEADER, Stage.BODY, Stage.BODY, Stage.NOTHING], stages)

    def test_a_body_that_is_declared_too_large_is_not_waited_for(self):
        request = self.request(POST + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1))
        self.assertEqual((False, b""), (request.is_read, self.body(request)))

    def test_a_body_that_no_answer_depends_on_is_not_waited_for(self):
        asked = []
        reader = self.reader(
            POST + b"X-A: b\r\nContent-Length: 3\r\n\r\na", b"bc", body_wanted=lambda environ: asked.append(environ)
        )
        (request,) = reader.ready
        self.assertEqual((False, True, "b"), (request.is_read, reader.is_ended, asked[0]["HTTP_X_A"]))
        self.assertTrue(self.request(POST + b"\r\n", body_wanted=lambda _environ: False).is_read)

    def test_chunks_beyond_the_limit_are_not_waited_for(self):
        chunk = b"ffff\r\n" + b"a" * 0xFFFF + b"\r\n"
        request = self.request(CHUNKED, chunk, chunk)
        self.assertFalse(request.is_read)
        self.assertGreater(len(self.body(request)), LIMIT)

    def test_very_small_chunks_are_refused(self):
        self.assertEqual(b"a" * 900, self.body(self.request(CHUNKED + b"1\r\na\r\n" * 900 + b"0\r\n\r\n")))
        (refused,) = self.reader(CHUNKED + b"1\r\na\r\n" * 2000).ready
        self.assertEqual(400, refused.status)

    def test_what_is_no_body_is_bounded_as_well(self):
        for endless in (b"X-A: " + b"a" * 9_000, b"a" * 9_000):  # trailers, and an extension of a chunk
            (refused,) = self.reader(CHUNKED, b"0\r\n" if b":" in endless else b"1;", *[endless] * 20).ready
            self.assertEqual(400, refused.status)

    def test_what_is_held_is_counted(self):
        self.assertEqual(1_000, self.reader(POST, b"a" * 1_000).held_bytes - self.reader(POST).held_bytes)
        reader = self.reader(CHUNKED, b"fff\r\n" + b"a" * 0xFFF, b"\r\nfff\r\n" + b"a" * 100)
        self.assertGreater(reader.held_bytes, 0xFFF + 100)
        reader.abandon()
        self.assertEqual(0, reader.held_bytes)

    def test_a_client_that_asks_whether_to_send_its_body_is_told(self):
        asking = b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        reader = self.reader(POST + asking)
        self.assertTrue(reader.waits_for_continue)
        reader.feed(memoryview(b"abc"))
        self.assertEqual((False, 1), (reader.waits_for_continue, len(reader.ready)))
        self.assertFalse(self.reader(POST.replace(b"1.1", b"1.0") + asking).waits_for_continue)
        self.assertFalse(self.reader(POST + asking, body_wanted=lambda _environ: False).waits_for_continue)


class TestMalformed(ReaderCase):
    STATUSES = (
        (b"FROB / HTTP/1.1\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.7\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 501),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\0y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /%b HTTP/1.1\r\n\r\n" % (b"a" * 9_000), 414),
        (b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"a" * 70_000), 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (POST + b"Content-Length: +3\r\n\r\nabc", 400),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Expect: a miracle\r\nContent-Length: 3\r\n\r\nabc", 417),
        (CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED + b"3\r\nabcX0\r\n\r\n", 400),
    )

    # Rule 53
    def test_each_is_refused_and_nothing_is_read_behind_it(self):
        for raw, status in self.STATUSES:
            for pieces in ([raw], [raw[:1], raw[1:]], [raw[at : at + 100] for at in range(0, len(raw), 100)]):
                reader = self.reader(*pieces, b"GET / HTTP/1.1\r\n\r\n")
                (refused,) = reader.ready
                self.assertIsInstance(refused, MalformedRequest, raw[:80])
                self.assertEqual((status, True), (refused.status, reader.is_ended), raw[:80])

    def test_what_came_before_it_is_answered_first(self):
        first, second = self.reader(b"GET / HTTP/1.1\r\n\r\nFROB / HTTP/1.1\r\n\r\n").ready
        self.assertEqual(("/", 400), (first.environ["PATH_INFO"], second.status))

    @FUZZED
    @given(some.lists(some.binary(max_size=50) | some.sampled_from([POST, CHUNKED, b"\r\n\r\n", b"Content-Length: 9"])))
    def test_whatever_comes_is_a_request_or_refused_or_waited_for(self, pieces):
        reader = self.reader(*pieces)
        for each in reader.ready:
            self.assertIsInstance(each, HttpRequest | MalformedRequest)


class TestAnswers(base.BaseTestCase):
    def answer(self, status, headers, pieces, method="GET", *, closes=False):
        def app(_environ, start_response):
            start_response(status, headers)
            return pieces

        request = HttpRequest({"REQUEST_METHOD": method, "PATH_INFO": "/"}, keep_alive=True)
        return answer_of(app, request, closes=closes)

    def parsed(self, answer, method="GET"):
        class Connection:
            def makefile(self, *_arguments):
                return BytesIO(answer.data)

        response = HTTPResponse(Connection(), method=method)
        response.begin()
        return response

    def test_an_answer_is_written_with_its_length(self):
        response = self.parsed(self.answer("200 OK", [("X-A", "é"), ("Content-Length", "9")], [b"ab", b"c"]))
        self.assertEqual(
            (200, "é", "3"), (response.status, response.headers["X-A"], response.headers["Content-Length"])
        )
        self.assertEqual((b"abc", "keep-alive"), (response.read(), response.headers["Connection"]))

    def test_no_body_follows_a_204_or_is_sent_to_head(self):
        nothing = self.answer("204 No Content", [], [b"abc"])
        self.assertTrue(nothing.data.endswith(b"\r\n\r\n"))
        self.assertNotIn(b"Content-Length", nothing.data)
        head = self.answer("200 OK", [("Content-Length", "3")], [b"abc"], "HEAD")
        self.assertTrue(head.data.endswith(b"Content-Length: 3\r\n\r\n"))

    def test_the_last_one_says_so(self):
        answer = self.answer("200 OK", [], [], closes=True)
        self.assertEqual((True, "close"), (answer.closes, self.parsed(answer).headers["Connection"]))

    def test_an_application_that_fails_is_a_500_in_json(self):
        for headers, pieces in (([("X-A", "a\r\nX-B: b")], []), ([], [None]), ([], 5)):
            response = self.parsed(self.answer("200 OK", headers, pieces))
            self.assertEqual((500, 500), (response.status, json.load(response)["error"]["code"]))

    def test_that_one_has_the_requests_id_and_so_has_its_line_of_the_log(self):
        with self.assertLogs("monasca_common.api.problems", "ERROR") as logs:
            answer = self.answer("200 OK", [("X-Openstack-Request-Id", "req-1"), ("X-A", "a\r\n")], [])
        self.assertEqual("req-1", self.parsed(answer).headers["X-Openstack-Request-Id"])
        self.assertIn("GET / failed (req-1)", logs.output[0])

    def test_what_the_application_gives_is_closed(self):
        closed = []

        class Pieces(list):
            def close(self):
                closed.append(True)

        self.answer("200 OK", [], Pieces([b"a"]))
        self.assertEqual([True], closed)

    def test_an_error_without_an_application_has_the_same_shape(self):
        answer = error_answer(431, "send less")
        response = self.parsed(answer)
        self.assertEqual(
            (True, 431, "application/json"), (answer.closes, response.status, response.headers["Content-Type"])
        )
        self.assertEqual(
            {"code": 431, "title": "Request Header Fields Too Large", "message": "send less"},
            json.load(response)["error"],
        )
