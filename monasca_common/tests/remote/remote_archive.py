# SPDX-License-Identifier: Apache-2.0
"""Shared tests for archives in remote file systems."""

import signal

import pyarrow.parquet as pq

from monasca_common.kafka import failpoints
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.archive.store import open_file_system
from monasca_common.pipeline.replay.senders import MatchingCount
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.tests.functional.pipeline.archive_case import Watch, expected_rows, metric


class RemoteArchive:
    """A mixin for an `ArchiveCase` whose archive is not a folder. Spark reads it with Hadoop's own client."""

    @property
    def readers_location(self):
        return self.location

    def table_of(self, name):
        files, base = open_file_system(self.location)
        return pq.read_table(f"{base}/{name}", filesystem=files, partitioning=None)

    def visible_files(self):
        return [name for name in self.all_files() if not any(part[0] in "_." for part in name.split("/"))]

    def staged_files(self):
        return [name.rpartition("/")[2] for name in self.all_files() if name.startswith("_staging/")]

    def all_files(self):
        """Return the relative paths of all files, in order."""
        raise NotImplementedError

    def committed(self):
        source = Source(self.group, self.topic, None)
        with self.offset_store.reading() as connection:
            return manifest.find(connection, source, manifest.FileState.COMMITTED)


class RemoteReplay(RemoteArchive):
    """A mixin for an `ArchiveCase`."""

    def test_a_replay_that_is_killed_and_repeated_stores_each_row_once(self):
        sent = [metric(number) for number in range(60)]
        self.publish(sent)
        archiving = self.archiver(max_offsets_per_trigger=20)
        while archiving.step().left:
            pass
        url = self.new_database()
        configuration = self.configuration(replay="to = storage", url=url, name="replay")
        died = self.run_command(configuration, "replay", "--execute", fail_points="replay.after_some=kill")
        self.assertEqual(-signal.SIGKILL, died.returncode, died.stderr)
        self.assertTrue(0 < len(self.rows_of(url)) < 60)
        for _ in range(2):
            again = self.run_command(configuration, "replay", "--execute")
            self.assertEqual(0, again.returncode, again.stderr)
            self.assertEqual(expected_rows([record.value for record in sent]), self.rows_of(url))

    def assert_no_replay(self):
        error = self.assertRaises(ConfigurationError, self.replay, MatchingCount(self.archive()))
        path = self.location.partition("://")[2]
        self.assertIn(f"{path}/topic={self.topic} does not exist", str(error))

    def test_a_replay_from_a_missing_archive_names_the_path(self):
        self.assert_no_replay()


def go_on_under_watch(case):
    """Let another process continue with the committed files, while a reader watches."""
    with Watch(case) as watch:
        case.archiver().step()
        watch.look()
    case.assertEqual([], watch.faults)
    case.assertEqual([], case.staged_files())


def die_before_placing(case):
    with failpoints.armed("archive.before_rename", "raise"):
        case.assertRaises(FailPointReached, case.archiver().step)
