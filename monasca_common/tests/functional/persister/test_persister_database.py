# SPDX-License-Identifier: Apache-2.0
"""A killed, locked and frozen database while messages arrive: no loss, no duplicates, no busy loop."""

import time

from monasca_common.tests.functional.persister.persister_case import PARTITIONS, PersisterCase
from monasca_common.tests.periodic import periodic

_WAITING = "waiting for the database"
_AWAY_SECONDS = 3
_BACK_SECONDS = 60  # a few seconds are documented, but the machine may be busy
_SPINNING = 0.5  # share of a core; a waiting process takes a tenth of it


class TestPostgresqlUnavailable(PersisterCase):
    database = "postgresql"
    own_server = True

    def setUp(self):
        super().setUp()
        self.drop_key()
        self.publish(range(100))
        self.persister = self.start()
        self.wait_for_all()
        (self.worker,) = self.workers(self.persister)

    def through_an_outage(self, begin, end, *, seconds=_AWAY_SECONDS):
        """Send messages before, during and after an outage, and check the conditions that hold for all outages."""
        self.publish(range(100, 300))
        begin()
        self.publish(range(300, 500))
        self.wait_until(lambda: self.persister.worker().get("state") == _WAITING, what="the wait")
        log_before, cpu_before = self.persister.log.stat().st_size, sum(self.worker.cpu_times()[:2])
        began = time.monotonic()
        time.sleep(seconds)
        cpu_after, waited = sum(self.worker.cpu_times()[:2]), time.monotonic() - began
        self.assertLess(cpu_after - cpu_before, _SPINNING * waited, "it waits busily")
        self.assertLess(self.persister.log.stat().st_size - log_before, 3000 * waited, "it logs too much")
        self.wait_until(lambda: self.persister.worker()["partitions"] == PARTITIONS, what="its partitions, kept")
        end()
        began = time.monotonic()
        self.publish(range(500, 600))
        self.wait_for_all()
        self.assertLess(time.monotonic() - began, _BACK_SECONDS)
        self.wait_until(lambda: self.persister.worker().get("state") == "running", "running again")
        self.assertGreater(self.persister.counter("database_unavailable_seconds_total"), seconds * 0.8)
        self.assertEqual(0, self.persister.counter("dead_letters_total"))
        self.assertEqual(0, self.persister.worker()["restarts"])
        self.assert_ends_in_order(self.persister)
        verdict = self.verdict()
        verdict.raise_unless_clean()
        self.assertEqual(0, verdict.dead)

    def test_a_killed_server_causes_neither_loss_nor_duplicates(self):
        self.through_an_outage(self.server.kill, self.server.restart)

    @periodic("long outage; the normal run contains test_a_killed_server_causes_neither_loss_nor_duplicates")
    def test_a_frozen_server_causes_neither_loss_nor_duplicates(self):
        self.through_an_outage(self.server.freeze, self.server.thaw)

    @periodic("long outage; the normal run contains test_a_killed_server_causes_neither_loss_nor_duplicates")
    def test_locked_tables_cause_neither_loss_nor_duplicates(self):
        locker = self.engine.connect()
        self.addCleanup(locker.close)
        self.through_an_outage(
            lambda: locker.exec_driver_sql("LOCK TABLE measurements IN ACCESS EXCLUSIVE MODE"), locker.rollback
        )

    @periodic("long outage; the normal run contains test_a_killed_server_causes_neither_loss_nor_duplicates")
    def test_a_stop_while_the_database_is_unavailable_is_in_time_and_in_order(self):
        self.server.freeze()
        self.publish(range(100, 200))
        self.wait_until(lambda: self.persister.worker().get("state") == _WAITING, what="the wait")
        self.assert_ends_in_order(self.persister)
        self.server.thaw()
        again = self.start(name="again")
        self.wait_for_all()
        self.assert_ends_in_order(again)
        self.assert_clean()

    @periodic("long outage; the normal run contains test_a_killed_server_causes_neither_loss_nor_duplicates")
    def test_a_start_waits_for_an_unavailable_database(self):
        self.assert_ends_in_order(self.persister)
        self.server.kill()
        self.publish(range(100, 200))
        again = self.start(name="again")
        self.wait_until(lambda: again.worker().get("state") == _WAITING, what="the wait")
        self.server.restart()
        self.wait_for_all()
        self.assert_ends_in_order(again)
        self.assert_clean()


@periodic("repeats a PostgreSQL test on SQLite")
class TestSqliteUnavailable(PersisterCase):
    def test_a_locked_file_causes_neither_loss_nor_duplicates(self):
        self.drop_key()
        persister = self.start()
        self.wait_until(lambda: persister.worker().get("partitions") == PARTITIONS, what="the assignment")
        with self.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            self.publish(range(100))
            self.wait_until(lambda: persister.worker()["state"] == _WAITING, what="the wait")
            connection.exec_driver_sql("ROLLBACK")
        self.wait_for_all()
        self.wait_until(lambda: persister.worker()["state"] == "running", "running again")
        self.assert_ends_in_order(persister)
        self.assert_clean()


@periodic("long outage; the normal run contains test_a_killed_server_causes_neither_loss_nor_duplicates")
class TestKafkaUnavailable(PersisterCase):
    def test_brokers_that_do_not_respond_are_reported_until_they_return(self):
        persister = self.start()
        self.wait_until(lambda: persister.worker().get("partitions") == PARTITIONS, what="the assignment")
        for node in self.cluster.nodes:
            node.freeze()
        self.wait_until(lambda: persister.worker().get("state") == "waiting for Kafka", "the wait")
        for node in self.cluster.nodes:
            node.thaw()
        self.publish(range(100))
        self.wait_for_all()
        self.wait_until(lambda: persister.worker()["state"] == "running", "running again")
        self.assert_ends_in_order(persister)
        self.assert_clean()
