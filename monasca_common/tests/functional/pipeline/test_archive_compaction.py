# SPDX-License-Identifier: Apache-2.0
"""Small files become few, and every reader finds each record once: before, after and meanwhile."""

import contextlib
from unittest import mock

import fixtures
from oslo_config import cfg

from monasca_common.kafka import failpoints
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.pipeline.archive import layout
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.archive.store import Store
from monasca_common.pipeline.compaction import batch, job
from monasca_common.pipeline.compaction.batch import Compaction
from monasca_common.pipeline.errors import StagingLost
from monasca_common.pipeline.jobs.job import JobRequest, JobWatcher
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.pipeline.spark import session
from monasca_common.tests.functional.pipeline.archive_case import HOUR_MS, SIX_MS, ArchiveCase, Watch, metric
from monasca_common.tests.periodic import periodic

FAIL_POINTS = (
    "compaction.after_write",
    "compaction.inside_transaction",
    "compaction.after_commit",
    "compaction.exchanged",
)


class PatientWatch(Watch):
    """A file that was listed and is gone when it is opened was replaced meanwhile: the folder is listed again."""

    def look(self):
        faults = list(self.faults)
        super().look()
        if any("No such file" in fault for fault in self.faults[len(faults) :]):
            self.faults[:] = faults


class CompactionCase(ArchiveCase):
    def setUp(self):
        super().setUp()
        self.sent = []
        self.archive = self.archiver()
        for _ in range(3):
            self.archive_some()

    def archive_some(self):
        """Twelve records more, of three hours and two partitions: six files."""
        begun = len(self.sent)
        self.sent += self.publish([metric(number) for number in range(begun, begun + 12)])
        self.archive.step()

    def compact(self, *, from_ms=None, to_ms=None, **changes):
        settings = ArchiveSettings((self.stream(),), str(self.location), **changes)
        compaction = Compaction(self.spark, settings, Source(self.group, self.topic, None), self.offset_store)
        return compaction.run(from_ms, to_ms, JobWatcher())

    def assert_exact(self, files):
        self.assert_archived_once(self.sent)
        self.assertEqual(files, len(self.visible_files()))
        manifest = self.manifest()
        self.assertEqual({"placed"}, {row.state for row in manifest})
        folders = [layout.hour_folder(row.topic, row.hour) for row in manifest]
        paths = {f"{folder}/{row.name}" for folder, row in zip(folders, manifest, strict=True)}
        self.assertEqual(paths, set(self.visible_files()))
        self.assertEqual([], self.staged_files())
        self.assertEqual([], [path for path in self.folder.iterdir() if path.name.startswith(".")])


class CompactionTest(CompactionCase):
    def test_each_hour_and_partition_is_one_file_and_nothing_else_has_changed(self):
        before = [row.asDict() for row in self.archived()]
        with PatientWatch(self) as watch:
            progress = self.compact()
            watch.look()
        self.assertEqual([], watch.faults)
        self.assertEqual((36, 0), (progress.done, progress.left))
        self.assertEqual({"merged_files": 18, "new_files": 6}, progress.results)
        self.assert_exact(files=6)
        self.assertEqual(before, [row.asDict() for row in self.archived()])
        self.assertEqual(0, self.compact().done)
        self.archive_some()  # what comes later is a file of its own
        self.assert_exact(files=12)

    @periodic("an option; the other tests merge all hours")
    def test_only_the_hours_that_are_wanted(self):
        self.compact(from_ms=SIX_MS + HOUR_MS, to_ms=SIX_MS + 2 * HOUR_MS)
        self.assert_exact(files=14)

    @periodic("a variant of the merge that the first test verifies")
    def test_what_was_archived_without_columns_has_them_afterwards(self):
        self.compact(columns="parsed")
        self.assertEqual({"cpu.percent"}, {row.metric_name for row in self.archived()})
        self.assert_exact(files=6)

    @periodic("a variant of the merge that the first test verifies")
    def test_where_folders_cannot_be_exchanged_files_are_placed_and_then_removed(self):
        with mock.patch.object(Store, "exchange", lambda *_: False):
            self.compact()
        self.assert_exact(files=6)

    # Rule 38
    @periodic("CompactionCrashTest archives between a death and the next compaction")
    def test_a_batch_that_is_archived_meanwhile_stays(self):
        for point in ("compaction.after_write", "compaction.after_commit"):
            with self.meanwhile(point, self.archive_some), PatientWatch(self) as watch:
                self.compact()
                watch.look()
            self.assertEqual([], watch.faults, point)
            self.assert_archived_once(self.sent)
        self.compact()
        self.assert_exact(files=6)

    @periodic("test_manifest replaces a file once")
    def test_of_two_that_compact_one_is_told(self):
        with self.meanwhile("compaction.after_write", self.compact):
            self.assertRaises(StagingLost, self.compact)
        self.archiver().step()
        self.assert_exact(files=6)

    def meanwhile(self, point, deed):
        """``deed`` happens once, while a compaction is at that point."""
        waiting = [deed]

        def fail_point(name):
            if name == point and waiting:
                waiting.pop()()

        return mock.patch.object(batch, "fail_point", fail_point)

    @periodic("a variant of the merge that the first test verifies")
    def test_the_command_merges_what_each_topic_has(self):
        conf = cfg.ConfigOpts()
        conf(["--config-file", self.configuration()])
        self.useFixture(fixtures.MockPatchObject(session, "open_session", lambda *_: self.spark))
        self.useFixture(fixtures.MockPatchObject(session, "close_session"))
        told = []
        progress = job.CompactJob(conf).run(JobRequest(), JobWatcher(tell=told.append))
        self.assertEqual((36, 36), (progress.done, told[-1].done))
        self.assert_exact(files=6)


class CompactionCrashCase(CompactionCase):
    """It dies at each fail point, and another compaction, or the archive, does the rest."""

    def die_and(self, go_on):
        for fail_point in FAIL_POINTS:
            with PatientWatch(self) as watch:
                with failpoints.armed(fail_point, "raise"), contextlib.suppress(FailPointReached):
                    self.compact()
                    self.fail(f"{fail_point} was not reached")
                go_on()
                watch.look()
            self.assertEqual([], watch.faults, fail_point)
            self.assert_archived_once(self.sent)
            self.archive_some()
            self.archive_some()


class CompactionCrashTest(CompactionCrashCase):
    # Rule 38
    def test_another_compaction_does_the_rest(self):
        self.die_and(self.compact)


@periodic("CompactionCrashTest dies at the same fail points on SQLite")
class CompactionCrashPostgresqlTest(CompactionCrashCase):
    database = "postgresql"

    def test_the_archive_does_the_rest(self):
        def start():
            self.archive = self.archiver()
            self.archive.step()

        self.die_and(start)
        self.compact()
        self.assert_exact(files=6)
