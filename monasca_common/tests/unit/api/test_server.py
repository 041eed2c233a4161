# SPDX-License-Identifier: Apache-2.0
from monasca_common.api.server import start_line
from monasca_common.api.settings import api_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class TestStartLine(ConfigurationTestCase):
    def line(self, **groups):
        conf = self.with_kafka(**groups)
        return start_line(conf, api_settings(conf), "127.0.0.1:8070")

    def test_it_names_address_topics_brokers_and_database_and_no_secret(self):
        line = self.line(database="connection = postgresql://me:hush@db/monasca", storage="driver = postgresql")
        self.assertRegex(
            line,
            r"^api \S+ started: at 127\.0\.0\.1:8070; workers 1; authentication keystone; "
            r"writes metrics, log, monevents; "
            r"to brokers kafka\.example\.org:9092; reads database postgresql://db/monasca$",
        )

    def test_without_a_database_it_names_none(self):
        self.assertNotIn("database", self.line())

    def test_a_database_that_is_only_written_is_not_named(self):
        self.assertNotIn("database", self.line(influxdb="ip_address = influx.example.org"))
