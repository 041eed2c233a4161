# SPDX-License-Identifier: Apache-2.0
from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

_STORAGE = "[database]\nconnection = sqlite:////var/lib/monasca/monasca.sqlite\n"


class AlarmsDatabaseTest(ConfigurationTestCase):
    def test_it_is_the_storages_where_that_is_sql(self):
        settings = database_settings(self.configured(f"[storage]\nread_timeout_seconds = 3\n{_STORAGE}"))
        self.assertEqual(
            ("sqlite", "sqlite:////var/lib/monasca/monasca.sqlite", 3),
            (settings.driver, settings.connection, settings.read_timeout_seconds),
        )

    def test_its_own_url_counts_with_the_bounds_of_storage(self):
        own = "[alarms]\nconnection = postgresql://u:p@h/alarms\n"
        for storage in ("", _STORAGE, "[storage]\ndriver = influxdb\n[database]\nconnection = influxdb://h/mon\n"):
            settings = database_settings(self.configured(own + storage))
            self.assertEqual(("postgresql", "postgresql://u:p@h/alarms"), (settings.driver, settings.connection))
        settings = database_settings(self.configured(f"{own}[storage]\nread_connections = 3\n"))
        self.assertEqual(3, settings.read_connections)

    def test_influxdb_cannot_hold_them_which_is_said_with_the_remedy(self):
        conf = self.configured("[storage]\ndriver = influxdb\n[database]\nconnection = influxdb://h/mon\n")
        error = self.assertRaises(NoAlarmsDatabase, database_settings, conf)
        self.assertIn("[storage] driver is influxdb, which cannot hold alarm definitions", str(error))
        self.assertIn("set connection in group [alarms]", str(error))

    def test_no_database_at_all_is_said(self):
        error = self.assertRaises(NoAlarmsDatabase, database_settings, self.configured(""))
        self.assertIn("neither connection in group [alarms] nor that in [database] is set", str(error))

    def test_another_url_is_refused_and_not_shown(self):
        said = self.refused(database_settings, self.configured("[alarms]\nconnection = mysql://u:hush@h/mon\n"))
        self.assertIn("connection in group [alarms] is not a URL of postgresql or sqlite", said)
        self.assertNotIn("hush", said)
