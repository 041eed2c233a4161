# SPDX-License-Identifier: Apache-2.0
"""What ``pipeline status`` reports, over SQLite and the memory broker."""

from pathlib import Path

from oslo_config import cfg

from monasca_common.kafka.testing import MemoryKafka, VirtualClock
from monasca_common.pipeline.aggregate import periods
from monasca_common.pipeline.settings import aggregate_settings
from monasca_common.pipeline.status import job_statuses
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.pipeline_case import HOUR_MS

CONFIGURATION = """\
[kafka]
bootstrap_servers = memory:9092
driver = memory
[database]
connection = {url}
[pipeline_aggregate]
emit = {emit}
slack_seconds = 0
"""
NOON_MS = 1_767_268_800_000


class JobStatusCase(DatabaseCase):
    def setUp(self):
        super().setUp()
        self.kafka = self.useFixture(MemoryKafka())
        self.kafka.broker.create_topic("metrics", 2)
        self.now_ms = NOON_MS

    def configuration(self, emit="update"):
        path = Path(self.url.removeprefix("sqlite:///")).with_suffix(".conf")
        path.write_text(CONFIGURATION.format(url=self.url, emit=emit))
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(path)])
        return conf

    def status(self, **options):
        (status,) = job_statuses(self.configuration(**options), SetClock(self.now_ms))
        return status


class SetClock(VirtualClock):
    def __init__(self, now_ms):
        super().__init__()
        self.now_ms = now_ms

    def time_ms(self):
        return self.now_ms


class UnpublishedPeriodsTest(JobStatusCase):
    def setUp(self):
        super().setUp()
        settings = aggregate_settings(self.configuration())
        (self.specification, *_) = (
            each.id for each in settings.specifications.transforms.values() if each.period == "hourly"
        )
        self.job = settings.publisher.job
        self.touch(NOON_MS - HOUR_MS)
        self.touch(NOON_MS)

    def touch(self, start_ms, specification=None):
        with self.offset_store.writing() as connection:
            table = periods.aggregate_period
            provisional = start_ms >= NOON_MS
            row = {"job": self.job, "specification": specification or self.specification, "period_start": start_ms}
            connection.execute(table.insert().values(row | {"version": 1, "published": 0, "provisional": provisional}))

    def waiting(self, **options):
        status = self.status(**options)
        return status.due, status.still_open

    def test_an_open_period_is_to_be_published_if_each_change_is(self):
        self.assertEqual((2, 0), self.waiting(emit="update"))

    def test_an_open_period_is_not_to_be_published_if_only_final_ones_are(self):
        self.assertEqual((1, 1), self.waiting(emit="final"))

    def test_a_period_that_has_ended_is_to_be_published_although_no_job_has_closed_it(self):
        self.now_ms = NOON_MS + HOUR_MS
        self.assertEqual((2, 0), self.waiting(emit="final"))

    def test_what_is_published_is_neither(self):
        with self.offset_store.writing() as connection:
            connection.execute(periods.aggregate_period.update().values(published=1))
        self.assertEqual((0, 0), self.waiting(emit="final"))

    def test_a_period_of_a_specification_that_is_gone_is_told_until_retention_removes_it(self):
        self.touch(NOON_MS, "gone")
        self.assertEqual((2, 1), self.waiting(emit="final"))
