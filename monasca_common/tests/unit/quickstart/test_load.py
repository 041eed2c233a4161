# SPDX-License-Identifier: Apache-2.0


from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.devbroker.supervisor import Supervisor
from monasca_common.quickstart.load import GeneratedLoad
from monasca_common.quickstart.poster import PostedBulk, Poster
from monasca_common.tests.served import body_of, http_server, serve
from monasca_common.tests.waiting import Waiting

CUT = "cut"


class GeneratedLoadTest(Waiting, base.BaseTestCase):
    def setUp(self):
        super().setUp()
        supervisor = Supervisor()
        self.addCleanup(supervisor.close)
        self.load = GeneratedLoad(supervisor, Path(self.useFixture(fixtures.TempDir()).join("log")))

    def test_the_process_uses_a_core_only_between_start_and_stop(self):
        self.assertEqual(0.0, self.load.percent())
        self.load.start()
        self.wait_until(lambda: self.load.percent() > 0)
        self.load.stop()
        self.wait_until(lambda: self.load.percent() == 0)


class PosterTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.requests, self.answers = [], []
        self.server = http_server(self.answer)
        self.addCleanup(serve(self.server))

    def answer(self, handler):
        """Send the next one of ``answers``; ``None`` closes the connection without a response, `CUT` in its body."""
        self.requests.append((handler.path, handler.headers["Idempotency-Key"], body_of(handler)))
        status = self.answers.pop(0)
        if status is not None:
            handler.send_response(200 if status == CUT else status)
            if status == CUT:
                handler.send_header("Content-Length", "1")
            handler.end_headers()

    def post(self, *answers):
        self.answers += answers
        port = self.server.server_address[1]
        poster = Poster("127.0.0.1", port, threads=1)
        bulk = PostedBulk(0, 1, "/v2.0/metrics", [{"name": "a"}], 1)
        poster.post(bulk)
        poster.finish(10)
        return poster, bulk

    def test_a_bulk_without_a_positive_response_is_posted_again_with_its_key(self):
        _, bulk = self.post(503, None, CUT, 429, 204)
        self.assertIsNotNone(bulk.acknowledged_at)
        self.assertEqual(5, bulk.attempts)
        self.assertEqual({("/v2.0/metrics", bulk.key, b'[{"name": "a"}]')}, set(self.requests))

    def test_a_posted_bulk_does_not_keep_its_content(self):
        self.assertIsNone(self.post(204)[1].content)

    def test_bulks_that_wait_at_the_deadline_are_not_posted(self):
        poster = Poster("127.0.0.1", self.server.server_address[1], threads=0)
        for number in range(3):
            poster.post(PostedBulk(number, number, "/v2.0/metrics", [], 1))
        poster.finish(0.0)
        poster._bulks.put(None)
        self.answers = [204] * 3
        poster._run()
        self.assertEqual([], self.requests)

    def test_a_refused_bulk_is_reported_and_not_posted_again(self):
        poster, bulk = self.post(422)
        self.assertEqual(1, len(poster.refused))
        self.assertIsNone(bulk.acknowledged_at)
        self.assertEqual(1, bulk.attempts)
