# SPDX-License-Identifier: Apache-2.0


import contextlib
import time

import psutil
from oslotest import base

from monasca_common.quickstart.load import PROCESS_NAME, OwnLoad
from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.tests.served import body_of, http_server, serve

PATIENCE_SECONDS = 60


class OwnLoadTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.load = stack.enter_context(OwnLoad())

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_it_computes_and_rests_as_it_is_told(self):
        self.assertEqual(0.0, self.load.percent())
        self.load.work()
        self.wait_for(lambda: self.load.percent() > 0)
        self.load.rest()
        self.wait_for(lambda: self.load.percent() == 0)

    def test_it_has_a_name_of_its_own_and_ends_with_its_owner(self):
        process = psutil.Process(self.load._process.pid)
        self.assertEqual(PROCESS_NAME, process.name())
        self.load._process.stdin.close()  # as when its owner is killed
        self.assertEqual(0, self.load._process.wait(PATIENCE_SECONDS))


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
