# SPDX-License-Identifier: Apache-2.0
import io
import json
import logging
import os
import re
import shutil
import threading
from unittest import mock

import fixtures
from falcon import testing
from oslo_config import cfg
from oslo_context import context
from oslo_log import formatters, log
from oslotest import base

from monasca_common.api import access
from monasca_common.api.access import Access, Routes, Served
from monasca_common.api.log_fields import MessageCounts, Reason, note_delivered, note_reason, note_tenant
from monasca_common.api.problems import unavailable
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.tests.unit.api.api_case import SECONDS, ApiCase, metric

REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ROUTES = ("/v2.0/metrics", "/v2.0/alarms/{alarm_id}/state-history")


class Written(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())

    @property
    def lines(self):
        return [json.loads(line) for record in self.records for line in record.splitlines()]


def answering(status):
    def app(_environ, start_response):
        start_response(status, [("Content-Type", "text/plain")])
        return [b"x"]

    return app


class AccessCase(base.BaseTestCase):
    """``self.get`` sends a request to an application that calls ``self.serve``, and returns the response and its
    line."""

    def setUp(self):
        super().setUp()
        self.written, self.counted = Written(), []
        self.access = self.new_access()
        self.client = testing.TestClient(self.access)

    def new_access(self):
        def count(served, in_flight):
            self.counted.append((list(served), in_flight))
            return False

        new = Access(self.answer, ROUTES, count, self.written, now=lambda: 1_700_000_000.25)
        new._due = True  # no flush except those of the test
        return new

    def answer(self, environ, start_response):
        self.serve(environ)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"abc", b"de"]

    def serve(self, environ):
        pass

    def get(self, path="/v2.0/metrics", **more):
        before = len(self.written.lines)
        answer = self.client.simulate_get(path, **more)
        self.access.flush()
        return answer, *self.written.lines[before:]


class TestLine(AccessCase):
    def test_a_line_has_the_request_its_client_and_its_outcome(self):
        def serve(environ):
            note_tenant(environ, "t1")
            note_delivered(environ, 3, 1)

        self.serve = serve
        answer, line = self.get(params={"name": "a-secret"}, extras={"REMOTE_ADDR": "10.0.0.7"})

        self.assertGreaterEqual(line.pop("ms"), 0)
        self.assertEqual(
            {
                "time": "2023-11-14T22:13:20.250Z",
                "request_id": answer.headers["x-openstack-request-id"],
                "client": "10.0.0.7",
                "tenant": "t1",
                "method": "GET",
                "route": "/v2.0/metrics",
                "status": 200,
                "bytes": 5,
                "delivered": 3,
                "rejected": 1,
            },
            line,
        )

    def test_a_line_contains_no_value_of_the_path_or_query(self):
        for path in ("/v2.0/alarms/a-secret/state-history?b=a-secret", "/a-secret", "/v2.0/metrics/?a-secret"):
            _, line = self.get(path)
            self.assertNotIn("a-secret", json.dumps(line))
        self.assertEqual(
            ["/v2.0/alarms/{alarm_id}/state-history", "other", "/v2.0/metrics"],
            [line["route"] for line in self.written.lines],
        )

    def test_a_failed_request_has_a_json_response_and_has_a_line(self):
        def serve(environ):
            note_delivered(environ, 3, 0)
            raise RuntimeError("a fault")

        self.serve = serve
        logged = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        answer, line = self.get()
        self.assertEqual((500, 500, "failed"), (answer.status_code, line["status"], line["reason"]))
        self.assertEqual(500, answer.json["error"]["code"])
        self.assertRegex(answer.headers["x-openstack-request-id"], REQUEST_ID)
        self.assertNotIn("delivered", line)
        self.assertIn("a fault", logged.output)

    def test_only_refused_requests_have_a_reason(self):
        self.serve = lambda environ: note_reason(environ, Reason.KAFKA)
        self.assertNotIn("reason", self.get()[1])

    def test_the_rest_of_a_refused_body_is_read_after_the_response_is_sent(self):
        self.serve = lambda _environ: None
        for status, left in (("404 Not Found", b""), ("204 No Content", b"body")):
            stream = io.BytesIO(b"body")
            environ = testing.create_environ(method="POST") | {"wsgi.input": stream, "wsgi.input_terminated": True}
            access = Access(answering(status), [], lambda *_: False)
            self.addCleanup(access.close)
            answer = access(environ, lambda *_: None)
            self.assertEqual(0, stream.tell())
            getattr(answer, "close", lambda: None)()
            self.assertEqual(left, stream.read())

    def test_an_iterable_body_is_measured_and_closed(self):
        class Body:
            closed = False

            def __iter__(self):
                return iter([b"abc"])

            def close(self):
                self.closed = True

        body = Body()

        def answer(_environ, start_response):
            start_response("200 OK", [("Content-Type", "text/plain")])
            return body

        self.answer = answer
        self.access = self.new_access()
        self.client = testing.TestClient(self.access)
        self.assertEqual((3, True), (self.get()[1]["bytes"], body.closed))


class TestRequestId(AccessCase):
    def test_each_request_has_its_own_id(self):
        ids = {self.get()[0].headers["x-openstack-request-id"] for _ in range(3)}
        self.assertEqual(3, len(ids))
        self.assertTrue(all(map(REQUEST_ID.fullmatch, ids)))

    def test_a_valid_id_of_the_client_is_logged_as_global_request_id(self):
        given = access.new_request_id()
        for sent, reported in ((given, given), ("req-x\n", None), ("x" * 5000, None)):
            _, line = self.get(headers={"X-Openstack-Request-Id": sent})
            self.assertEqual(reported, line.get("global_request_id"))

    def test_log_lines_during_a_request_have_its_id_and_tenant(self):
        conf = cfg.ConfigOpts()
        log.register_options(conf)
        conf([], default_config_files=[], default_config_dirs=[])
        logger, handler = logging.getLogger("monasca_common.tests.access"), Written()
        handler.setFormatter(formatters.ContextFormatter(config=conf))
        handler.emit = lambda record: handler.records.append(handler.format(record))
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)

        def serve(environ):
            note_tenant(environ, "t1")
            logger.error("within")

        self.serve = serve
        answer, _ = self.get()
        logger.error("later")
        within, later = handler.records
        self.assertIn(f"{answer.headers['x-openstack-request-id']} - t1", within)
        self.assertNotIn("req-", later)
        self.assertIsNone(context.get_current().request_id)


class TestFlush(AccessCase):
    def test_lines_are_written_in_batches_and_counted_with_requests_in_flight(self):
        for _ in range(3):
            self.client.simulate_get("/v2.0/metrics")
        self.serve = lambda _environ: self.access.flush()
        self.client.simulate_get("/v2.0/metrics")
        self.assertEqual([3], [record.count("\n") + 1 for record in self.written.records])
        served, in_flight = self.counted[-1]
        self.assertEqual((3, 1), (len(served), in_flight))
        self.assertIsInstance(served[0], Served)

    def test_lines_are_flushed_by_a_timer(self):
        done = threading.Event()
        self.written.emit = lambda _record: done.set()
        self.access._due = False
        self.client.simulate_get("/v2.0/metrics")
        self.assertTrue(done.wait(60))

    def test_after_a_timer_that_cannot_start_another_is_started(self):
        done = threading.Event()
        self.written.emit = lambda _record: done.set()
        self.access._due = False
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.assertEqual(200, self.client.simulate_get("/v2.0/metrics").status_code)
        self.assertFalse(self.access._due)
        self.client.simulate_get("/v2.0/metrics")
        self.assertTrue(done.wait(60))

    def test_requests_are_counted_without_an_access_log(self):
        self.written = None
        self.client = testing.TestClient(quiet := self.new_access())
        self.client.simulate_get("/v2.0/metrics")
        quiet.flush()
        self.assertEqual(1, len(self.counted[-1][0]))

    def test_while_a_write_hangs_requests_are_counted_and_excess_lines_are_dropped(self):
        self.addCleanup(setattr, access, "_MAX_PENDING_LINES", access._MAX_PENDING_LINES)
        access._MAX_PENDING_LINES = 2
        entered, opened = threading.Event(), threading.Event()
        self.addCleanup(opened.set)
        emit = self.written.emit

        def hang(record):
            entered.set()
            opened.wait(60)
            emit(record)

        self.written.emit = hang
        self.client.simulate_get("/v2.0/metrics")
        thread = threading.Thread(target=self.access.flush, daemon=True)
        thread.start()
        self.assertTrue(entered.wait(60))
        for _ in range(5):
            self.client.simulate_get("/v2.0/metrics")
        self.access.flush()
        self.assertEqual(6, sum(len(served) for served, _ in self.counted))
        opened.set()
        thread.join(60)
        self.access.flush()
        self.assertEqual(3, sum("request_id" in line for line in self.written.lines))
        self.assertEqual([3], [line["lost_lines"] for line in self.written.lines if "lost_lines" in line])


class TestHandler(base.BaseTestCase):
    def test_a_rotated_file_is_reopened(self):
        path = os.path.join(self.useFixture(fixtures.TempDir()).path, "access.log")
        handler = access.log_handler(path)
        self.addCleanup(handler.close)
        for text in ("first", "second"):
            handler.handle(logging.makeLogRecord({"msg": text}))
            with open(path) as file:
                self.assertEqual(f"{text}\n", file.read())
            os.rename(path, f"{path}.1")

    def test_while_a_rotated_file_cannot_be_reopened_lines_are_lost_and_counted(self):
        logged = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        folder = self.useFixture(fixtures.TempDir()).join("logs")
        os.mkdir(folder)
        handler = access.log_handler(os.path.join(folder, "access.log"))
        served = Access(answering("200 OK"), ROUTES, lambda *_: False, handler)
        self.addCleanup(served.close)
        served._due = True
        client = testing.TestClient(served)
        shutil.rmtree(folder)
        for _ in range(2):
            client.simulate_get("/v2.0/metrics")
            served.flush()
        self.assertIn("1 lines of the access log are lost", logged.output)
        os.mkdir(folder)
        client.simulate_get("/v2.0/metrics")
        served.flush()
        with open(os.path.join(folder, "access.log")) as file:
            line, lost = map(json.loads, file)
        self.assertEqual((200, {"lost_lines": 2}), (line["status"], lost))

    def test_a_file_that_cannot_be_written_is_refused_with_its_path(self):
        message = self.assertRaises(ConfigurationError, access.log_handler, "/no/such/folder/access.log")
        self.assertIn("access_log in group [api] is /no/such/folder/access.log", str(message))

    def test_the_destination_may_be_stderr_or_off(self):
        self.assertIsInstance(access.log_handler("stderr"), logging.StreamHandler)
        self.assertIsNone(access.log_handler("off"))


class TestApplication(ApiCase):
    """Access lines and counts of the whole application."""

    def setUp(self):
        super().setUp()
        self.written = Written()
        self.follow(self.client)

    def follow(self, client):
        self.client = client
        client.app._handler, client.app._due = self.written, True

    def line(self, status, *arguments, **named):
        before = len(self.written.lines)
        answer = self.post(*arguments, **named)
        self.client.app.flush()
        (line,) = self.written.lines[before:]
        self.assertEqual((status, status), (answer.status_code, line["status"]))
        self.assertEqual(answer.headers["x-openstack-request-id"], line["request_id"])
        return line

    def counts(self, line):
        return tuple(line.get(name, 0) for name in MessageCounts._fields)

    def test_delivered_messages_are_logged_and_counted(self):
        line = self.line(204, "/v2.0/metrics", [metric(), metric()])
        self.assertEqual(("t1", (2, 0, 0, 0)), (line["tenant"], self.counts(line)))
        self.assertEqual((1, 0, 0, 0), self.counts(self.line(204, "/v2.0/logs", {"logs": [{"message": "a"}]})))

    def test_rejected_metrics_are_logged_and_counted(self):
        self.follow(self.new_client(invalid_metrics="drop"))
        line = self.line(204, "/v2.0/metrics", [metric(), metric(name="")])
        self.assertEqual((1, 0, 0, 1), self.counts(line))

    def test_a_refused_request_has_a_reason_and_delivers_no_message(self):
        for path, body, status, reason in (
            ("/v2.0/metrics", metric(name=""), 422, "invalid"),
            ("/v2.0/metrics", b"x", 400, "bad_request"),
            ("/v2.0/nothing", {}, 404, "not_found"),
        ):
            line = self.line(status, path, body)
            self.assertEqual((reason, (0, 0, 0, 0)), (line["reason"], self.counts(line)))

    def test_unacknowledged_messages_are_unknown(self):
        self.follow(self.new_client(publish_timeout_seconds=SECONDS))
        self.kafka.broker.disconnect()
        line = self.line(503, "/v2.0/metrics", [metric(), metric()])
        self.assertEqual(("kafka", (0, 0, 2, 0)), (line["reason"], self.counts(line)))

    def test_an_unexpected_error_is_logged_with_its_traceback_and_has_a_json_response(self):
        logged = self.useFixture(fixtures.FakeLogger(level=logging.ERROR))
        self.producer.publish = lambda *_, **__: {}["a fault"]
        line = self.line(500, "/v2.0/metrics", metric())
        self.assertEqual(("failed", (0, 0, 0, 0)), (line["reason"], self.counts(line)))
        self.assertIn("KeyError: 'a fault'", logged.output)

    def test_a_missing_reader_is_not_an_unexpected_error(self):
        answer = self.client.simulate_get("/v2.0/metrics")
        self.assertEqual(501, answer.status_code)
        self.assertRegex(answer.headers["x-openstack-request-id"], REQUEST_ID)

    def test_each_503_has_a_reason(self):
        self.assertEqual(Reason.DATABASE, unavailable("x", retry_after_seconds=1, reason=Reason.DATABASE).reason)


class TestRoutes(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.routes = Routes(["/", "/v2.0/alarms/count", "/v2.0/alarms/{alarm_id}/state-history", "/v2.0/a/"])

    def test_a_path_has_the_template_of_its_route(self):
        for path, template in (
            ("/", "/"),
            ("", "/"),
            ("/v2.0/alarms/count", "/v2.0/alarms/count"),
            ("/v2.0/alarms/count/", "/v2.0/alarms/count"),
            ("/v2.0/alarms/7.x/state-history", "/v2.0/alarms/{alarm_id}/state-history"),
            ("/v2.0/a", "/v2.0/a"),
        ):
            self.assertEqual(template, self.routes.find(path), path)

    def test_a_path_without_a_route_has_the_label_other(self):
        for path in ("/v2", "/v2x0/alarms/count", "/v2.0/alarms/a/b/state-history", "//x"):
            self.assertEqual("other", self.routes.find(path), path)
