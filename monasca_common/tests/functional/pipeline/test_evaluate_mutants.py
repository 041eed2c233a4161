# SPDX-License-Identifier: Apache-2.0
"""Each guarantee of the job evaluate has a mutant that lacks it and fails the same check."""

import contextlib
from unittest import mock

from monasca_common.alarms import outbox
from monasca_common.kafka import failpoints
from monasca_common.pipeline.errors import Fenced
from monasca_common.pipeline.evaluate import watermark
from monasca_common.pipeline.evaluate.batch import Evaluation
from monasca_common.pipeline.evaluate.passes import PassRunner
from monasca_common.pipeline.evaluate.transitions import TransitionPublisher
from monasca_common.pipeline.evaluate.watermark import Scan
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline.test_evaluate import MINUTE_MS, EvaluateCase
from monasca_common.tests.periodic import periodic

ALARM, OK, SILENT = ("UNDETERMINED", "ALARM", "a"), ("UNDETERMINED", "OK", "a"), ("OK", "UNDETERMINED", "a")


class MergeBeforeEvaluationTest(EvaluateCase):
    """The measurements of a batch count in the windows that are due after it."""

    def due_with_the_batch(self):
        self.define("avg(cpu) > 5", "hostname")
        job = self.evaluation()
        self.measure(1.0)
        job.step()
        self.measure(19.0)
        self.clock.now_ms += MINUTE_MS
        job.step()
        return self.changes()

    def test_a_measurement_read_when_its_window_is_due_counts(self):
        found = self.due_with_the_batch()
        with each_once():
            self.assertEqual([ALARM], found)

    # Rule 45
    def test_mutant_that_evaluates_before_it_merges_loses_a_measurement(self):
        with evaluates_first():
            self.assertEqual([OK], self.due_with_the_batch())


@periodic("mutants of a rule that PostgresqlCrashTest verifies")
class OneTransactionTest(EvaluateCase):
    """Measurements and their offsets are stored in one transaction."""

    def crash(self, point):
        """Return the changes after one measurement and after two."""
        self.define("count(cpu) > 1", "hostname")
        job = self.evaluation()
        self.measure(1.0)
        with failpoints.armed(point, "raise"):
            self.assertRaises(failpoints.FailPointReached, job.step)
        job.step()
        first = self.changes()
        self.measure(1.0)
        job.step()
        return first, self.changes()

    def test_a_crash_inside_the_transaction_counts_a_measurement_once(self):
        found = self.crash("pipeline.inside_transaction")
        with each_once():
            self.assertEqual(([], [ALARM]), found)

    # Rule 45
    def test_mutant_that_advances_offsets_in_a_transaction_before_it_loses_a_measurement(self):
        with offsets_apart(first=True):
            self.assertEqual(([], []), self.crash("pipeline.inside_transaction"))

    # Rule 45
    def test_mutant_that_advances_offsets_in_a_transaction_after_it_counts_twice(self):
        with offsets_apart(first=False):
            self.assertEqual(([ALARM], [ALARM]), self.crash("mutant.between_transactions"))


@periodic("mutants of a rule that PostgresqlCrashTest verifies")
class ClearAfterPublicationTest(EvaluateCase):
    """Transitions are removed from the outbox after Kafka has acknowledged them."""

    def crash(self):
        self.define("max(cpu) > 5", "hostname")
        job = self.evaluation()
        self.measure(9.0)
        with failpoints.armed("evaluate.before_clearing", "raise"):
            self.assertRaises(failpoints.FailPointReached, job.step)
        job.step()
        return set(self.transitions())

    def test_a_crash_before_clearing_loses_no_transition(self):
        found = [each[1:] for each in self.crash()]
        with each_once():
            self.assertEqual([ALARM], found)

    # Rule 48
    def test_mutant_that_clears_before_it_publishes_loses_a_transition(self):
        with clears_first():
            self.assertEqual(set(), self.crash())


@periodic("mutants of a rule that PassesContract verifies")
class CompareAndSwapTest(EvaluateCase):
    """Of two concurrent evaluators, only one evaluates a window."""

    def race(self):
        """Let a second evaluator complete the pass of the first one while it is in progress."""
        self.define("avg(cpu) > 5", "hostname")
        first, second = self.evaluation(), self.evaluation()
        self.measure(1.0)
        first.step()
        self.clock.now_ms += MINUTE_MS
        first.step()
        self.clock.now_ms += MINUTE_MS
        opened = PassRunner._open

        def overtaken(runner, *arguments):
            stored = opened(runner, *arguments)
            if runner is first._passes:
                second.step()
            return stored

        with mock.patch.object(PassRunner, "_open", overtaken), contextlib.suppress(Fenced):
            first.step()
        return self.changes()

    def test_an_empty_window_counts_once(self):
        found = self.race()
        with each_once():
            self.assertEqual([OK], found)

    # Rule 46
    def test_mutant_without_compare_and_swap_counts_an_empty_window_twice(self):
        with mock.patch.object(watermark, "hold", lambda *_: None):
            self.assertEqual([OK, SILENT], self.race())


@periodic("mutants of a rule that StepTest verifies")
class DuplicatesTest(EvaluateCase):
    """A copy of a message does not count, so ``count`` and ``sum`` include each measurement once."""

    def copies(self, lookback):
        self.define("count(cpu) > 1", "hostname")
        job = self.evaluation(duplicates_lookback=lookback)
        self.measure(1.0, message_id=b"a", partition=0)
        job.step()
        self.measure(1.0, message_id=b"a", partition=0)
        job.step()
        return self.changes()

    def test_a_copy_in_a_later_batch_does_not_count(self):
        found = self.copies(100)
        with each_once():
            self.assertEqual([], found)

    # Rule 45
    def test_mutant_without_a_look_back_counts_a_copy(self):
        self.assertEqual([ALARM], self.copies(0))


@contextlib.contextmanager
def evaluates_first():
    """Evaluate up to the time at which a batch starts, and merge the batch afterwards."""
    batch = Evaluation._batch

    def evaluated(evaluation, planned, steady_ms, timing):
        evaluation._passes.run(Scan(steady_ms, planned.range_plan.ended))
        return batch(evaluation, planned, steady_ms, timing)

    with mock.patch.object(Evaluation, "_batch", evaluated):
        yield


@contextlib.contextmanager
def offsets_apart(*, first):
    """Advance the offsets in a separate transaction, before or after the merge."""
    advance = OffsetStore.advance

    @contextlib.contextmanager
    def apart(store, *ranges, **which):
        if first:
            with advance(store, *ranges, **which):
                pass
        with store.writing() as connection:
            yield connection
        if not first:
            failpoints.fail_point("mutant.between_transactions")
            with advance(store, *ranges, **which):
                pass

    with mock.patch.object(OffsetStore, "advance", apart):
        yield


@contextlib.contextmanager
def clears_first():
    """Remove a transition from the outbox before sending it."""
    deliver = TransitionPublisher._deliver

    def delivered(publisher, rows):
        with publisher._offset_store.writing() as connection:
            outbox.clear(connection, rows)
        failpoints.fail_point("evaluate.before_clearing")
        return deliver(publisher, rows)

    with mock.patch.object(TransitionPublisher, "_deliver", delivered):
        yield
