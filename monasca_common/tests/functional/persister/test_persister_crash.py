# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a worker at each fail point: it is replaced, and every message is stored as exactly one row.

The table has no key here, so that a message written twice is stored twice. For each guarantee, a mutant without it must
fail.
"""

import sqlalchemy as sa

from monasca_common.kafka import plugins
from monasca_common.kafka.settings import ConsumerSettings
from monasca_common.tests.functional.persister.persister_case import QUICK_SESSION_SECONDS, PersisterCase
from monasca_common.tests.periodic import periodic

MESSAGES = 200
BAD = frozenset(range(3, MESSAGES, 40))


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
