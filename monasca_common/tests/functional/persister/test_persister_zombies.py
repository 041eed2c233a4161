# SPDX-License-Identifier: Apache-2.0
"""Several writers of the same partitions, of which the stored offset permits one."""

import signal
import time
from collections import Counter

import psutil

from monasca_common.kafka import plugins
from monasca_common.kafka.message import Record
from monasca_common.kafka.settings import ProducerSettings
from monasca_common.tests.checker import ReportedOutcome
from monasca_common.tests.functional.persister.persister_case import PARTITIONS, QUICK_SESSION_SECONDS, PersisterCase
from monasca_common.tests.periodic import periodic

MESSAGES = 1000
_TRANSACTION = 40
_FROZEN_SECONDS = QUICK_SESSION_SECONDS + 1


class ZombieCase(PersisterCase):
    database = "postgresql"
    session_seconds = QUICK_SESSION_SECONDS

    def publish_all(self):
        """Abort every third transaction; each leaves a control record in the log."""
        settings = ProducerSettings(self.connection, linger_ms=0, transactional_id=self.group)
        with plugins.kafka_producer(settings) as producer:
            for first in range(0, MESSAGES, _TRANSACTION):
                numbers = range(first, first + _TRANSACTION)
                aborted = first // _TRANSACTION % 3 == 2
                try:
                    with producer.transaction() as transaction:
                        for number in numbers:
                            transaction.send(self.topic, Record(self.metric(number), partition=number % PARTITIONS))
                        if aborted:
                            raise _Aborted
                except _Aborted:
                    pass
                self.outcomes |= dict.fromkeys(numbers, ReportedOutcome.FAILED if aborted else ReportedOutcome.ACKED)

    def three_owners(self, *mutants):
        """Return the verdict, and the number of skipped rows, after one of three owners was frozen."""
        self.drop_key()
        slow = "storage.before_write=sleep:0.02"
        services = [self.start(name=f"owner-{n}", owns=True, mutants=mutants, fail_points=slow) for n in range(3)]
        self.wait_until(lambda: all(each.worker().get("partitions") for each in services), what="the start")
        self.publish_all()
        (frozen,) = self.workers(services[0])
        frozen.suspend()
        time.sleep(_FROZEN_SECONDS)
        frozen.resume()
        self.wait_until(lambda: all(self.is_through(each) for each in services), what="the end of the log")
        skipped = sum(each.counter("rows_total", outcome="skipped") for each in services)
        for each in services:
            self.assert_ends_in_order(each)
        return self.verdict(), skipped


class _Aborted(Exception):
    pass


class TestZombies(ZombieCase):
    def is_through(self, persister):
        worker = persister.worker()
        # The last record of each partition is a control record, which consumers do not receive.
        return worker.get("partitions") == PARTITIONS and worker["lag"] <= PARTITIONS

    # Rule 23
    def test_three_members_with_all_partitions_store_each_row_once(self):
        verdict, skipped = self.three_owners()
        verdict.raise_unless_clean()
        self.assertGreater(skipped, 0, "they never met")

    # Rule 23
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_without_the_fence_stores_rows_twice(self):
        verdict, _ = self.three_owners("no_fence")
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))

    # Rule 23
    @periodic("waits for a session to expire")
    def test_a_member_frozen_past_its_session_is_fenced(self):
        self.drop_key()
        persister = self.start(fail_points="storage.before_write=sleep:0.2", metrics="num_processors = 2")
        members = ("metrics-0", "metrics-1")
        self.wait_until(
            lambda: all(persister.worker(name).get("partitions") == 1 for name in members), what="one partition each"
        )
        frozen = psutil.Process(persister.worker("metrics-0")["pid"])
        self.freeze_at_work(frozen)
        self.wait_until(lambda: persister.worker("metrics-1").get("partitions") == 2, what="the other's turn")
        before = len(self.rows())
        self.wait_until(lambda: len(self.rows()) > before + 100, what="rows of the other")
        frozen.send_signal(signal.SIGCONT)
        self.wait_for_all()
        self.wait_until(lambda: persister.counter("rows_total", outcome="skipped"), what="the fence")
        self.assert_ends_in_order(persister)
        self.assert_clean()

    def freeze_at_work(self, member):
        """Stop it while a small part of each partition is stored; repeat with more messages if it had finished."""
        for first in range(0, 10 * MESSAGES, MESSAGES):
            before = self.stored()
            self.publish(range(first, first + MESSAGES))
            self.wait_until(lambda: all(self.stored()[each] > before[each] for each in before), what="the first rows")  # noqa: B023
            member.send_signal(signal.SIGSTOP)
            if all(count < (first + MESSAGES) // PARTITIONS - 100 for count in self.stored().values()):
                return
            member.send_signal(signal.SIGCONT)
        self.fail("it was always through before it could be stopped")

    def stored(self):
        """Return the number of rows per partition."""
        found = Counter(number % PARTITIONS for number in self.rows())
        return {partition: found[partition] for partition in range(PARTITIONS)}
