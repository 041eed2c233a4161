# SPDX-License-Identifier: Apache-2.0
"""The archive with a real Kafka and Spark: each record is stored once, in the folder of its hour, despite crashes
and concurrent drivers."""

import contextlib
import datetime
import signal
from unittest import mock

from monasca_common.kafka import failpoints
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.kafka.message import Record
from monasca_common.pipeline.archive import batch, manifest
from monasca_common.pipeline.archive.batch import Archiver
from monasca_common.pipeline.errors import AlreadyArchived, Fenced, StagingLost
from monasca_common.pipeline.jobs.durations import PartitionLag
from monasca_common.pipeline.source import offset_store
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.storage.sql.tables import kafka_offset
from monasca_common.tests.functional.pipeline.archive_case import HOUR_MS, SIX_MS, ArchiveCase, Watch, metric
from monasca_common.tests.functional.pipeline.pipeline_case import SetClock
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.persister import envelopes

FAIL_POINTS = ("archive.after_write", "archive.inside_transaction", "archive.before_rename", "archive.half_renamed")
DAY = datetime.date(2026, 1, 1)


class ArchiveTest(ArchiveCase):
    def test_each_record_is_archived_unchanged_in_the_folder_of_its_hour(self):
        headers = (("a", b"1"), ("b", None), ("a", b"\xff"))
        kafka_ms = SIX_MS + 5 * HOUR_MS + 7
        values = [
            envelopes.metric(0, time_ms=SIX_MS + 1),
            envelopes.alarm(0, now_ms=SIX_MS + HOUR_MS),
            envelopes.log(0, now_ms=SIX_MS + 2 * HOUR_MS),
            envelopes.event(0, now_ms=SIX_MS + 3 * HOUR_MS),
            b"what nobody can read",
            None,
        ]
        records = [
            Record(
                value, key=b"\x00key", headers=headers, timestamp_ms=kafka_ms, message_id=b"%d" % number, partition=1
            )
            for number, value in enumerate(values)
        ]
        self.producer.publish(self.topic, records)

        report = self.archiver(clock=SetClock(kafka_ms + 9000)).step()

        self.assertEqual((6, 6, 2, 5), (report.done, *map(report.results.get, ("records", "undated_records", "files"))))
        self.assertEqual({"plan", "write", "commit", "place"}, set(report.stage_seconds))
        # The newest record has Kafka's time.
        self.assertEqual((PartitionLag(self.topic, 1, 9.0),), report.lags)
        rows = self.archived()
        self.assertEqual(values, [row.value and bytes(row.value) for row in rows])
        self.assertEqual([(DAY, hour) for hour in (6, 7, 8, 9, 11, 11)], [(row.date, row.hour) for row in rows])
        self.assertEqual([(self.topic, 1, offset) for offset in range(6)], self.places())
        self.assertEqual({b"\x00key"}, {bytes(row.key) for row in rows})
        self.assertEqual({kafka_ms}, {_ms(row.timestamp) for row in rows})
        self.assertEqual([SIX_MS + 1, SIX_MS + HOUR_MS], [_ms(row.event_time) for row in rows[:2]])
        for number, row in enumerate(rows):
            kept = [(each.key, each.value and bytes(each.value)) for each in row.headers]
            self.assertEqual([*headers, ("message-id", b"%d" % number)], kept)

    def test_names_and_manifest_have_the_offsets_of_each_file(self):
        sent = self.publish(metric(number) for number in range(40))
        batch = self.archiver(max_offsets_per_trigger=20)
        reports = [batch.step(), batch.step(), batch.step()]

        self.assertEqual([(20, 20), (20, 0), (0, 0)], [(report.done, report.left) for report in reports])
        self.assert_archived_once(sent)
        rows = self.manifest()
        self.assertEqual(12, len(rows))  # two batches, two partitions, three hours
        self.assertEqual({"placed"}, {row.state for row in rows})
        self.assertEqual(40, sum(row.records for row in rows))
        for row in rows:
            beginning = f"p{row.partition:05}-{row.first_offset:018}-{row.last_offset:018}-"
            self.assertEqual(beginning, row.name.removesuffix(f"{row.batch}.parquet"))
        named = {f"topic={row.topic}/{_folder(row.hour)}/{row.name}" for row in rows}
        self.assertEqual(named, set(self.visible_files()))
        self.assertEqual([], self.staged_files())

    @periodic("a variant of the first test")
    def test_two_topics_share_a_location(self):
        other = self.new_topic(1)
        self.publish([metric(1)])
        self.publish([Record(metric(2).value, partition=0)], topic=other)
        self.archiver().step()
        self.archiver(topics=(other,)).step()
        self.assertEqual(sorted([(self.topic, 0, 0), (other, 0, 0)]), self.places())

    def test_hours_older_than_the_retention_are_removed_completely(self):
        clock = SetClock(SIX_MS + 24 * HOUR_MS + 59 * 60_000)
        self.publish([metric(number, hours=3) for number in range(12)])
        batch = self.archiver(clock=clock, retention_days=1)
        self.assertEqual(0, batch.step().results["expired_files"])  # that hour ends within the retention
        clock.now_ms += HOUR_MS

        report = batch.step()

        self.assertEqual(2, report.results["expired_files"])
        self.assertEqual({7, 8}, {row.hour for row in self.archived()})
        self.assertEqual(8, len(self.places()))
        self.assertFalse((self.location / f"topic={self.topic}" / _folder(SIX_MS)).exists())
        self.assertEqual(4, len(self.manifest()))

    @periodic("the normal run contains test_hours_older_than_the_retention_are_removed_completely")
    def test_an_interrupted_removal_is_finished(self):
        self.publish([metric(number) for number in range(12)])
        self.archiver().step()
        dying = self.archiver(clock=SetClock(SIX_MS + 400 * 24 * HOUR_MS), retention_days=1)
        with mock.patch.object(manifest, "remove_expired", side_effect=FailPointReached):
            self.assertRaises(FailPointReached, dying.step)
        self.assertEqual([], self.visible_files())
        self.archiver().step()
        self.assertEqual([], self.manifest())

    def test_another_group_cannot_use_the_same_location(self):
        self.publish([metric(1)])
        self.archiver().step()
        error = self.assertRaises(ConfigurationError, self.archiver(group_id="another").step)
        self.assertIn(repr(self.group), str(error))

    # Rule 38
    @periodic("CrashTest repeats batches that are in place")
    def test_a_reset_position_archives_no_record_twice(self):
        sent = self.publish(metric(number) for number in range(10))
        self.archiver().step()
        with self.offset_store.writing() as connection:
            connection.execute(kafka_offset.update().where(kafka_offset.c.partition == 1).values(next=2))
        error = self.assertRaises(AlreadyArchived, self.archiver().step)
        self.assertIn("offsets reset` moves it to 5", str(error))
        self.assert_archived_once(sent)


@periodic("SharedDatabaseConcurrentDriversTest runs the same tests on PostgreSQL")
class ConcurrentDriversTest(ArchiveCase):
    """Two drivers archive the same topic by mistake."""

    def setUp(self):
        super().setUp()
        self.sent = self.publish(metric(number) for number in range(30))
        self.one, self.other = self.archiver(), self.archiver()

    def meanwhile(self, deed, at="archive.after_write"):
        """Call ``deed`` once, when a step reaches that point."""
        waiting = [deed]

        def fail_point(name):
            if name == at and waiting:
                waiting.pop()()

        return mock.patch.object(batch, "fail_point", fail_point)

    def test_the_slower_driver_is_fenced_and_continues_after_the_other(self):
        with self.meanwhile(self.other.step):
            self.assertRaises(Fenced, self.one.step)
        self.assertEqual(0, self.one.step().results["records"])
        self.assert_archived_once(self.sent)
        self.assertEqual([], self.staged_files())

    # Rule 38
    @periodic("the normal run contains test_the_slower_driver_is_fenced_and_continues_after_the_other")
    def test_files_removed_as_orphans_are_written_again(self):
        def starts_and_dies():
            with failpoints.armed("archive.before_rename", "raise"):
                source = Source(self.group, self.topic, None)
                self.other._recover(source)

        with self.meanwhile(starts_and_dies):
            self.assertRaises(StagingLost, self.one.step)
        self.assertEqual([], self.manifest())
        self.assertEqual(30, self.one.step().results["records"])
        self.assert_archived_once(self.sent)

    def test_another_driver_can_place_committed_files(self):
        with self.meanwhile(self.other.step, at="archive.before_rename"):
            self.assertEqual(30, self.one.step().results["records"])
        self.assert_archived_once(self.sent)
        self.assertEqual({"placed"}, {row.state for row in self.manifest()})

    @periodic("mutant; the normal run contains a mutant of the persister")
    def test_mutant_without_the_fence_archives_records_twice(self):
        self.other._is_tidy = True  # as if it had been running before
        with (
            mock.patch.object(offset_store, "_hold", lambda *_: {}),
            mock.patch.object(manifest, "check_new"),
            self.meanwhile(self.other.step),
        ):
            self.one.step()
        self.assertEqual(60, len(self.places()))


class SharedDatabaseConcurrentDriversTest(ConcurrentDriversTest):
    database = "postgresql"


class CrashTest(ArchiveCase):
    """The command is killed at a fail point, and run again."""

    def check(self, fail_point):
        sent = self.publish(metric(number) for number in range(30))
        configuration = self.configuration()
        with Watch(self) as watch:
            died = self.run_command(
                configuration, "archive", "--once", fail_points=f"{fail_point}=kill", is_attached=True
            )
            self.assertEqual(-signal.SIGKILL, died.returncode, died.stderr)
            self.at_the_crash = self.visible_files(), self.staged_files()
            sent += self.publish(metric(number) for number in range(30, 40))
            batch = self.archiver()
            batch.step()
            self.assertEqual(0, batch.step().results["records"])
            watch.look()
        self.assertEqual([], watch.faults)
        self.assert_archived_once(sent)
        self.assertEqual([], self.staged_files())
        self.assertEqual({"placed"}, {row.state for row in self.manifest()})

    # Rule 38
    @periodic("a variant of test_a_kill_when_some_files_are_placed_changes_nothing")
    def test_a_kill_after_the_files_are_written_changes_nothing(self):
        self.check("archive.after_write")
        self.assertEqual((0, 6), tuple(map(len, self.at_the_crash)))

    def test_a_kill_within_the_transaction_changes_nothing(self):
        self.check("archive.inside_transaction")
        self.assertEqual((0, 6), tuple(map(len, self.at_the_crash)))

    @periodic("a variant of test_a_kill_when_some_files_are_placed_changes_nothing")
    def test_a_kill_before_the_files_are_placed_changes_nothing(self):
        self.check("archive.before_rename")
        self.assertEqual((0, 6), tuple(map(len, self.at_the_crash)))

    # Rule 38
    def test_a_kill_when_some_files_are_placed_changes_nothing(self):
        self.check("archive.half_renamed")
        self.assertEqual((1, 5), tuple(map(len, self.at_the_crash)))


@periodic("mutants of a rule that CrashTest verifies")
class MutantTest(ArchiveCase):
    """Each mutant lacks a guarantee, and the checks of `CrashTest` detect it. A fail point raises an exception
    instead of a kill; the state is the same, because the next step uses a new object."""

    def fails(self, fail_point):
        """Fail at this point, run again, and return the faults that the watch saw and whether the archive is exact."""
        sent = self.publish(metric(number) for number in range(30))
        with Watch(self) as watch:
            self.watch = watch
            with failpoints.armed(fail_point, "raise"), contextlib.suppress(FailPointReached):
                self.archiver().step()
            self.archiver().step()
            watch.look()
        return watch.faults, sorted(place[1:] for place in self.places()) == sorted(place[1:] for place in sent)

    def test_without_a_mutant_the_archive_is_exact(self):
        for fail_point in FAIL_POINTS:
            self.location = self.folder / fail_point
            self.topic = self.new_topic()
            self.assertEqual(([], True), self.fails(fail_point), fail_point)

    # Rule 38
    def test_mutant_that_places_files_before_the_commit_archives_records_twice(self):
        add = manifest.add

        def place_and_add(connection, source, files, now_ms):
            archiving_store = batch.Store(str(self.location))
            for file in files:
                archiving_store.place(file.staged, file.path)
            add(connection, source, files, now_ms)

        with mock.patch.object(manifest, "add", place_and_add):
            faults, is_exact = self.fails("archive.inside_transaction")
        self.assertIn("records are there twice", faults)
        self.assertFalse(is_exact)

    # Rule 38
    def test_mutant_that_removes_committed_files_loses_records(self):
        def forgets(archiver, source):
            archiver._store.remove_folder("_staging")

        with mock.patch.object(Archiver, "_recover", forgets):
            _, is_exact = self.fails("archive.before_rename")
        self.assertFalse(is_exact)

    # Rule 38
    def test_mutant_that_writes_to_a_visible_folder_shows_uncommitted_files(self):
        self.publish(metric(number) for number in range(30))
        with (
            mock.patch.object(batch.layout, "STAGING", "staging"),
            failpoints.armed("archive.after_write", "raise"),
        ):
            self.assertRaises(FailPointReached, self.archiver().step)
        self.assertNotEqual([], self.visible_files())

    def test_mutant_that_copies_instead_of_renaming_shows_partial_files(self):
        def copies(store, staged, final):
            source, target = self.location / staged, self.location / final
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as stream:
                for half in (source.read_bytes()[:1000], source.read_bytes()[1000:]):
                    stream.write(half)
                    stream.flush()
                    self.wait_for_two_looks()

        with mock.patch.object(batch.Store, "place", copies):
            faults, _ = self.fails("no.point")
        self.assertNotEqual([], faults)

    def wait_for_two_looks(self):
        """Wait until a second scan has started."""
        before = self.watch.looks
        self.wait_until(lambda: self.watch.looks >= before + 2, "two looks")


def _ms(moment):
    return round(moment.astimezone(datetime.UTC).timestamp() * 1000)


def _folder(hour_ms):
    return datetime.datetime.fromtimestamp(hour_ms / 1000, datetime.UTC).strftime("date=%Y-%m-%d/hour=%-H")
