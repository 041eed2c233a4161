# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests of archive and replay, which run both jobs in this process and as commands."""

import os
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import sqlalchemy as sa

from monasca_common.kafka import failpoints
from monasca_common.kafka.message import Record
from monasca_common.pipeline.archive.batch import Archiver
from monasca_common.pipeline.archive.settings import ArchiveSettings
from monasca_common.pipeline.archive.store import open_file_system
from monasca_common.pipeline.source.topic import SourceTopic
from monasca_common.tests.checker import each_once
from monasca_common.tests.functional.pipeline import attached_driver, warm_daemon
from monasca_common.tests.functional.pipeline.pipeline_case import SPARK, KafkaPipelineCase, SharedSpark
from monasca_common.tests.functional.pipeline.pipeline_process_case import SECONDS, ReadOnlyFolder
from monasca_common.tests.unit.persister import envelopes

HOUR_MS = 3_600_000
SIX_MS = 1_767_247_200_000  # 2026-01-01 06:00 UTC

_CONFIGURATION = """\
[kafka]
bootstrap_servers = {servers}
[storage]
driver = {driver}
retention_days = 36525
[database]
connection = {url}
[spark]
master = local[2]
shuffle_partitions = 2
# A third of the time until the first batch: what lives for one need not be compiled well.
options = spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC
options = spark.python.daemon.module={daemon}
[pipeline_archive]
location = {location}
topic = {topic}
group_id = {group}
[pipeline_replay]
topic = {topic}
{replay}
{others}
"""


def metric(number, *, hours=3):
    """Return a metric; consecutive metrics are in consecutive hours and a second apart."""
    time_ms = SIX_MS + number % hours * HOUR_MS + number * 1000
    return Record(
        envelopes.metric(0, time_ms=time_ms, value=number, creation_time=SIX_MS // 1000), key=b"key %d" % (number % 5)
    )


class ArchiveCase(KafkaPipelineCase):
    spark_settings = SPARK

    def setUp(self):
        super().setUp()
        self.topic = self.new_topic()
        self.location = self.new_location()
        self.spark = self.useFixture(SharedSpark(self.spark_settings)).session

    def new_location(self):
        return self.folder / "archive"

    def new_topic(self, partitions=2):
        """Create a topic that keeps messages with old timestamps."""
        return self.fixture.topic(partitions, config={"retention.ms": "-1"})

    # The archive

    def archiver(self, *, clock=None, retention_days=0, **changes):
        stream = self.stream(**changes)
        topic = SourceTopic(stream.consumer)
        self.addCleanup(topic.close)
        settings = ArchiveSettings((stream,), str(self.location), retention_days)
        return Archiver(self.spark, settings, stream, topic, self.offset_store, clock)

    def table_of(self, name):
        files, base = open_file_system(str(self.location))
        return pq.read_table(f"{base}/{name}", filesystem=files, partitioning=None)

    def archived(self):
        """Return the rows that any reader of Parquet finds."""
        if not self.visible_files():
            return []
        return self.spark.read.parquet(str(self.location)).orderBy("topic", "partition", "offset").collect()

    def places(self):
        return [(row.topic, row.partition, row.offset) for row in self.archived()]

    def visible_files(self):
        """Return relative paths, without names that start with ``_`` or ``.``."""
        found = []
        for folder, folders, names in os.walk(self.location):  # ignores folders that are removed during the walk
            folders[:] = [name for name in folders if name[0] not in "_."]
            found += [
                os.path.relpath(os.path.join(folder, name), self.location) for name in names if name[0] not in "_."
            ]
        return sorted(found)

    def staged_files(self):
        return sorted(path.name for path in self.location.glob("_staging/**/*.staged"))

    @each_once()
    def assert_archived_once(self, sent):
        """``sent``: the result of `publish`."""
        self.assertEqual(sorted((self.topic, partition, offset) for _, partition, offset in sent), self.places())

    def manifest(self):
        with self.offset_store.reading() as connection:
            return connection.execute(sa.text("SELECT * FROM archive_file ORDER BY hour, name")).all()

    # The command

    def configuration(self, *, replay="", others="", url=None, name="pipeline"):
        path = self.folder / f"{name}.conf"
        facts = {"servers": self.cluster.bootstrap_servers, "driver": self.database, "location": self.location}
        facts |= {"url": url or self.url, "topic": self.topic, "group": self.group, "replay": replay, "others": others}
        facts["daemon"] = warm_daemon.__name__
        path.write_text(_CONFIGURATION.format(**facts))
        return str(path)

    def run_command(self, configuration, *arguments, fail_points="", is_attached=False):
        """Run `monasca-common pipeline run` in a separate process. ``is_attached``: see `attached_driver`."""
        module, environment = "monasca_common.cli.main", os.environ | {failpoints.ENVIRONMENT_VARIABLE: fail_points}
        if is_attached:
            module = attached_driver.__name__
            environment |= attached_driver.environment(self.spark)
        return subprocess.run(
            [sys.executable, "-m", module, "pipeline", "run", "--config-file", configuration, *arguments],
            cwd=self.useFixture(ReadOnlyFolder()).path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


class Watch(threading.Thread):
    """Open each file repeatedly as soon as it is visible to readers. ``faults`` names partial files and repeated
    records."""

    def __init__(self, case):
        super().__init__(daemon=True)
        self._case = case
        self._offsets = {}
        self._stop_now = threading.Event()
        self.looks = 0
        self.faults = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_now.set()
        self.join()

    def run(self):
        while not self._stop_now.is_set():
            self.look()
            self._stop_now.wait(0.01)

    def look(self):
        found = []
        for name in self._case.visible_files():
            if name not in self._offsets:
                try:
                    table = self._case.table_of(name)
                except Exception as error:  # any error of a reader of a partial file
                    self.faults.append(f"{name}: {error}")
                    continue
                columns = [table.column(column).to_pylist() for column in ("partition", "offset")]
                self._offsets[name] = list(zip(*columns, strict=True))
            found += self._offsets[name]
        if len(found) != len(set(found)):
            self.faults.append("records are there twice")
        self.looks += 1
