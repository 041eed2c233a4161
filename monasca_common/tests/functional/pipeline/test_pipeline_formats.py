# SPDX-License-Identifier: Apache-2.0
"""A topic with metrics in JSON and in Avro: the aggregates equal those of the same metrics in JSON."""

from dataclasses import replace

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import RegistryUnavailable
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.models import avro
from monasca_common.runtime.envelopes import EnvelopeWriter
from monasca_common.tests.functional.pipeline.archive_case import ArchiveCase, metric
from monasca_common.tests.functional.pipeline.pipeline_case import CpuCase, cpu
from monasca_common.tests.periodic import periodic

META = {"tenantId": "t", "region": "r"}


@periodic("the normal run contains the unit tests of each reader")
class FormatsTest(CpuCase):
    def setUp(self):
        super().setUp()
        self.registry = self.useFixture(MemoryRegistry())
        self.settings = SchemaRegistrySettings(url=self.registry.url, timeout_seconds=5.0)
        self.writer = EnvelopeWriter(replace(self.settings, auto_register=True), avro.METRICS, self.topic)

    def send_in_avro(self, *values):
        sent = self.publish(self.writer.values(list(values)))
        in_json = dict(zip(self.writer.values(list(values)), values, strict=True))
        self.sent += [(in_json[value], partition, offset) for value, partition, offset in sent]

    def check(self, **limits):
        job = self.job(registry=self.settings, **limits)
        self.send(*(cpu(minute, minute) for minute in range(0, 40, 2)))
        self.send_in_avro(*(cpu(minute, minute, host="b", meta=META) for minute in range(1, 40, 2)))
        self.publish([self.writer.values([cpu(1, 5, meta=META)])[0][:-4]])
        total = self.until_quiet(job)
        self.assert_exact()
        self.assertEqual(1, total["rejected"])

    def test_executors_read_both_formats(self):
        self.check(one_task_offsets=0)

    def test_executors_decode_while_the_registry_is_unavailable(self):
        job = self.job(registry=self.settings, one_task_offsets=0)
        self.send_in_avro(*(cpu(minute, minute, meta=META) for minute in range(10)))
        self.until_quiet(job)
        self.registry.stop()
        self.send_in_avro(*(cpu(minute, minute, host="b", meta=META) for minute in range(10, 40)))
        self.until_quiet(job)
        self.assert_exact()

    def test_the_driver_reads_both_formats_of_a_small_batch(self):
        self.check()

    def test_a_batch_waits_for_the_registry(self):
        job = self.job(registry=self.settings)
        self.send_in_avro(*(cpu(minute, minute, meta=META) for minute in range(40)))
        self.registry.stop()
        self.assertRaises(RegistryUnavailable, job.step)
        self.registry.start()
        self.wait_until(lambda: self.attempt(job), what="the next attempt")
        self.until_quiet(job)
        self.assert_exact()

    def attempt(self, job):
        try:
            return job.step().done
        except RegistryUnavailable:  # during the back-off
            return 0


@periodic("the normal run archives JSON")
class ArchiveFormatsTest(ArchiveCase):
    def test_a_record_in_avro_is_archived_unchanged_in_the_folder_of_its_hour(self):
        registry = self.useFixture(MemoryRegistry())
        settings = SchemaRegistrySettings(url=registry.url, timeout_seconds=5.0)
        writer = EnvelopeWriter(replace(settings, auto_register=True), avro.METRICS, self.topic)
        records = [metric(number) for number in range(6)]
        values = writer.values([record.value for record in records])
        sent = self.publish(
            [each if number % 2 else replace(each, value=values[number]) for number, each in enumerate(records)]
        )

        report = self.archiver(registry=settings).step()

        self.assertEqual((6, 0), (report.results["records"], report.results["undated_records"]))
        self.assert_archived_once(sent)
        self.assertEqual({6, 7, 8}, {row.hour for row in self.archived()})
