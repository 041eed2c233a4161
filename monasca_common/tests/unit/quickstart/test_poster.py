# SPDX-License-Identifier: Apache-2.0
from oslotest import base

from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.tests.served import body_of, http_server, serve


class PosterTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.requests, self.answers = [], []
        self.server = http_server(self.answer)
        self.addCleanup(serve(self.server))
        self.acknowledged = []

    def answer(self, handler):
        """The next one of ``answers``; ``None`` closes the connection without an answer."""
        self.requests.append((handler.path, handler.headers["Idempotency-Key"], body_of(handler)))
        status = self.answers.pop(0)
        if status is not None:
            handler.send_response(status)
            handler.end_headers()

    def post(self, *answers):
        self.answers += answers
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
        self.assertEqual({("/v2.0/metrics", bulk.key, b'[{"name": "a"}]')}, set(self.requests))

    def test_what_is_refused_is_told_and_not_posted_again(self):
        poster, bulk = self.post(422)
        self.assertEqual(1, len(poster.refused))
        self.assertIsNone(bulk.acknowledged_at)
        self.assertEqual(1, bulk.attempts)
