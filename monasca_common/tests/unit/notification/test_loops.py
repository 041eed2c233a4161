# SPDX-License-Identifier: Apache-2.0
"""The loops of the notification service: claims of attempts, and passes."""

from concurrent.futures import Executor, Future
from unittest import mock

from oslotest import base
from sqlalchemy import exc

from monasca_common.alarms.silences import Silences
from monasca_common.kafka.transport.memory import VirtualClock
from monasca_common.notification import deferred_sender
from monasca_common.notification.ledger import Ledger, LedgerRetention
from monasca_common.notification.notification import notification_of
from monasca_common.notification.retries import Retry
from monasca_common.notification.stages import StageRules
from monasca_common.notification.worker_loop import WorkerLoop
from monasca_common.runtime.member_health import MemberStatus, members_health
from monasca_common.storage.errors import StorageError, StorageUnavailable
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.test_stages_sqlite import LEASE_MS, MINUTE_MS, SECOND_MS, StagesCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class Hanging(Executor):
    """An executor whose calls do not end."""

    def submit(self, *_):
        return Future()


class DeferredSenderTest(StagesCase, SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.define("d1", "cpu")

    def silenced(self, number):
        """Silence this number of alarms, and let the silence end."""
        self.silence({}, MINUTE_MS)
        for each in range(number):
            self.handle(self.alarm(f"a{each}", hostname=f"h{each}"))
        self.clock.now_ms += MINUTE_MS

    def retry(self):
        """Store a retry that is due."""
        method = self.method()
        retry = Retry(notification_of(self.alarm("a1"), method), method, 2, self.clock.now_ms)
        self.pipeline.deferred.schedule(retry, self.clock.now_ms)
        return retry

    def test_a_sent_attempt_is_recorded_after_an_outage_of_the_database(self):
        self.retry()
        complete, failures = self.pipeline.deferred.complete, iter([True, True])

        def fails_twice(*arguments):
            if next(failures, False):
                raise StorageUnavailable("the database is down")
            complete(*arguments)

        with (
            mock.patch.object(deferred_sender, "_DATABASE_SECONDS", 0.0),
            mock.patch.object(self.pipeline.deferred, "complete", fails_twice),
        ):
            self.releases.send_retries()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def test_an_attempt_that_fails_unexpectedly_is_repeated_after_a_minute(self):
        self.retry()
        with mock.patch.object(self.methods, "get_or_unreadable", side_effect=ValueError("a flaw")):
            self.releases.send_retries()
        self.assertEqual(0, self.releases.send_retries())
        self.clock.now_ms += MINUTE_MS
        self.releases.send_retries()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))

    def refuses(self, target, name):
        """Make the database refuse the values that this method writes."""
        error = StorageError("a read failed: the value is out of range")
        error.__cause__ = exc.DataError("", {}, Exception())
        return mock.patch.object(target, name, side_effect=error)

    def attempts(self, seconds):
        """Return the number of attempts that begin in this time."""
        begun = 0
        for _ in range(0, seconds, 30):
            begun += self.releases.send_retries()
            self.clock.now_ms += 30 * SECOND_MS
        return begun

    def test_an_attempt_that_the_database_refuses_is_given_up_after_the_ttl(self):
        self.retry()
        with self.refuses(self.delivery._ledger, "begin"):
            self.attempts(120)
            self.clock.now_ms += 14_400 * SECOND_MS
            self.attempts(120)
        [row] = self.alarms_database.rows(tables.notification.select())
        self.assertEqual(("given up", [], []), (row.state, self.sent(), self.held()))
        self.assertIn("the value is out of range", row.reason)

    def test_the_log_names_a_refused_row_while_others_are_sent(self):
        retry = self.retry()
        refused = self.refuses(self.delivery._ledger, "begin")
        with refused, self.assertLogs(deferred_sender.LOG, "ERROR") as logs:
            self.releases.send_retries()
        other = Retry(notification_of(self.alarm("a2"), retry.method_id), retry.method_id, 2, self.clock.now_ms)
        self.pipeline.deferred.schedule(other, self.clock.now_ms)
        self.releases.send_retries()
        self.assertEqual(["a2:ALARM"], self.sent())
        for text in (retry.id, "the value is out of range", "notification_deferred"):
            self.assertIn(text, logs.output[0])

    def test_a_refused_row_delays_no_other_row(self):
        self.method()
        self.silenced(2)
        end, failed = self.pipeline.end_suppression, []

        def refuses_the_first(withheld, method):
            failed.append(withheld.row.id)
            if withheld.row.id == failed[0]:
                with self.refuses(self.pipeline, "limit"):
                    self.pipeline.limit("m")
            return end(withheld, method)

        with mock.patch.object(self.pipeline, "end_suppression", refuses_the_first):
            self.releases.release_due()
        self.assertEqual(1, len(self.scheduled()))

    def test_a_group_that_fails_is_postponed_as_a_whole(self):
        self.method()
        self.start(StageRules(group_by=("definition",), group_wait_ms=0))
        for number in range(3):
            self.handle(self.alarm(f"a{number}", hostname=f"h{number}"))
        with self.refuses(self.pipeline.deferred, "members"):
            self.releases.release_due()
        self.assertEqual([], self.pipeline.deferred.due(self.clock.now_ms + MINUTE_MS - 1, 9))
        self.clock.now_ms += MINUTE_MS
        self.releases.release_due()
        self.assertEqual(1, len(self.scheduled()))

    def test_claims_of_attempts_in_progress_are_renewed(self):
        self.retry()
        sender, others = self.release(), self.release()
        sender._executor = others._executor = Hanging()
        self.assertEqual(1, sender.send_retries())
        for _ in range(9):
            self.clock.now_ms += LEASE_MS // 3
            sender.send_retries()
            self.assertEqual(0, others.send_retries())
        self.clock.now_ms += LEASE_MS
        self.assertEqual(1, others.send_retries())

    def test_after_an_outage_of_the_database_claims_expire_only_after_their_owners_could_renew_them(self):
        self.retry()
        owner, other = self.release(), self.release()
        owner._executor = other._executor = Hanging()
        self.assertEqual(1, owner.send_retries())
        self.clock.now_ms += LEASE_MS
        other.failed(StorageUnavailable("the database was down"))
        self.assertEqual(0, other.send_retries())
        self.clock.now_ms += LEASE_MS
        self.assertEqual(1, other.send_retries())


class RetentionTest(StagesCase, SqliteTestCase):
    def test_retention_is_ready_during_its_first_pass(self):
        ledger = Ledger(self.alarms_database)
        retention = LedgerRetention(ledger, Silences(self.alarms_database), self.clock, 0, MemberStatus("retention"))
        during = []

        def prune(_before_ms):
            during.append(retention.health.ready())
            retention.stop()
            return 0

        with mock.patch.object(ledger, "prune", prune):
            retention.run()
        self.assertEqual([(True, {"ready": True, "reasons": []})], during)


class IdleLoop(WorkerLoop):
    def serve(self):
        raise NotImplementedError


class WorkerLoopTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.clock = VirtualClock()
        self.loops = [IdleLoop(name, self.clock, MemberStatus(name, pid=7, restarts=2)) for name in ("one", "two")]
        self.probes = members_health("s", lambda: [loop.status() for loop in self.loops], clock=self.clock)

    def test_one_hanging_or_failing_loop_makes_the_service_unhealthy(self):
        self.assertFalse(self.probes.ready()[0])
        for loop in self.loops:
            loop.health.turned("")
        probes = (self.probes.health, self.probes.live, self.probes.ready)
        self.assertEqual([True] * 3, [probe()[0] for probe in probes])

        self.loops[1].failed(StorageUnavailable("the database is unavailable"))
        self.clock.advance(601.0)
        self.loops[0].health.turned()

        ready, body = self.probes.ready()
        self.assertEqual((False, ["two: failed: the database is unavailable"]), (ready, body["reasons"]))
        shown = self.probes.health()[1]["members"]["two"]
        self.assertEqual(("failed", "the database is unavailable"), (shown["state"], shown["reason"]))
        live, body = self.probes.live()
        self.assertEqual((False, {"one": 0.0, "two": 601.0}), (live, body["seconds_since_turn"]))

    def test_restarts_continue_those_of_the_replaced_loop(self):
        self.loops[0].restarts += 1
        self.assertEqual([3, 2], [loop.status().restarts for loop in self.loops])
