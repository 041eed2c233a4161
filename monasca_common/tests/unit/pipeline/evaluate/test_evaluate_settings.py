# SPDX-License-Identifier: Apache-2.0
from testtools.matchers import Contains

from monasca_common.pipeline.evaluate.job import EvaluateJob
from monasca_common.pipeline.evaluate.settings import evaluate_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

DATABASE = "connection = sqlite:////tmp/nowhere.sqlite"


class EvaluateOptionsTest(ConfigurationTestCase):
    def settings(self, *lines, database=DATABASE, **groups):
        return evaluate_settings(self.with_kafka(database=database, pipeline_evaluate="\n".join(lines), **groups))

    def test_by_default_metrics_are_evaluated_every_second(self):
        settings = self.settings()
        stream = settings.stream
        self.assertEqual(("metrics", "spark-evaluate", 1.0), (stream.topic, stream.group, stream.trigger_seconds))
        self.assertEqual(("alarm-state-transitions", 30), (settings.alarm_transitions_topic, settings.delay_seconds))

    def test_state_is_stored_in_the_alarms_database(self):
        alarms = "connection = sqlite:////tmp/alarms.sqlite"
        self.assertEqual("sqlite:////tmp/alarms.sqlite", self.settings(alarms=alarms).stream.connection)
        self.assertEqual("sqlite:////tmp/nowhere.sqlite", self.settings().stream.connection)

    def test_the_format_of_the_topic_is_that_of_the_persister(self):
        own = "topic = otlp_metrics\nformat = otlp_proto\notlp_tenant = t"
        self.assertEqual("t", self.settings("topic = otlp_metrics", kafka_metrics=own).stream.otlp.otlp_tenant)
        self.assertIsNone(self.settings(kafka_metrics=own).stream.otlp)

    def test_the_limits_of_metrics_are_those_of_storage_even_with_an_own_database(self):
        groups = {"alarms": "connection = sqlite:////tmp/alarms.sqlite", "storage": "max_dimensions = 200"}
        otlp = "topic = metrics\nformat = otlp_proto\notlp_tenant = t"
        for database in (DATABASE, ""):
            for topic in ("", otlp):
                stream = self.settings(database=database, kafka_metrics=topic, **groups).stream
                self.assertEqual((200, bool(topic)), (stream.max_dimensions, stream.otlp is not None))

    def test_each_invalid_evaluation_option_is_refused_by_name(self):
        lines = ("delay_seconds = -1", "outage_grace_seconds = x", "duplicates_lookback = -1", "topic = a, b")
        for line in (*lines, "connection = sqlite:///x"):
            self.assertThat(self.refused(self.settings, line), Contains(line.partition(" ")[0]))

    def test_the_start_line_names_the_topics_and_the_database(self):
        facts = EvaluateJob(self.with_kafka(database="connection = postgresql://me:hush@db/monasca")).facts()
        self.assertEqual(("metrics as spark-evaluate", "alarm-state-transitions"), (facts["reads"], facts["writes"]))
        self.assertNotIn("hush", str(facts))
