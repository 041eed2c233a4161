# SPDX-License-Identifier: Apache-2.0
import json

from testtools.matchers import Contains

from monasca_common.pipeline.aggregate.job import AggregateJob
from monasca_common.pipeline.archive.job import ArchiveJob
from monasca_common.pipeline.backfill.job import BackfillJob
from monasca_common.pipeline.errors import InvalidSpecifications
from monasca_common.pipeline.replay.job import ReplayJob
from monasca_common.pipeline.replay.settings import replay_settings
from monasca_common.pipeline.settings import (
    OTLP_MOST_OFFSETS,
    JobStatusSettings,
    aggregate_settings,
    backfill_settings,
    list_opts,
    spark_settings,
)
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row

LOOKBACK = ("duplicates_lookback = 500",)
DATABASE = "connection = sqlite:////tmp/nowhere.sqlite"


class AggregateOptionsTest(ConfigurationTestCase):
    def settings(self, *lines, **groups):
        groups.setdefault("database", DATABASE)
        return aggregate_settings(self.with_kafka(**{"pipeline_aggregate": "\n".join(lines), **groups}))

    def assert_refused(self, line, *texts):
        reported = self.refused(self.settings, line)
        for text in (line.partition(" =")[0], *texts):
            self.assertThat(reported, Contains(text))

    def test_the_defaults_aggregate_metrics_by_the_shipped_specifications(self):
        settings = self.settings()
        stream = settings.stream
        self.assertEqual(("metrics", "spark-aggregate", "metrics"), (stream.topic, stream.group, settings.output_topic))
        self.assertEqual(26, len(settings.specifications.transforms))
        self.assertEqual(("update", 600, 45), (settings.emit, settings.slack_seconds, settings.retention_days))
        self.assertEqual("sqlite:////tmp/nowhere.sqlite", stream.connection)

    def test_the_look_back_for_duplicates_is_0_by_default(self):
        self.assertEqual((0, 500), tuple(self.settings(*line).limits.duplicates_lookback for line in ((), LOOKBACK)))

    def test_the_job_reports_to_the_audit_if_it_is_enabled(self):
        self.assertIsNone(self.settings().stream.audit)
        audited = self.settings(audit="enabled = true\nfolder = /nowhere").stream.audit
        self.assertEqual((True, "/nowhere"), (audited.enabled, audited.folder))

    def test_the_connection_of_the_job_overrides_the_common_one(self):
        self.assertEqual("sqlite:////own", self.settings("connection = sqlite:////own").stream.connection)

    def test_the_producer_of_the_job_does_not_use_the_common_transactional_id(self):
        conf = self.with_kafka("transactional_id = api", database=DATABASE)
        self.assertIsNone(aggregate_settings(conf).stream.producer.transactional_id)

    def test_a_period_may_not_be_removed_while_it_is_open(self):
        for slack, lines in ((86_400, ("retention_days = 1", "slack_seconds = 86400")), (600, ())):
            self.assertEqual(slack, self.settings(*lines).slack_seconds)
        refusal = self.refused(self.settings, "retention_days = 1", "slack_seconds = 86401")
        self.assertIn("slack_seconds", refusal)
        self.assertIn("exceeds retention_days", refusal)

    def test_each_invalid_value_is_refused_by_name(self):
        for line in (
            "emit = sometimes",
            "slack_seconds = -1",
            "slack_seconds = long",
            "retention_days = 0",
            "trigger_seconds = -1",
            "max_offsets_per_trigger = 0",
            "min_partitions = -1",
            "duplicates_lookback = -1",
            "status_port = 70000",
            "start = whenever",
        ):
            self.assert_refused(line)

    def test_a_misspelt_option_is_refused(self):
        self.assert_refused("slack_second = 3")

    def test_several_topics_are_refused(self):
        self.assert_refused("topic = a,b", "this job reads one")

    def test_the_format_of_the_topic_is_that_of_the_persister(self):
        own = "topic = otlp_metrics\nformat = otlp_proto\notlp_tenant = t\notlp_tenant_header = h\nthreads = 3"
        storage = "driver = sqlite\nmax_dimensions = 7"
        stream = self.settings("topic = otlp_metrics", kafka_metrics=own, storage=storage).stream
        self.assertEqual(("t", "h", 7), (stream.otlp.otlp_tenant, stream.tenant_header, stream.max_dimensions))
        self.assertEqual("otlp_metrics as spark-aggregate, in otlp_proto", stream.facts()["reads"])
        self.assertEqual(OTLP_MOST_OFFSETS, stream.max_offsets_per_trigger)
        lines = ("topic = otlp_metrics", "max_offsets_per_trigger = 9")
        self.assertEqual(9, self.settings(*lines, kafka_metrics=own).stream.max_offsets_per_trigger)
        for stream in (self.settings(kafka_metrics=own).stream, self.settings("topic = otlp_metrics").stream):
            self.assertEqual(
                (None, None, 1_000_000), (stream.otlp, stream.tenant_header, stream.max_offsets_per_trigger)
            )

    def test_aggregates_are_not_written_to_a_topic_of_otlp_nor_read_from_its_archive(self):
        own = "topic = otlp_metrics\nformat = otlp_proto\notlp_tenant = t"
        lines = ("topic = otlp_metrics", "output_topic = otlp_metrics")
        text = self.refused(self.settings, *lines, kafka_metrics=own)
        self.assertThat(text, Contains("output_topic in group [pipeline_aggregate] is otlp_metrics"))
        conf = self.with_kafka(
            database=DATABASE,
            kafka_metrics=own,
            pipeline_aggregate="topic = otlp_metrics",
            pipeline_archive="topic = otlp_metrics\nlocation = /archive",
            pipeline_backfill="source = archive",
        )
        self.assertThat(self.refused(BackfillJob, conf), Contains("backfill from kafka"))

    def test_a_missing_file_is_an_error(self):
        reported = self.refused(self.settings, "transform_specs = /nowhere/x.jsonl")
        self.assertThat(reported, Contains("/nowhere/x.jsonl: No such file"))

    def test_an_invalid_specification_is_an_error_with_its_file_and_row(self):
        row = shipped_row("mem_total_all", usage_fetch_operation="median")
        pre = self.path_of(json.dumps(pre_row("cpu", "mem_total_all")))
        transforms = self.path_of(json.dumps(row))
        error = self.assertRaises(
            InvalidSpecifications, self.settings, f"pre_transform_specs = {pre}", f"transform_specs = {transforms}"
        )
        self.assertThat(str(error), Contains(f"{transforms} row 1: aggregation_params_map.usage_fetch_operation"))

    def test_an_unescaped_dollar_in_a_password_is_reported_without_the_password(self):
        reported = self.refused(self.settings, "connection = postgresql://u:pa$$w$ord@h/d")
        self.assertThat(reported, Contains("connection in group [pipeline_aggregate]"))
        self.assertNotIn("ord", reported.replace("words", "").replace("password", ""))

    def test_the_settings_show_no_secret(self):
        self.assertNotIn("pass", repr(self.settings("connection = postgresql://u:pass@h/d")))


class FactsTest(ConfigurationTestCase):
    def test_the_start_line_has_topics_and_database_without_secrets(self):
        conf = self.with_kafka(
            database="connection = postgresql://me:hush@db/monasca", pipeline_archive="location = s3://key:hush@bucket"
        )
        aggregate = AggregateJob(conf).facts()
        self.assertEqual("metrics as spark-aggregate", aggregate["reads"])
        self.assertEqual("postgresql://db/monasca", aggregate["keeps_state_in"])
        self.assertEqual("native", aggregate["with_driver"])
        self.assertEqual("s3://bucket", ArchiveJob(conf).facts()["into"])
        conf = self.with_kafka(
            database="connection = postgresql://me:hush@db/monasca",
            pipeline_archive="location = s3://key:hush@bucket",
            pipeline_replay="output_topic = again",
        )
        replay = ReplayJob(conf).facts()
        self.assertEqual(("s3://bucket", "topic again"), (replay["from_archive"], replay["to"]))
        for facts in (aggregate, replay, ArchiveJob(conf).facts(), BackfillJob(conf).facts()):
            self.assertNotIn("hush", str(facts))


class StatusOptionsTest(ConfigurationTestCase):
    def status(self, read, *lines):
        """Return the status options as read by the job."""
        return read(self.with_kafka(pipeline_archive="location = /archive", database=DATABASE, **dict(lines))).status

    def test_backfill_and_replay_have_their_own_status_ports(self):
        jobs = (
            (backfill_settings, "pipeline_backfill", ""),
            (replay_settings, "pipeline_replay", "output_topic = x"),
        )
        for read, group, more in jobs:
            reported = self.status(read, (group, f"{more}\nstatus_port = 8073\nstatus_host = 0.0.0.0"))
            self.assertEqual(JobStatusSettings("0.0.0.0", 8073), reported)
            self.assertEqual(JobStatusSettings(), self.status(read, (group, more)))


class SparkOptionsTest(ConfigurationTestCase):
    def settings(self, *lines):
        return spark_settings(self.with_kafka(spark="\n".join(lines)))

    def test_options_of_spark_are_read_one_per_line(self):
        settings = self.settings("options = spark.a = 1=2", "options = spark.b=$$x")
        self.assertEqual({"spark.a": "1=2", "spark.b": "$x"}, dict(settings.options))
        self.assertNotIn("$x", repr(settings))

    def test_a_line_without_an_equals_sign_is_refused_and_not_shown(self):
        for line in ("spark.hidden", "= hidden"):
            reported = self.refused(self.settings, f"options = {line}")
            self.assertThat(reported, Contains("options in group [spark]"))
            self.assertNotIn("hidden", reported)

    def test_an_invalid_option_is_refused_by_name(self):
        for line in ("shuffle_partitions = 0", "shuffle_partitions = many", "master_url = x", "packages = a:b:1"):
            self.assertThat(self.refused(self.settings, line), Contains(line.partition(" =")[0]))

    def test_every_option_has_a_help_text(self):
        groups = dict(list_opts())
        self.assertLessEqual({"spark", "pipeline_aggregate"}, set(groups))
        for options in groups.values():
            self.assertEqual([], [option.name for option in options if not option.help])
