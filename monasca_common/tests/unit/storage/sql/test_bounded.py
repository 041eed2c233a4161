# SPDX-License-Identifier: Apache-2.0

from types import SimpleNamespace

from fixtures import MonkeyPatch
from oslotest import base
from psycopg.pq import ConnStatus

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.storage.sql.bounded import BoundedConnection, NoAnswer, connect_arguments


class ConnectArgumentsTest(base.BaseTestCase):
    def test_a_url_with_or_without_the_driver_is_taken_apart(self):
        for scheme in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
            found = connect_arguments(f"{scheme}://user:p%40ss@host:5433/name?sslmode=require")
            expected = {"user": "user", "password": "p@ss", "host": "host", "port": 5433, "dbname": "name"}
            self.assertEqual({**expected, "sslmode": "require"}, found)

    def test_a_socket_and_several_hosts_can_be_named(self):
        self.assertEqual("/run/pg", connect_arguments("postgresql://u@/name?host=/run/pg")["host"])
        found = connect_arguments("postgresql://u@/name?host=a:1&host=b:2")
        self.assertEqual(("a,b", "1,2"), (found["host"], found["port"]))

    def test_what_is_no_url_is_refused_without_quoting_it(self):
        for url in ("sesame", "postgresql://user:sesame@host:port/name"):
            error = self.assertRaises(ConfigurationError, connect_arguments, url)
            self.assertNotIn("sesame", str(error))


class DeadlineTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.now = 100.0
        self.finished = False

    def bounded(self, waits, each_seconds=float("inf")):
        """The generator that the connection hands on to psycopg's own waiting."""
        made = BoundedConnection.__new__(BoundedConnection)
        made.pgconn = SimpleNamespace(finish=self.finish, status=ConnStatus.BAD)
        made.deadline = 110.0
        made.each_seconds = each_seconds
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.useFixture(MonkeyPatch("monasca_common.storage.sql.bounded.time", clock))

        def answering():
            readiness = []
            for _ in range(waits):
                readiness.append((yield "wait"))  # noqa: PERF401
            return readiness

        return made._until_deadline(answering())

    def finish(self):
        self.finished = True

    def test_within_the_deadline_readiness_and_the_result_pass_through(self):
        steps = self.bounded(3)
        next(steps)
        for ready in (0, 2):
            self.assertEqual("wait", steps.send(ready))
        done = self.assertRaises(StopIteration, steps.send, 1)
        self.assertEqual([0, 2, 1], done.value)

    def test_past_the_deadline_the_connection_is_given_up_unless_an_answer_is_there(self):
        steps = self.bounded(3)
        next(steps)
        self.now = 111.0
        steps.send(1)
        self.assertFalse(self.finished)
        self.assertRaises(NoAnswer, steps.send, 0)
        self.assertTrue(self.finished)

    def test_an_answer_may_take_its_own_time_whatever_the_deadline(self):
        steps = self.bounded(3, each_seconds=5.0)
        next(steps)
        steps.send(0)
        self.now = 106.0
        self.assertRaises(NoAnswer, steps.send, 0)
