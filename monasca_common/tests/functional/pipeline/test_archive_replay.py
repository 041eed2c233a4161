# SPDX-License-Identifier: Apache-2.0
"""Replay with a real Kafka, Spark and database: the archived messages are restored in any order and after any
number of repeats."""

import dataclasses
import random
from unittest import mock

import sqlalchemy as sa
from oslo_config import cfg

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record
from monasca_common.models.metric import MetricDecoder
from monasca_common.pipeline.archive import reader
from monasca_common.pipeline.archive.reader import Archive, Selection
from monasca_common.pipeline.errors import ReplayFailed
from monasca_common.pipeline.jobs.activity import JobState
from monasca_common.pipeline.jobs.job import JobWatcher
from monasca_common.pipeline.replay import senders
from monasca_common.pipeline.replay.batch import replay
from monasca_common.pipeline.replay.senders import MatchingCount
from monasca_common.pipeline.spark import worker_producer
from monasca_common.pipeline.status import job_statuses
from monasca_common.storage import StorageSettings
from monasca_common.storage.base import Kind
from monasca_common.storage.reduction import rank
from monasca_common.tests.functional.pipeline.archive_case import HOUR_MS, SIX_MS, ArchiveCase, metric
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.persister import envelopes

CREATED = SIX_MS // 1000


def measured(number, value, *, created=CREATED):
    """Return another value of the same series and time, with another version."""
    return envelopes.metric(number, time_ms=SIX_MS, value=value, creation_time=created)


class ReplayCase(ArchiveCase):
    def replay(self, send, *, tasks=2):
        return replay(self.spark, send, JobWatcher(), tasks=tasks)

    def archive(self, **selection):
        return Archive(str(self.location), self.topic, Selection(**selection))

    def to_kafka(self, topic, *, publish_timeout_seconds=10.0, **selection):
        producer = dataclasses.replace(self.stream().producer, publish_timeout_seconds=publish_timeout_seconds)
        settings = worker_producer.portable_producer(producer, None, "")
        return senders.ToKafka(self.archive(**selection), topic, settings)

    def to_storage(self, url, *, kind=Kind.METRICS, retention_days=36_500, **selection):
        settings = StorageSettings(self.database, url, default_retention_days=retention_days)
        return senders.ToStorage(self.archive(**selection), kind, settings)

    def rows_of(self, url):
        """Return {(series, time): (value, version)}, and fail if a key is stored twice."""
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT series_id, time, value, version FROM measurements")).all()
        found = {(bytes(series), time_ms): (value, version) for series, time_ms, value, version in rows}
        self.assertEqual(len(rows), len(found))
        return found


def expected_rows(values):
    """Return the rows, in the form of `ReplayCase.rows_of`, that a database has after these messages in any order."""
    rows = {}
    for row in MetricDecoder().decode_all(values).rows:
        key = (row.series.id, row.time_ms)
        ranked = (*key, row.value, row.value_meta, row.version)
        if key not in rows or rank(ranked) > rank(rows[key]):
            rows[key] = ranked
    return {key: (row[2], row[4]) for key, row in rows.items()}


class ReplayToKafkaTest(ReplayCase):
    def setUp(self):
        super().setUp()
        self.target = self.new_topic(3)

    def replayed(self):
        return self.read(self.target, partitions=3)

    def test_keys_headers_ids_and_timestamps_are_kept(self):
        headers = (("a", b"1"), ("b", None), ("a", b"2"))
        self.publish(
            Record(
                metric(number).value if number % 2 else None,
                key=None if number % 3 else b"k",
                headers=headers,
                timestamp_ms=SIX_MS + number,
            )
            for number in range(20)
        )
        original = sorted(map(facts, self.read(self.topic)))
        self.archiver().step()

        progress = self.replay(self.to_kafka(self.target))

        files = len(self.visible_files())
        self.assertEqual((files, 0, {"sent": 20}), (progress.done, progress.left, progress.results))
        self.assertEqual(original, sorted(map(facts, self.replayed())))
        self.assertEqual(1, len({message.partition() for message in self.replayed() if message.key() == b"k"}))

    @periodic("the consumers' contract derives the same ids")
    def test_a_message_without_an_id_gets_an_id_from_its_offset(self):
        plain = self.producer_without_ids()
        plain.publish(self.topic, [Record(envelopes.log(1), partition=1)]).raise_for_undelivered()
        self.archiver().step()
        self.replay(self.to_kafka(self.target))
        (message,) = self.replayed()
        self.assertEqual([("message-id", f"{self.topic}/1/0".encode())], message.headers())

    def producer_without_ids(self):
        from monasca_common.kafka import plugins
        from monasca_common.kafka.settings import ProducerSettings

        settings = ProducerSettings(self.connection, topics_without_message_id=frozenset({self.topic}))
        producer = plugins.kafka_producer(settings)
        self.addCleanup(producer.close, 1)
        return producer

    @periodic("test_reader tests the same ranges")
    def test_a_time_range_selects_messages(self):
        self.publish([metric(number) for number in range(12)])  # from six, seven and eight o'clock
        self.publish([b"no json", envelopes.event(0, now_ms=SIX_MS + HOUR_MS + 5)])
        self.archiver().step()
        seven = {"from_ms": SIX_MS + HOUR_MS + 4000, "to_ms": SIX_MS + HOUR_MS + 10_000}
        for selection, count in (
            (seven, 2),  # seconds 4 and 7; the message of second 10 is not JSON
            ({"from_ms": SIX_MS + 100 * HOUR_MS}, 1),  # not JSON: archived by Kafka's time, which is now
            ({}, 14),
        ):
            progress = self.replay(MatchingCount(self.archive(**selection)))
            self.assertEqual(count, progress.results.get("matching", 0), selection)
        self.replay(self.to_kafka(self.target, **seven))
        self.assertEqual(2, len(self.replayed()))

    def test_a_dry_run_counts_and_sends_nothing(self):
        self.publish([metric(number) for number in range(12)])
        self.archiver().step()
        progress = self.replay(MatchingCount(self.archive(from_ms=SIX_MS, to_ms=SIX_MS + 2 * HOUR_MS)))
        self.assertEqual({"matching": 8}, progress.results)
        self.assertEqual([], self.replayed())

    def test_a_replay_that_kafka_refuses_is_an_error_with_the_remedy(self):
        self.publish([metric(number) for number in range(12)])
        self.archiver().step()
        send = self.to_kafka("no-such-topic", publish_timeout_seconds=0.5)
        error = str(self.assertRaises(ReplayFailed, self.replay, send))
        self.assertIn("UndeliveredError", error)
        self.assertIn("run the replay again", error)


@periodic("ReplayToPostgresqlTest runs the same tests on PostgreSQL")
class ReplayToStorageTest(ReplayCase):
    tasks = 1  # SQLite allows one writer, and a second task would fail after too many waits

    def replay(self, send):
        return super().replay(send, tasks=self.tasks)

    # Rule 39
    @periodic("the normal run repeats a replay that was killed")
    def test_replay_in_any_order_restores_an_empty_database(self):
        chance = random.Random(5)
        values = [metric(number).value for number in range(60)]
        # Repeats, corrections and corrected values at random offsets of the log.
        values += chance.sample(values, 10)
        values += [measured(number, number / 7, created=CREATED + number % 3) for number in range(20)]
        values += [measured(number, number / 3, created=CREATED + 1) for number in range(20)]
        chance.shuffle(values)
        self.publish(values)
        archiver = self.archiver(max_offsets_per_trigger=30)
        while archiver.step().left:
            pass
        find_files = reader.find_files
        for order in (list, lambda paths: chance.sample(paths, len(paths))):
            url = self.new_database()
            with mock.patch.object(reader, "find_files", lambda *args, order=order: order(find_files(*args))):
                results = self.replay(self.to_storage(url)).results
            self.assertEqual(expected_rows(values), self.rows_of(url))
            self.assertEqual(110, results["stored"] + results["repeated"] + results["conflicting"])
            self.assertEqual([], self.offsets(url))

    def offsets(self, url):
        engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            where = "consumer_group = 'spark-replay'"
            return connection.execute(sa.text(f"SELECT * FROM kafka_offset WHERE {where}")).all()

    # Rule 39
    def test_a_replay_keeps_newer_rows_of_the_database(self):
        old = [measured(number, 1.0) for number in range(10)]
        new = [measured(number, 2.0, created=CREATED + 60) for number in range(5)]
        self.publish(old)
        self.archiver().step()
        url = self.new_database()
        self.store(url, new)

        results = self.replay(self.to_storage(url)).results

        self.assertEqual(expected_rows(old + new), self.rows_of(url))
        self.assertEqual((5, 5), (results["stored"], results["conflicting"]))

    def store(self, url, values):
        """Store values like a persister."""
        self.topic, topic = self.new_topic(), self.topic
        self.location, location = self.folder / "other", self.location
        self.group, group = "other", self.group
        self.publish(values)
        self.archiver().step()
        self.replay(self.to_storage(url))
        self.topic, self.location, self.group = topic, location, group

    # Rule 39
    def test_an_interrupted_and_repeated_replay_stores_nothing_twice(self):
        self.publish([metric(number) for number in range(60)])
        self.archiver(max_offsets_per_trigger=20).step()
        archiver = self.archiver(max_offsets_per_trigger=20)
        while archiver.step().left:
            pass
        url = self.new_database()
        send = self.to_storage(url)
        with failpoints.armed("replay.after_some", "raise"):
            self.assertRaises(FailPointReached, self.replay, send)
        before = len(self.rows_of(url))
        self.assertTrue(0 < before < 60)

        results = self.replay(send).results

        self.assertEqual((60 - before, before), (results["stored"], results["repeated"]))
        self.assertEqual(60, len(self.rows_of(url)))


class NewKeys(senders.ToStorage):
    """A mutant on the executors that creates new ids."""

    def __call__(self, path):
        with mock.patch.object(senders, "_row_key", lambda message: random.randbytes(8)):
            return super().__call__(path)


class ReplayToPostgresqlTest(ReplayToStorageTest):
    database = "postgresql"
    tasks = 2


class ReplayedRowsTest(ReplayCase):
    def replay(self, send):
        return super().replay(send, tasks=1)

    def test_unreadable_and_too_old_messages_are_counted_and_others_are_stored(self):
        self.publish([metric(1), b"no json", envelopes.metric(0, creation_time=1)])
        self.archiver().step()
        url = self.new_database()
        results = self.replay(self.to_storage(url, retention_days=100)).results
        self.assertEqual((1, 1), (results["unreadable"], results["refused"]))
        self.assertEqual(1, len(self.rows_of(url)))

    def test_logs_are_identified_by_their_ids(self):
        self.publish([Record(envelopes.log(number), message_id=b"%d" % number) for number in range(6)])
        self.archiver().step()
        url = self.new_database()
        send = self.to_storage(url, kind=Kind.LOGS)
        self.assertEqual(6, self.replay(send).results["stored"])
        self.assertEqual((0, 6), tuple(map(self.replay(send).results.get, ("stored", "repeated"))))

    # Rule 39
    def test_mutant_that_creates_new_ids_stores_logs_twice(self):
        self.publish([Record(envelopes.log(number)) for number in range(6)])
        self.archiver().step()
        url = self.new_database()
        kept = self.to_storage(url, kind=Kind.LOGS)
        send = NewKeys(kept.archive, kept.kind, kept.storage)
        self.assertEqual([6, 6], [self.replay(send).results["stored"] for _ in range(2)])


class CommandTest(ReplayCase):
    @periodic("CrashTest runs this command, and test_writer reads a truncated file")
    def test_an_archive_has_a_status_and_a_damaged_file_stops_its_replay(self):
        sent = self.publish(metric(number) for number in range(12))
        archived = self.run_command(self.configuration(), "archive", "--once", is_attached=True)
        self.assertEqual(0, archived.returncode, archived.stderr)
        self.assertIn("12 offsets done, 0 left", archived.stdout)
        self.assert_archived_once(sent)

        settings = cfg.ConfigOpts()
        settings(
            ["--config-file", self.configuration(name="status", others=f"[pipeline_aggregate]\ntopic = {self.topic}")]
        )
        status = job_statuses(settings)[1]
        batch = status.activity.last_batch
        self.assertEqual(("archive", self.group, 0, 0), (status.job, status.group, status.behind, status.due))
        self.assertEqual([(0, 6, 6), (1, 6, 6)], [dataclasses.astuple(each) for each in status.partitions])
        self.assertEqual((JobState.STOPPED, 12, 12), (status.state, batch.offsets, batch.records))

        cut = next(self.location.rglob("p*.parquet"))
        cut.write_bytes(cut.read_bytes()[:-1])
        configuration = self.configuration(replay="to = storage", url=self.new_database(), name="replay")
        damaged = self.run_command(configuration, "replay", is_attached=True)
        self.assertEqual(1, damaged.returncode)
        reported = [line for line in damaged.stderr.splitlines() if line.startswith("monasca-common pipeline run:")]
        self.assertEqual(1, len(reported), damaged.stderr)
        self.assertIn(f"ArchiveDamaged: {cut} is not a complete Parquet file", reported[0])

    @periodic("ReplayToKafkaTest counts the same in a dry run")
    def test_a_replay_without_execute_only_counts(self):
        self.publish(metric(number) for number in range(12))
        self.archiver().step()
        url = self.new_database()
        configuration = self.configuration(replay="to = storage", url=url, name="replay")
        arguments = ["replay", "--from", "2026-01-01T06:00:00Z", "--to", "2026-01-01T08:00:00Z"]
        dry = self.run_command(configuration, *arguments, is_attached=True)
        self.assertEqual(0, dry.returncode, dry.stderr)
        self.assertIn("matching", dry.stdout)
        self.assertIn("no message was sent", dry.stderr)
        self.assertEqual({}, self.rows_of(url))

        replayed = self.run_command(configuration, *arguments, "--execute", is_attached=True)
        self.assertEqual(0, replayed.returncode, replayed.stderr)
        self.assertEqual(8, len(self.rows_of(url)))


def facts(message):
    """Return the parts of a message that a replay keeps."""
    return (
        dict(message.headers())["message-id"],
        message.key() or b"",
        message.value() or b"",
        message.timestamp()[1],
        repr(message.headers()),
    )
