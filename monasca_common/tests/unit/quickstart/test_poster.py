# SPDX-License-Identifier: Apache-2.0
import http.server
import threading

from oslotest import base

from monasca_common.quickstart.poster import PostedBulk, Poster


class Api(http.server.BaseHTTPRequestHandler):
    """Answers as the test says, in turn; ``None`` closes the connection without an answer."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Idempotency-Key"], body))
        status = self.server.answers.pop(0)
        if status is not None:
            self.send_response(status)
            self.end_headers()

    def log_message(self, *_):
        """Quiet."""


class PosterTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.server = http.server.HTTPServer(("127.0.0.1", 0), Api)
        self.server.requests, self.server.answers = [], []
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.acknowledged = []

    def post(self, *answers):
        self.server.answers += answers
        port = self.server.server_address[1]
        poster = Poster("127.0.0.1", port, threads=1, acknowledged=self.acknowledged.append)
        bulk = PostedBulk(0, 1, "/v2.0/metrics", [{"name": "a"}], 1)
        poster.post(bulk)
        poster.finish(10)
        return poster, bulk

    def test_what_is_not_known_to_be_delivered_is_posted_again_under_its_key(self):
        _, bulk = self.post(503, None, 429, 204)
        self.assertEqual([bulk], self.acknowledged)
        self.assertEqual(4, bulk.attempts)
        self.assertEqual({("/v2.0/metrics", bulk.key, b'[{"name": "a"}]')}, set(self.server.requests))

    def test_what_is_refused_is_told_and_not_posted_again(self):
        poster, bulk = self.post(422)
        self.assertEqual(1, len(poster.refused))
        self.assertIsNone(bulk.acknowledged_at)
        self.assertEqual(1, bulk.attempts)
