# SPDX-License-Identifier: Apache-2.0
from testtools.matchers import Contains

from monasca_common.pipeline.archive.settings import archive_settings, has_archive
from monasca_common.pipeline.replay.settings import KafkaTarget, StorageTarget, replay_settings
from monasca_common.storage.base import Kind
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

DATABASE = "connection = sqlite:////tmp/nowhere.sqlite"
HERE = "location = /archive"


class ArchiveOptionsTest(ConfigurationTestCase):
    def settings(self, *lines):
        return archive_settings(self.with_kafka(database=DATABASE, pipeline_archive="\n".join(lines)))

    def test_by_default_metrics_are_archived_without_a_time_limit(self):
        settings = self.settings(HERE)
        (stream,) = settings.streams
        self.assertEqual(("metrics", "spark-archive", 300.0), (stream.topic, stream.group, stream.trigger_seconds))
        self.assertEqual(("/archive", 0), (settings.location, settings.retention_days))
        self.assertEqual("sqlite:////tmp/nowhere.sqlite", stream.connection)

    def test_each_topic_is_read_separately(self):
        streams = self.settings(HERE, "topic = metrics, log").streams
        self.assertEqual([("metrics",), ("log",)], [stream.consumer.topics for stream in streams])

    def test_a_location_is_required(self):
        self.assertThat(self.refused(self.settings), Contains("location in group [pipeline_archive]"))

    def test_the_archive_exists_if_its_location_is_set(self):
        self.assertFalse(has_archive(self.with_kafka()))
        self.assertTrue(has_archive(self.with_kafka(pipeline_archive=HERE)))

    def test_an_invalid_value_and_a_removed_option_are_refused_by_name(self):
        for line in (
            "retention_days = -1",
            "compression = zstd",
            "columns = raw",
            "trigger_seconds = -1",
            "retention = 3",
        ):
            self.assertThat(self.refused(self.settings, HERE, line), Contains(line.partition(" ")[0]))

    def test_the_location_is_not_shown_because_it_may_contain_a_password(self):
        self.assertNotIn("secret", repr(self.settings("location = s3://key:secret@bucket")))


class ReplayOptionsTest(ConfigurationTestCase):
    def settings(self, *lines, archive=HERE, kafka=""):
        conf = self.with_kafka(kafka, database=DATABASE, pipeline_archive=archive, pipeline_replay="\n".join(lines))
        return replay_settings(conf)

    def test_replay_can_publish_to_kafka(self):
        settings = self.settings("output_topic = again")
        self.assertEqual(("/archive", "metrics"), (settings.location, settings.topic))
        self.assertIsInstance(settings.target, KafkaTarget)
        self.assertEqual("again", settings.target.topic)

    def test_replay_can_write_to_storage(self):
        target = self.settings("to = storage", "kind = logs").target
        self.assertIsInstance(target, StorageTarget)
        self.assertEqual((Kind.LOGS, "sqlite:////tmp/nowhere.sqlite"), (target.kind, target.storage.connection))

    def test_an_output_topic_is_required(self):
        self.assertThat(self.refused(self.settings), Contains("output_topic in group [pipeline_replay]"))

    def test_the_location_of_the_archive_is_required(self):
        refusal = self.refused(self.settings, "output_topic = again", archive="")
        self.assertThat(refusal, Contains("location in group [pipeline_archive]"))

    def test_a_transactional_id_is_refused_because_executors_share_no_transaction(self):
        refusal = self.refused(self.settings, "output_topic = again", kafka="transactional_id = x")
        self.assertThat(refusal, Contains("transactional_id"))

    def test_an_invalid_replay_option_is_refused_by_name(self):
        for line in ("name = x", "tenant = x", "to = nowhere", "kind = numbers", "names = x"):
            refusal = self.refused(self.settings, "output_topic = again", line)
            self.assertThat(refusal, Contains(line.partition(" ")[0]))
