# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a worker at each fail point: it is replaced, and every message is stored as exactly one row.

The table has no key here, so that a message written twice is stored twice. For each guarantee, a mutant without it must
fail. Of several writers of the same partitions, the stored offset permits one.
"""

import signal
import time
from collections import Counter

import psutil
import sqlalchemy as sa

from monasca_common.kafka import plugins
from monasca_common.kafka.message import Record
from monasca_common.kafka.settings import ConsumerSettings, ProducerSettings
from monasca_common.tests.checker import ReportedOutcome
from monasca_common.tests.functional.persister import persister_mutants
from monasca_common.tests.functional.persister.persister_case import PARTITIONS, QUICK_SESSION_SECONDS, PersisterCase
from monasca_common.tests.periodic import periodic

MESSAGES = 200
BAD = frozenset(range(3, MESSAGES, 40))
ZOMBIE_MESSAGES = 1000
_TRANSACTION = 40
_FROZEN_SECONDS = QUICK_SESSION_SECONDS + 1


class CrashCase(PersisterCase):
    session_seconds = QUICK_SESSION_SECONDS

    def crash(self, point, *, mutants=(), meanwhile=None):
        """Store all messages with a worker that is killed at ``point``, and its replacement. Return the verdict."""
        self.drop_key()
        self.publish(range(MESSAGES), bad=BAD)
        persister = self.start(fail_points=point, mutants=mutants)
        if meanwhile is not None:
            meanwhile()
        self.wait_until(lambda: persister.worker().get("restarts"), what="the crash")
        self.wait_until(lambda: self.is_through(persister), what="the end of the log")
        self.assertEqual(1, persister.worker()["restarts"])
        self.assert_ends_in_order(persister)
        return self.verdict()

    def assert_exactly_once(self, verdict):
        verdict.raise_unless_clean()
        self.assertEqual((MESSAGES - len(BAD), len(BAD)), (verdict.stored, verdict.dead))


class Points:
    """The fail points."""

    @periodic("a variant of test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing")
    def test_a_kill_after_a_poll_changes_nothing(self):
        self.assert_exactly_once(self.crash("processor.after_poll=kill@3"))

    def test_a_kill_within_the_transaction_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.in_transaction=kill@3"))

    def test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.after_commit=kill@3"))

    @periodic("a variant of test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing")
    def test_a_kill_before_a_commit_to_kafka_changes_nothing(self):
        self.assert_exactly_once(self.crash("processor.before_commit=kill"))

    def test_a_kill_after_a_dead_letter_is_acknowledged_changes_nothing(self):
        self.assert_exactly_once(self.crash("processor.after_dead_letter=kill@2"))

    def only_dead_letters(self, *, mutants=(), fail_points="", starts=5):
        """Return how often each of two invalid messages is a dead letter after a number of starts."""
        self.publish(range(2), bad=range(2), partition=0)
        for number in range(starts):
            persister = self.start(name=f"start-{number}", fail_points=fail_points, mutants=mutants)
            fail_points = ""
            self.wait_until(lambda: self.is_through(persister), what="the end of the log")  # noqa: B023
            self.wait_until(lambda: len(self.dead_letters()) >= 2, what="the letters")
            self.assert_ends_in_order(persister)
        letters = self.dead_letters()
        return len(letters), {origin for _, _, origin in letters}

    def stored_offsets(self):
        with self.engine.connect() as connection:
            return dict(connection.execute(sa.text('SELECT partition, "next" FROM kafka_offset')).all())

    # Rule 17
    @periodic("a variant of test_a_crash_after_dead_letters")
    def test_five_starts_with_two_invalid_messages_publish_two_dead_letters(self):
        self.assertEqual((2, {(0, 0), (0, 1)}), self.only_dead_letters())
        self.assertEqual(2, self.stored_offsets()[0])

    # Rule 17
    def test_a_crash_after_dead_letters_were_accounted_repeats_none(self):
        letters = self.only_dead_letters(fail_points="processor.after_accounting=kill", starts=1)
        self.assertEqual((2, {(0, 0), (0, 1)}), letters)

    @periodic("a variant of test_a_crash_after_dead_letters")
    def test_a_crash_before_dead_letters_were_accounted_repeats_them_with_their_ids(self):
        letters = self.only_dead_letters(fail_points="processor.after_dead_letter=kill", starts=1)
        self.assertEqual((4, {(0, 0), (0, 1)}), letters)

    # Rule 17
    @periodic("test_mutant_that_trusts_kafkas_offsets of the normal run tests one such mutant")
    def test_mutant_that_does_not_account_dead_letters_repeats_them_at_each_start(self):
        count, origins = self.only_dead_letters(mutants=("forgets_dead_letters",), starts=2)
        self.assertEqual({(0, 0), (0, 1)}, origins)
        self.assertGreater(count, 2)

    def test_a_kill_while_partitions_are_revoked_changes_nothing(self):
        verdict = self.crash("processor.during_revoke=kill;storage.before_write=sleep:0.1", meanwhile=self.take_some)
        self.assert_exactly_once(verdict)

    def take_some(self):
        """Let another member join the group after the first has stored a row, and leave it."""
        self.wait_until(self.rows, what="the first row")
        settings = ConsumerSettings(
            self.connection,
            (self.topic,),
            self.group,
            session_timeout_seconds=QUICK_SESSION_SECONDS,
            stop_timeout_seconds=1.0,
        )
        consumer = plugins.kafka_consumer(settings)
        self.addCleanup(consumer.close, 1)

        def has_some():
            consumer.poll(1, timeout=0.1)
            return bool(consumer.assignment())

        self.wait_until(has_some, what="the other's turn")
        consumer.close(1)

    # Rule 24
    def test_mutant_that_trusts_kafkas_offsets_stores_rows_twice(self):
        verdict = self.crash("storage.after_commit=kill@3", mutants=("no_fence", "trusts_kafkas_offsets"))
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))

    # Rule 24
    @periodic("test_mutant_that_trusts_kafkas_offsets of the normal run tests one such mutant")
    def test_mutant_that_commits_to_kafka_first_loses_messages(self):
        mutants = ("no_fence", "trusts_kafkas_offsets", "commits_to_kafka_first")
        verdict = self.crash("storage.in_transaction=kill@3", mutants=mutants)
        self.assertNotEqual(frozenset(), verdict.lost, str(verdict))

    def errors(self, *mutants):
        """Let the third transaction fail without a crash."""
        self.publish(range(MESSAGES))
        persister = self.start(fail_points="storage.in_transaction=raise@3", mutants=mutants)
        self.wait_until(lambda: self.is_through(persister), what="the end of the log")
        self.assert_ends_in_order(persister)
        return self.verdict()

    @periodic("an error instead of a crash; the normal run contains test_a_kill_within_the_transaction_changes_nothing")
    def test_an_error_within_the_transaction_loses_nothing(self):
        verdict = self.errors()
        verdict.raise_unless_clean()
        self.assertEqual(MESSAGES, verdict.stored)

    @periodic("test_mutant_that_trusts_kafkas_offsets of the normal run tests one such mutant")
    def test_mutant_that_drops_a_batch_on_an_error_loses_it(self):
        verdict = self.errors("no_fence", "drops_a_batch_on_an_error")
        self.assertNotEqual(frozenset(), verdict.lost, str(verdict))

    @periodic("an error instead of a crash; the normal run contains test_a_kill_within_the_transaction_changes_nothing")
    def test_the_fence_detects_a_dropped_batch_which_is_read_again(self):
        verdict = self.errors("drops_a_batch_on_an_error")
        verdict.raise_unless_clean()


@periodic("repeats a PostgreSQL test on SQLite; the normal run contains SqliteCrashTest of the storage")
class TestCrashSqlite(Points, CrashCase):
    database = "sqlite"


class TestCrashPostgresql(Points, CrashCase):
    database = "postgresql"


class ZombieCase(PersisterCase):
    database = "postgresql"
    session_seconds = QUICK_SESSION_SECONDS

    def publish_all(self):
        """Abort every third transaction; each leaves a control record in the log."""
        settings = ProducerSettings(self.connection, linger_ms=0, transactional_id=self.group)
        with plugins.kafka_producer(settings) as producer:
            for first in range(0, ZOMBIE_MESSAGES, _TRANSACTION):
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
        owning = (persister_mutants.owns_everything, *self.topics())
        facts = {"changes": [owning], "mutants": mutants, "fail_points": "storage.before_write=sleep:0.02"}
        services = [self.start(name=f"owner-{n}", **facts) for n in range(3)]
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
        for first in range(0, 10 * ZOMBIE_MESSAGES, MESSAGES):
            before = self.stored()
            self.publish(range(first, first + ZOMBIE_MESSAGES))
            self.wait_until(lambda: all(self.stored()[each] > before[each] for each in before), what="the first rows")  # noqa: B023
            member.send_signal(signal.SIGSTOP)
            if all(count < (first + ZOMBIE_MESSAGES) // PARTITIONS - 100 for count in self.stored().values()):
                return
            member.send_signal(signal.SIGCONT)
        self.fail("it was always through before it could be stopped")

    def stored(self):
        """Return the number of rows per partition."""
        found = Counter(number % PARTITIONS for number in self.rows())
        return {partition: found[partition] for partition in range(PARTITIONS)}
