# SPDX-License-Identifier: Apache-2.0
"""The job aggregate during faults and changes: which events it waits for, what stops it, and which processes it
excludes. Each guarantee has a mutant that lacks it and fails the same check."""

import contextlib
import json
import threading
from typing import Any, ClassVar
from unittest import mock

import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import HealthCheck, given, settings
from testtools.matchers import Contains, StartsWith

from monasca_common import pipeline
from monasca_common.kafka import failpoints
from monasca_common.kafka.message import Record, TopicPartition
from monasca_common.pipeline.aggregate import usage_table
from monasca_common.pipeline.aggregate.periods import PeriodPublisher
from monasca_common.pipeline.errors import Fenced, RecordsLost
from monasca_common.pipeline.jobs import loop
from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher
from monasca_common.pipeline.source import offset_store
from monasca_common.pipeline.spark.session import reason
from monasca_common.storage.errors import TopicMismatch
from monasca_common.storage.sql.tables import aggregate_usage
from monasca_common.tests.functional.pipeline.pipeline_case import (
    CPU_PRE_ROWS,
    CPU_ROWS,
    CpuCase,
    SharedSpark,
    cpu,
    expected,
)
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.pipeline.aggregate.test_against_reference import LATEST_MS, random_messages, random_rows
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, specifications
from monasca_common.tests.waiting import PATIENCE_SECONDS


class StreamCase(CpuCase):
    def run_on(self, job, *, once=False):
        """Run the loop of the job on a thread, and return a function that ends it and raises its error, if any."""
        stop, raised = threading.Event(), []
        spark = self.useFixture(SharedSpark()).session

        def run():
            try:
                loop.run(job.step, spark, 0.05, JobRequest(once=once), JobWatcher(stop))
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def end():
            stop.set()
            thread.join(PATIENCE_SECONDS)
            self.assertFalse(thread.is_alive(), "it does not end")
            if raised:
                raise raised[0]

        # End the thread before the database of the test is removed.
        self.addCleanup(thread.join, PATIENCE_SECONDS)
        self.addCleanup(stop.set)
        return end

    def counted(self):
        """Return the number of records that the database has of ``cpu_sum``."""
        name = f"{self.specs.transforms['cpu_sum'].id}"
        return sum(self.scalars(f"SELECT record_count FROM aggregate_usage WHERE specification = '{name}'"))

    def until_counted(self):
        self.wait_until(lambda: self.counted() >= len(self.sent))
        self.assertEqual(len(self.sent), self.counted())


class RangesTest(StreamCase):
    # Rule 37
    def test_a_partition_that_is_added_is_read_from_its_start(self):
        self.send(cpu(1, 1), cpu(2, 2))
        job = self.job()
        job.step()
        client = AdminClient(self.cluster.direct_options())
        client.create_partitions([NewPartitions(self.topic, 3)])[self.topic].result(PATIENCE_SECONDS)
        self.partitions = 3
        self.wait_until(lambda: self.cluster.admin.partition_count(self.topic) == 3)
        self.producer = self.new_producer()  # a new producer knows all partitions
        self.send(cpu(3, 4), partition=2)
        self.until_quiet(job)
        self.assert_exact()
        self.assertEqual({0, 1, 2}, set(self.next_offsets()))

    def test_stored_offsets_are_committed_to_kafka_for_monitoring(self):
        self.send(cpu(1, 1), cpu(2, 2), cpu(3, 4))
        self.until_quiet(self.job())
        committed = self.cluster.admin.group_offsets(self.group)
        stored = self.next_offsets()
        self.assertEqual(stored, {tp.partition: offset for tp, offset in committed.items()})
        self.assertEqual(5, sum(stored.values()))

    # Rule 28
    def test_another_run_resumes_at_the_stored_offsets_regardless_of_kafka(self):
        self.send(cpu(1, 1), partition=0)
        self.until_quiet(self.job())
        self.cluster.admin.alter_group_offsets(self.group, {TopicPartition(self.topic, 0): 0})
        self.send(cpu(2, 2), partition=0)
        self.until_quiet(self.job())
        self.assert_exact()

    def test_a_group_that_starts_at_the_end_misses_no_later_message(self):
        self.publish([cpu(1, 1000)])
        job = self.job(start="latest")
        job.step()
        self.send(cpu(2, 2), cpu(3, 4))
        self.until_quiet(job)
        self.assertEqual({("cpu_sum", "6"), ("cpu_host", "3")}, self.values())

    def values(self):
        return {(key[0], f"{row[0]:g}") for key, row in self.stored(self.specs).items()}

    # Rule 37
    def test_records_that_retention_removed_before_they_were_read_stop_the_job(self):
        self.send(cpu(1, 1), partition=0)
        job = self.job()
        self.until_quiet(job)
        at = self.next_offsets()[0]
        self.send(*(cpu(2, 2) for _ in range(5)), partition=0)
        self.cluster.admin.delete_records({TopicPartition(self.topic, 0): at + 3})
        error = self.assertRaises(RecordsLost, job.step)
        for text in (f"{self.topic}/0", f"offset is {at},", "removed 3 offsets", "offsets reset", self.group):
            self.assertThat(str(error), Contains(text))
        self.assertEqual(at, self.next_offsets()[0])
        self.assertRaises(RecordsLost, self.run_on(job))  # the loop does not retry this error

    # Rule 37
    def test_records_removed_while_they_are_read_are_not_skipped(self):
        job = self.job(one_task_offsets=0)
        job.step()
        self.send(*(cpu(1, 1) for _ in range(10)), partition=0)
        extents = job._batches._topic.extents

        def outdated():
            found = extents()
            self.cluster.admin.delete_records({TopicPartition(self.topic, 0): 5})
            return found

        with mock.patch.object(job._batches._topic, "extents", outdated):
            error = self.assertRaises(loop.retriable_errors(), job.step)
        self.assertThat(reason(error), StartsWith("org.apache."))
        self.assertEqual({0: 0, 1: 0}, self.next_offsets())
        self.assertRaises(RecordsLost, job.step)

    # Rule 37
    def test_a_recreated_topic_stops_the_job(self):
        self.send(cpu(1, 1))
        job = self.job()
        self.until_quiet(job)
        self.cluster.admin.delete_topic(self.topic)
        self.wait_until(lambda: not self.cluster.admin.topic_ids([self.topic], PATIENCE_SECONDS))
        self.cluster.create_topic(self.topic, self.partitions)
        self.publish([cpu(1, 1) for _ in range(20)])
        error = self.assertRaises(TopicMismatch, job.step)
        self.assertThat(str(error), Contains("offsets reset"))
        self.assertRaises(TopicMismatch, self.job().step)


@periodic("test_connector verifies the options of Spark's client")
class SecurityTest(StreamCase):
    cluster_settings: ClassVar[dict[str, Any]] = {"tls": True, "sasl": True}

    def test_sparks_client_uses_the_security_options_of_the_library(self):
        self.send(cpu(1, 1), cpu(2, 2))
        self.publish([b"no record"])
        self.until_quiet(self.job(one_task_offsets=0))
        self.assert_exact()
        self.assertEqual(1, len(self.read(self.dlq, 1)))


@periodic("SecurityTest runs the same test with passwords")
class MutualTlsTest(SecurityTest):
    def client_options(self):
        return self.cluster.mutual_tls_options()


class ChangesTest(StreamCase):
    def test_new_operations_apply_to_records_already_counted(self):
        self.send(cpu(1, 1), cpu(2, 2))
        self.until_quiet(self.job())
        rows = json.loads(json.dumps(CPU_ROWS))
        rows[0]["aggregation_params_map"]["usage_fetch_operation"] = "max"
        self.send(cpu(3, 0))
        self.until_quiet(self.job(specifications(CPU_PRE_ROWS, rows)))
        self.assert_exact(rows)

    def test_new_group_columns_apply_to_later_records_and_other_specifications_continue(self):
        self.send(cpu(1, 1), cpu(2, 2))
        before = list(self.sent)
        self.until_quiet(self.job())
        rows = json.loads(json.dumps(CPU_ROWS))
        rows[0]["aggregation_params_map"] |= {"aggregation_group_by_list": ["host"], "aggregated_metric_name": "other"}
        self.send(cpu(3, 4))
        specs = specifications(CPU_PRE_ROWS, rows)
        self.until_quiet(self.job(specs))
        after = [one for one in self.sent if one not in before]
        wanted = {key: row for key, row in expected(CPU_PRE_ROWS, rows, after).items() if key[0] == "other"}
        wanted |= {key: row for key, row in expected(CPU_PRE_ROWS, rows, self.sent).items() if key[0] != "other"}
        self.assertEqual(wanted, self.stored(specs))

    # Rule 35
    def test_unpublished_periods_of_a_removed_specification_wait_for_its_return(self):
        self.send(cpu(1, 1))
        with failpoints.armed("pipeline.after_commit", "raise"):
            self.assertRaises(failpoints.FailPointReached, self.job().step)
        other = specifications([pre_row("cpu", "cpu_host")], CPU_ROWS[1:])
        self.assertEqual(1, self.until_quiet(self.job(other))["published_messages"])
        self.assertEqual(1, self.until_quiet(self.job())["published_messages"])
        self.assert_exact()


class FenceCase(StreamCase):
    """Another process runs the same job by mistake."""

    def race(self):
        """Let a second job complete the batch of the first one while it is computed."""
        self.send(cpu(1, 1), cpu(2, 2, "b"), cpu(14, 4))
        first, second = self.job(), self.job()
        stage = first._partials.stage

        def overtaken(*arguments, **options):
            staged = stage(*arguments, **options)
            second.step()
            return staged

        with mock.patch.object(first._partials, "stage", overtaken):
            return first, first.step()


@periodic("FencePostgresqlTest runs the same tests on PostgreSQL")
class FenceTest(FenceCase):
    # Rule 28
    def test_one_of_two_jobs_with_the_same_batch_is_fenced(self):
        error = self.assertRaises(Fenced, self.race)
        self.assertThat(str(error), Contains("another process runs this job"))
        self.assert_exact()
        self.until_quiet(self.job())
        self.assert_exact()
        self.assertEqual(3, self.counted())

    # Rule 28
    def test_two_concurrent_jobs_count_every_record_once(self):
        ends = [self.run_on(self.job(max_offsets_per_trigger=30)) for _ in range(2)]
        for number in range(3):
            self.send(*(cpu(minute, number + 1, "ab"[minute % 2]) for minute in range(40)))
            self.until_counted()
        for end in ends:
            end()
        self.until_quiet(self.job())
        self.assert_exact()
        self.assertEqual([], self.double_rows())


class FencePostgresqlTest(FenceTest):
    database = "postgresql"


class FenceMutantTest(FenceCase):
    # Rule 28
    def test_mutant_without_the_fence_counts_twice(self):
        with no_fence():
            self.race()
        self.assertEqual(6, self.counted())
        self.assertNotEqual(expected(CPU_PRE_ROWS, CPU_ROWS, self.sent), self.stored(self.specs))

    # Rule 28
    def test_mutant_that_inserts_without_a_key_has_duplicate_rows(self):
        with without_key(self.offset_store), no_fence():
            self.race()
        self.assertNotEqual([], self.double_rows())


class OutboxTest(StreamCase):
    # Rule 30
    def test_mutant_that_clears_before_delivery_loses_a_period(self):
        self.send(cpu(1, 1))
        job = self.job()
        with clears_first(), failpoints.armed("pipeline.before_clearing", "raise"):
            self.assertRaises(failpoints.FailPointReached, job.step)
        self.until_quiet(job)
        self.assertNotEqual(expected(CPU_PRE_ROWS, CPU_ROWS, self.sent), self.stored(self.specs))


@periodic("test_loop verifies that a job waits, and RangesTest that it continues after an error")
class UnavailableBrokerTest(StreamCase):
    def test_the_job_waits_for_a_restarted_kafka(self):
        end = self.run_on(self.job())
        self.send(cpu(1, 1), cpu(2, 2))
        self.until_counted()
        (node,) = self.cluster.nodes
        for _ in range(2):
            node.kill()
            node.restart()
            self.send(cpu(3, 4), cpu(2, 8))
            self.until_counted()
        end()
        self.until_quiet(self.job())
        self.assert_exact()


class RandomTest(StreamCase):
    """Like unit/pipeline/aggregate/test_against_reference.py, with Kafka, Spark and a database."""

    # Rule 29
    @settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(random_rows(), random_messages(most=60))
    def test_batches_of_random_specifications_and_data_equal_the_reference(self, rows, messages):
        self.partitions = 3
        self.topic = self.fixture.topic(3)
        self.cluster.create_topic(f"{self.topic}.dlq", 1)
        sent = self.publish([Record(value, partition=partition) for value, partition, _ in messages])
        self.clock.now_ms = LATEST_MS - pipeline.windows.FUTURE_MS
        specs = specifications(*rows)
        self.until_quiet(self.job(specs, max_offsets_per_trigger=20))
        wanted = expected(*rows, sent, latest_ms=LATEST_MS)
        self.assertEqual(wanted, self.stored(specs))


@contextlib.contextmanager
def no_fence():
    """Store the batch regardless of the stored offsets."""
    with mock.patch.object(offset_store, "_hold", lambda *_: {}):
        yield


@contextlib.contextmanager
def without_key(of):
    """Insert partials instead of merging them."""

    def insert(connection, job, staged):
        table = usage_table.aggregate_staging
        columns = [table.c[name] for name in usage_table.STAGED]
        found = sa.select(sa.literal(job), *columns).where(*staged.within(table))
        connection.execute(aggregate_usage.insert().from_select(["job", *usage_table.STAGED], found))

    with of.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("ALTER TABLE aggregate_usage DROP CONSTRAINT aggregate_usage_pkey"))
        else:
            connection.execute(sa.text("CREATE TABLE keyless AS SELECT * FROM aggregate_usage"))
            connection.execute(sa.text("DROP TABLE aggregate_usage"))
            connection.execute(sa.text("ALTER TABLE keyless RENAME TO aggregate_usage"))
    with mock.patch.object(usage_table, "merge", insert):
        yield


@contextlib.contextmanager
def clears_first():
    """Mark a period as published before it is sent."""
    publish = PeriodPublisher._publish

    def published(publisher, due, results):
        publisher._clear(due)
        failpoints.fail_point("pipeline.before_clearing")
        publish(publisher, due, results)

    with mock.patch.object(PeriodPublisher, "_publish", published):
        yield
