# SPDX-License-Identifier: Apache-2.0
from monasca_common.api.server import start_line
from monasca_common.api.settings import api_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class TestStartLine(ConfigurationTestCase):
    def line(self, *kafka, **groups):
        conf = self.with_kafka(*kafka, **groups)
        return start_line(conf, api_settings(conf), "127.0.0.1:8070")

    def test_the_start_line_has_address_topics_brokers_and_database_without_secrets(self):
        line = self.line(database="connection = postgresql://me:hush@db/monasca", storage="driver = postgresql")
        self.assertRegex(
            line,
            r"^api \S+ started: at 127\.0\.0\.1:8070; workers 1; authentication keystone; "
            r"writes metrics, log, monevents; "
            r"to brokers kafka\.example\.org:9092; with driver native; reads database postgresql://db/monasca$",
        )

    def test_the_start_line_omits_a_missing_database(self):
        self.assertNotIn("database", self.line())

    def test_the_start_line_omits_a_database_that_cannot_be_read(self):
        self.assertNotIn("database", self.line(influxdb="ip_address = influx.example.org"))

    def test_the_start_line_has_the_driver_of_a_producer_that_is_not_transactional(self):
        self.assertIn("with driver native", self.line("transactional_id = agent-1"))
