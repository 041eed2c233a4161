# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a sink's worker at each fail point: each message is applied exactly once, and keys are correct. Of several
writers of the same partitions, the stored offset permits one.

For each guarantee, a mutant without it must fail.
"""

from monasca_common.tests.functional.persister.test_persister_crash import CrashCase, ZombieCase
from monasca_common.tests.functional.sink.sink_case import SinkCase
from monasca_common.tests.periodic import periodic


class SinkCrashCase(SinkCase, CrashCase):
    one_topic = False

    def crash(self, point, *, mutants=()):
        # The verdict counts the first topic, so a mutant must be killed while it stores that topic.
        self.one_topic = bool(mutants)
        return super().crash(point, mutants=mutants)

    def publish(self, numbers, **named):
        publish = super(SinkCase, self).publish if self.one_topic else super().publish
        publish(numbers, **named)

    def assert_exactly_once(self, verdict):
        super().assert_exactly_once(verdict)
        self.assert_states()


class SinkPoints:
    def test_a_kill_within_the_transaction_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.in_transaction=kill@5"))

    def test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.after_commit=kill@5"))

    @periodic("a variant of test_a_kill_within_the_transaction_changes_nothing")
    def test_a_kill_before_a_write_changes_nothing(self):
        self.assert_exactly_once(self.crash("storage.before_write=kill@5"))

    @periodic("a variant of test_a_kill_between_the_commits_to_the_database_and_to_kafka_changes_nothing")
    def test_a_kill_after_a_dead_letter_is_acknowledged_changes_nothing(self):
        self.assert_exactly_once(self.crash("processor.after_dead_letter=kill@2"))

    # Rule 24
    def test_mutant_that_trusts_kafkas_offsets_applies_rows_twice(self):
        verdict = self.crash("storage.after_commit=kill@5", mutants=("no_fence", "trusts_kafkas_offsets"))
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))

    # Rule 24
    @periodic("test_mutant_that_trusts_kafkas_offsets of the normal run tests one such mutant")
    def test_mutant_that_commits_to_kafka_first_loses_messages(self):
        mutants = ("no_fence", "trusts_kafkas_offsets", "commits_to_kafka_first")
        verdict = self.crash("storage.in_transaction=kill@5", mutants=mutants)
        self.assertNotEqual(frozenset(), verdict.lost, str(verdict))


@periodic("repeats a PostgreSQL test on SQLite; the normal run contains SqliteCrashTest of the storage")
class TestSinkCrashSqlite(SinkPoints, SinkCrashCase):
    database = "sqlite"


class TestSinkCrashPostgresql(SinkPoints, SinkCrashCase):
    database = "postgresql"


MESSAGES = 600


class TestSinkZombies(SinkCase, ZombieCase):
    def publish_all(self):
        for first in range(0, MESSAGES, 40):
            self.publish(range(first, first + 40))

    # Rule 23
    def test_three_members_with_all_partitions_apply_each_row_once(self):
        verdict, skipped = self.three_owners()
        verdict.raise_unless_clean()
        self.assert_states()
        self.assertGreater(skipped, 0, "they never met")

    # Rule 23
    @periodic("mutant; the normal run contains the test that detects it")
    def test_mutant_without_the_fence_applies_rows_twice(self):
        verdict, _ = self.three_owners("no_fence")
        self.assertNotEqual(frozenset(), verdict.duplicate, str(verdict))
