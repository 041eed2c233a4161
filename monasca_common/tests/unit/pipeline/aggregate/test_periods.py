# SPDX-License-Identifier: Apache-2.0
"""Periods and their publication, with SQLite and the memory broker."""

import json
from unittest import mock

import fixtures

from monasca_common.kafka import failpoints
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.kafka.transport.memory import Fail
from monasca_common.pipeline.aggregate import output, periods, usage_table
from monasca_common.pipeline.aggregate.partials import group_text
from monasca_common.pipeline.aggregate.periods import MESSAGES, PERIODS, Closing, Period, PeriodPublisher
from monasca_common.pipeline.jobs.job import UNDELIVERED
from monasca_common.pipeline.spark import staging
from monasca_common.pipeline.spark.staging import StagedAttempts
from monasca_common.storage.sql.tables import aggregate_period, aggregate_staging
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import (
    HOUR_MS,
    PUBLISHER,
    envelope,
    partials_of,
    pre_row,
    shipped_row,
    specifications,
)

START_MS = 1_767_268_800_000
SLACK_MS = 600_000


class PublisherCase(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 1)
        self.specs = self.by_host()
        self.now_ms = START_MS + 60_000
        self.batches = 0

    def by_host(self, **parameters):
        row = shipped_row("cpu_total_host", aggregated_metric_name="agg", **parameters)
        return specifications([pre_row("cpu", "cpu_total_host")], [row])

    def publisher(self, emit="update", specs=None, **producer):
        closing = Closing(specs or self.specs, SLACK_MS)
        return PeriodPublisher(self.offset_store, self.kafka.producer(**producer), "metrics", PUBLISHER, closing, emit)

    def add(self, *values, hour=0):
        """Merge a batch of values, of the hosts a, b and so on."""
        messages = [
            envelope("cpu", START_MS + hour * HOUR_MS, value, dimensions={"hostname": "abcdefgh"[number]})
            for number, value in enumerate(values)
        ]
        self.batches += 1
        found = [
            usage_table.staged_row(key.specification_id, key.window_ms, group_text(key.group), one)
            for key, one in partials_of(self.specs, [(m, 0, 100 * self.batches + i) for i, m in enumerate(messages)])
        ]
        closing, batch = Closing(self.specs, SLACK_MS), str(self.batches)
        with self.offset_store.writing() as connection:
            staging.insert(connection, aggregate_staging, usage_table.STAGED, batch, 0, found, self.now_ms)
            usage_table.merge(connection, "aggregate", StagedAttempts(batch, (0,), len(found)))
            changed = periods.periods_of(self.specs, {row[:2] for row in found})
            periods.touch(connection, "aggregate", changed, closing, self.now_ms)
            staging.clear(connection, aggregate_staging, batch, self.now_ms)

    def log(self):
        """Return (message id, host, value, version, provisional) of each message."""
        found = []
        for message in self.kafka.broker.records("metrics"):
            whole = json.loads(message.value)
            metric = whole["metric"]
            is_marked = metric["value_meta"].get("provisional") == "true"
            found.append(
                (message.message_id, metric["dimensions"]["host"], metric["value"], whole["creation_time"], is_marked)
            )
        return found

    def periods(self):
        return self.rows(aggregate_period, "version", "published", "provisional")


class DueTest(PublisherCase):
    def test_a_changed_period_is_published_once(self):
        self.add(1.0, 2.0)
        publisher = self.publisher()
        published = publisher.publish(self.now_ms)
        self.assertEqual((1, 2, 0), tuple(map(published.get, (PERIODS, MESSAGES, UNDELIVERED))))
        self.assertEqual(0, publisher.publish(self.now_ms)[MESSAGES])
        self.assertEqual(0, self.publisher().publish(self.now_ms)[MESSAGES])
        self.assertEqual([("a", 1.0), ("b", 2.0)], [row[1:3] for row in self.log()])

    def test_more_messages_than_the_producer_can_hold_are_published_in_steps(self):
        self.add(*map(float, range(8)))
        published = self.publisher(budget_messages=4).publish(self.now_ms)
        self.assertEqual((8, 0), (published[MESSAGES], published[UNDELIVERED]))
        self.assertEqual([*"abcdefgh"], [row[1] for row in self.log()])

    def test_a_change_has_a_greater_version_even_if_the_clock_stops_or_goes_back(self):
        publisher, versions = self.publisher(), []
        for step_ms in (0, 0, -5_000, 10):
            self.now_ms += step_ms
            self.add(1.0)
            publisher.publish(self.now_ms)
            versions.append(self.log()[-1][3])
        self.assertEqual(sorted(set(versions)), versions)
        self.assertEqual(4, len(versions))

    def test_only_changed_periods_are_published(self):
        self.add(1.0)
        self.add(5.0, hour=-1)
        publisher = self.publisher()
        self.assertEqual(2, publisher.publish(self.now_ms)[PERIODS])
        self.add(7.0, hour=-1)
        self.assertEqual(1, publisher.publish(self.now_ms)[PERIODS])

    def test_a_period_that_changes_during_its_publication_is_published_again(self):
        self.add(1.0)
        publisher = self.publisher()
        deliver = PeriodPublisher._publish_bulk

        def overtaken(self_, records):
            self.add(3.0)
            return deliver(self_, records)

        with mock.patch.object(PeriodPublisher, "_publish_bulk", overtaken):
            publisher.publish(self.now_ms)
        self.assertEqual(1, publisher.publish(self.now_ms)[MESSAGES])
        self.assertEqual([1.0, 2.0], [row[2] for row in self.log()])  # the averages of one value and of both values
        self.assertEqual(0, publisher.publish(self.now_ms)[MESSAGES])

    def test_two_processes_that_publish_a_period_send_equal_messages(self):
        self.add(1.0, 2.0)
        first, second = self.publisher(), self.publisher()
        deliver = PeriodPublisher._publish_bulk

        def overtaken(self_, records):
            with mock.patch.object(PeriodPublisher, "_publish_bulk", deliver):
                second.publish(self.now_ms + 1)
            return deliver(self_, records)

        with mock.patch.object(PeriodPublisher, "_publish_bulk", overtaken):
            first.publish(self.now_ms)
        rows = self.log()
        self.assertEqual(sorted(rows[:2]), sorted(rows[2:]))

    def test_periods_of_another_job_are_not_published(self):
        with self.offset_store.writing() as connection:
            period = Period(self.specs.transforms["cpu_total_host"].id, START_MS)
            periods.touch(connection, "other", [period], Closing(self.specs, 0), self.now_ms)
        self.assertEqual(0, self.publisher().publish(self.now_ms)[PERIODS])

    def test_periods_of_other_specifications_are_not_published(self):
        self.add(1.0)
        other = self.by_host(filter_by_list=[FILTER])
        self.assertEqual(0, self.publisher(specs=other).publish(self.now_ms)[PERIODS])
        self.assertEqual(1, self.publisher().publish(self.now_ms)[PERIODS])


FILTER = {"field_to_filter": "host", "filter_expression": "x", "filter_operation": "include"}


class CrashTest(PublisherCase):
    def test_after_a_crash_before_clearing_equal_messages_are_sent_again(self):
        self.add(1.0, 2.0)
        with failpoints.armed("pipeline.before_clearing", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.publisher().publish, self.now_ms)
        self.assertEqual(2, self.publisher().publish(self.now_ms + 90_000)[MESSAGES])
        rows = self.log()
        self.assertEqual(rows[:2], rows[2:])

    def test_a_period_with_an_undelivered_message_is_published_again(self):
        self.add(1.0, 2.0)
        publisher = self.publisher()
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), nth=2)
        published = publisher.publish(self.now_ms)
        self.assertEqual((0, 1, 1), tuple(map(published.get, (PERIODS, MESSAGES, UNDELIVERED))))
        self.assertEqual(1, len(self.log()))
        published = publisher.publish(self.now_ms)
        self.assertEqual((2, 0), (published[MESSAGES], published[UNDELIVERED]))
        self.assertEqual({"a", "b"}, {row[1] for row in self.log()})
        self.assertEqual(2, len(set(self.log())))

    def test_periods_are_published_after_a_fatal_error_of_the_producer(self):
        self.add(1.0)
        publisher = self.publisher()
        self.kafka.broker.inject("produce", Fail("CLUSTER_AUTHORIZATION_FAILED", fatal=True))
        self.assertEqual([1, 0, 0], [publisher.publish(self.now_ms)[UNDELIVERED] for _ in range(3)])
        self.assertEqual([("a", 1.0)], [row[1:3] for row in self.log()])

    def test_mutant_that_clears_before_delivery_loses_an_undelivered_message(self):
        self.add(1.0)
        publisher = self.publisher()
        publish = PeriodPublisher._publish

        def published(self_, due, results):
            self_._clear(due)
            failpoints.fail_point("pipeline.before_clearing")
            publish(self_, due, results)

        with (
            mock.patch.object(PeriodPublisher, "_publish", published),
            failpoints.armed("pipeline.before_clearing", "raise"),
        ):
            self.assertRaises(failpoints.FailPointReached, publisher.publish, self.now_ms)
        self.assertEqual(0, publisher.publish(self.now_ms)[MESSAGES])
        self.assertEqual([], self.log())


class ManyTest(PublisherCase):
    """Publish more messages than a bulk has, from a file."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(output, "BULK", 2))
        self.useFixture(fixtures.MockPatchObject(output, "IN_MEMORY_BYTES", 1))
        self.add(1.0, 2.0, 3.0, 4.0, 5.0)

    def test_all_messages_of_several_bulks_are_published_once(self):
        published = self.publisher().publish(self.now_ms)
        self.assertEqual((5, 0), (published[MESSAGES], published[UNDELIVERED]))
        self.assertEqual([("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0), ("e", 5.0)], sorted(self.values()))

    def test_an_undelivered_message_of_one_bulk_keeps_the_period_unpublished(self):
        publisher = self.publisher()
        self.kafka.broker.inject("produce", Fail("INVALID_RECORD"), nth=3)
        self.assertEqual(1, publisher.publish(self.now_ms)[UNDELIVERED])
        self.assertEqual(0, publisher.publish(self.now_ms)[UNDELIVERED])
        self.assertEqual(5, len(set(self.values())))

    def values(self):
        return [row[1:3] for row in self.log()]


class EndedPeriodTest(PublisherCase):
    END_MS = START_MS + HOUR_MS + SLACK_MS

    def test_an_ended_period_is_published_without_the_provisional_mark(self):
        self.add(1.0)
        publisher = self.publisher()
        for now_ms, messages in ((self.now_ms, 1), (self.END_MS - 1, 0), (self.END_MS, 1), (self.END_MS + 1, 0)):
            self.assertEqual(messages, publisher.publish(now_ms)[MESSAGES])
        (first_id, *_, first_version, first_marked), (second_id, *_, second_version, second_marked) = self.log()
        self.assertEqual((True, False), (first_marked, second_marked))
        self.assertGreater(second_version, first_version)
        self.assertNotEqual(first_id, second_id)

    def test_with_emit_final_a_period_is_published_after_its_end(self):
        self.add(1.0)
        publisher = self.publisher("final")
        self.assertEqual(
            [0, 0, 1], [publisher.publish(at)[MESSAGES] for at in (self.now_ms, self.END_MS - 1, self.END_MS)]
        )
        self.now_ms = self.END_MS + 5
        self.add(3.0)
        self.assertEqual(1, publisher.publish(self.now_ms)[MESSAGES])
        self.assertEqual([(1.0, False), (2.0, False)], [(row[2], row[4]) for row in self.log()])

    def test_the_mark_is_stored_before_publication(self):
        self.add(1.0)
        with failpoints.armed("pipeline.before_clearing", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.publisher().publish, self.END_MS - 1)
        self.publisher().publish(self.END_MS)
        self.assertEqual([True, False], [row[4] for row in self.log()])
        self.assertEqual(2, len({row[3] for row in self.log()}))

    def test_a_daily_period_is_open_for_a_day(self):
        specs = self.by_host(aggregation_period="daily")
        period = Period(specs.transforms["cpu_total_host"].id, 0)
        closing = Closing(specs, SLACK_MS)
        self.assertTrue(closing.is_open(period, 24 * HOUR_MS + SLACK_MS - 1))
        self.assertFalse(closing.is_open(period, 24 * HOUR_MS + SLACK_MS))
