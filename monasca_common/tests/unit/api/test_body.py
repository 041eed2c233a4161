# SPDX-License-Identifier: Apache-2.0
import gzip
import io
import json
import zlib

import falcon
from falcon import testing
from gunicorn.http.errors import InvalidChunkSize

from monasca_common.api import body
from monasca_common.api.problems import Problem
from monasca_common.api.settings import ApiSettings
from monasca_common.tests.unit.api.api_case import ApiCase, metric

METRICS = "/v2.0/metrics"
GZIP = {"Content-Encoding": "gzip"}
LIMIT = 4096


class Sparing(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, size=-1):
        piece = super().read(size)
        self.taken += len(piece)
        return piece


class Silent(io.BytesIO):
    def read(self, size=-1):
        raise BlockingIOError(11, "Resource temporarily unavailable")  # raised with SO_RCVTIMEO


class Malformed(io.BytesIO):
    def read(self, size=-1):
        raise InvalidChunkSize(b"-1")


class TestSizes(ApiCase):
    settings = {"max_body_bytes": LIMIT}  # noqa: RUF012

    def chunked(self, stream):
        extras = {"wsgi.input": stream, "wsgi.input_terminated": True}
        headers = {"Content-Type": "application/json"}
        return self.client.simulate_post(METRICS, headers=headers, extras=extras)

    def test_a_body_that_is_declared_too_large_is_not_read(self):
        answer = self.post(METRICS, b" " * (LIMIT + 1))
        self.assertEqual((413, 413), (answer.status_code, answer.json["error"]["code"]))

    def test_a_body_of_exactly_the_limit_is_accepted(self):
        body = json.dumps(metric()).encode()
        self.assertEqual(204, self.post(METRICS, body + b" " * (LIMIT - len(body))).status_code)

    def test_a_body_without_length_is_counted_while_it_is_read(self):
        stream = Sparing(b" " * 100 * LIMIT)
        request = falcon.Request({**testing.create_environ(), "wsgi.input": stream, "wsgi.input_terminated": True})
        refused = self.assertRaises(Problem, body.read_json_body, request, ApiSettings(max_body_bytes=LIMIT))
        self.assertEqual((413, LIMIT + 1), (refused.status_code, stream.taken))

    def test_a_body_without_length_is_read_to_its_end(self):
        self.assertEqual(204, self.chunked(io.BytesIO(json.dumps(metric()).encode())).status_code)

    def test_a_truncated_body_is_refused(self):
        body = json.dumps(metric()).encode()
        extras = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body) + 1)}
        answer = self.client.simulate_post(METRICS, body=b"x", extras=extras)
        self.assertEqual((400, []), (answer.status_code, self.records()))

    def test_a_silent_client_gets_status_408(self):
        self.assertEqual(408, self.chunked(Silent()).status_code)

    def test_a_body_that_the_server_cannot_read_is_refused(self):
        self.assertEqual(400, self.chunked(Malformed()).status_code)

    def test_a_length_that_is_not_a_number_is_refused(self):
        for length in ("+1", "1" * 19):
            answer = self.client.simulate_post(METRICS, body=b"x", extras={"CONTENT_LENGTH": length})
            self.assertEqual(400, answer.status_code)


class TestGzip(ApiCase):
    settings = {"max_body_bytes": 1_000_000}  # noqa: RUF012

    def test_a_compressed_body_is_accepted(self):
        self.assertEqual(204, self.post(METRICS, gzip.compress(json.dumps(metric()).encode()), GZIP).status_code)

    def test_several_members_are_one_body(self):
        text = json.dumps([metric(), metric()]).encode()
        members = gzip.compress(text[:30]) + gzip.compress(text[30:])
        self.assertEqual(204, self.post(METRICS, members, GZIP).status_code)
        self.assertEqual(2, len(self.records()))

    def test_a_bomb_is_refused_by_its_ratio(self):
        answer = self.post(METRICS, gzip.compress(b"[" + b" " * 900_000 + b"]"), GZIP)
        self.assertEqual(413, answer.status_code)
        self.assertIn("times its size", answer.json["error"]["message"])

    def test_a_bomb_is_refused_by_its_size_and_not_decompressed_beyond_it(self):
        self.patch(body, "_MOST_GZIP_RATIO", 1100)
        _, made = self.patch_decompressed()
        self.assertEqual(413, self.post(METRICS, gzip.compress(b" " * 50_000_000), GZIP).status_code)
        self.assertEqual(1_000_001, sum(made))

    def test_too_many_members_are_refused_in_time_linear_to_the_body(self):
        taken, _ = self.patch_decompressed()
        members = gzip.compress(b" ") * 45_000  # 950 KB
        answer = self.post(METRICS, members, GZIP)
        self.assertEqual((413, True), (answer.status_code, "members" in answer.json["error"]["message"]))
        self.assertLessEqual(sum(taken), 20 * len(members))  # zlib copies all bytes after the end of a member

    def test_a_thousand_members_are_one_body(self):
        text = json.dumps([metric(f"m{number}") for number in range(100)]).encode()
        size = len(text) // 900
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        self.assertEqual(204, self.post(METRICS, b"".join(map(gzip.compress, parts)), GZIP).status_code)
        self.assertEqual(100, len(self.records()))

    def test_zeros_after_a_member_are_padding(self):
        body = gzip.compress(b"[") + b"\0" * 100_000 + gzip.compress(json.dumps(metric()).encode() + b"]") + b"\0\0"
        self.assertEqual(204, self.post(METRICS, body, GZIP).status_code)

    def patch_decompressed(self):
        """Record the sizes of input and output of each call."""
        real = zlib.decompressobj
        taken, made = [], []

        class Counting:
            def __init__(self, *arguments):
                self._real = real(*arguments)

            def decompress(self, compressed, *arguments):
                piece = self._real.decompress(compressed, *arguments)
                taken.append(len(compressed))
                made.append(len(piece))
                return piece

            def __getattr__(self, name):
                return getattr(self._real, name)

        self.addCleanup(setattr, zlib, "decompressobj", real)
        zlib.decompressobj = Counting
        return taken, made

    def test_invalid_or_truncated_gzip_is_a_bad_request(self):
        whole = gzip.compress(json.dumps(metric()).encode())
        for text in (b"{}", whole[:-4], whole[:20], whole + b"rest"):
            self.assertEqual(400, self.post(METRICS, text, GZIP).status_code, text)
        self.assertEqual([], self.records())

    def test_an_unknown_encoding_gets_a_response_with_the_supported_one(self):
        answer = self.post(METRICS, b"{}", {"Content-Encoding": "br"})
        self.assertEqual((415, "gzip"), (answer.status_code, answer.headers["Accept-Encoding"]))


class TestTypes(ApiCase):
    def test_json_in_utf8_is_accepted(self):
        for kind in ("application/json", "application/json; charset=UTF-8", "Application/JSON;charset=utf-8"):
            self.assertEqual(204, self.post(METRICS, metric(), {"Content-Type": kind}).status_code, kind)

    def test_other_content_types_are_refused(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "x"):
            self.assertEqual(415, self.post(METRICS, metric(), {"Content-Type": kind}).status_code, kind)
