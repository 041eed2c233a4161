# SPDX-License-Identifier: Apache-2.0

from monasca_common.storage import load_storage
from monasca_common.storage.base import Kind
from monasca_common.storage.settings import RowLimits, row_limits, storage_settings
from monasca_common.storage.sqlite import SqliteStorage
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

_URL = "connection = sqlite:////var/lib/monasca/monasca.sqlite"


class StorageOptionsTest(ConfigurationTestCase):
    def storage(self, *lines, database=_URL):
        return self.configured("\n".join(["[storage]", *lines, "[database]", database]) + "\n")

    def test_only_a_url_selects_sqlite(self):
        storage = load_storage(self.storage())
        self.assertIsInstance(storage, SqliteStorage)
        self.assertEqual("/var/lib/monasca/monasca.sqlite", str(storage.path))

    def test_a_kind_can_have_its_own_retention(self):
        settings = storage_settings(self.storage("retention_days = 30", "logs_retention_days = 7"))
        self.assertEqual([30, 30, 7, 30], [settings.retention_of(kind) for kind in Kind])

    def test_limits_of_rows_are_read_without_a_database(self):
        self.assertEqual(RowLimits(), row_limits(self.configured("")))
        limits = row_limits(self.configured("[storage]\nretention_days = 30\nlogs_retention_days = 7\n"))
        self.assertEqual([30, 30, 7, 30], [limits.retention_of(kind) for kind in Kind])
        self.assertIn("max_dimensions", self.refused(row_limits, self.configured("[storage]\nmax_dimensions = 0\n")))

    def test_the_influxdb_driver_reserves_the_names_of_its_own_measurements(self):
        own = frozenset({"alarm_state_history"})
        self.assertEqual(own, row_limits(self.configured("[storage]\ndriver = influxdb\n")).reserved_names)
        self.assertEqual(own, row_limits(self.configured("[influxdb]\nip_address = host\n")).reserved_names)
        self.assertEqual(frozenset(), row_limits(self.storage()).reserved_names)
        settings = storage_settings(self.storage("driver = influxdb", database="connection = influxdb://host/monasca"))
        self.assertEqual(own, settings.reserved_names)

    def test_rows_can_be_more_than_a_week_ahead(self):
        self.assertEqual(
            11 * 86_400, storage_settings(self.storage("future_tolerance_seconds = 950400")).future_tolerance_seconds
        )

    def test_a_connection_is_required(self):
        self.assertIn("connection in group [database] is not set", self.refused(load_storage, self.configured("")))

    def test_an_unknown_driver_is_refused_with_the_known_ones(self):
        refusal = self.refused(
            load_storage, self.storage("driver = mysql", database="connection = mysql://u:secret@h/d")
        )
        self.assertIn("use one of influxdb, postgresql, prometheus, sqlite", refusal)
        self.assertNotIn("secret", refusal)

    def test_driver_and_url_must_agree(self):
        refusal = self.refused(load_storage, self.storage(database="connection = postgresql://u:secret@h/d"))
        self.assertIn("'postgresql', but driver in group [storage] is 'sqlite'", refusal)
        self.assertNotIn("secret", refusal)

    def test_a_url_can_include_the_client_library(self):
        self.assertIsInstance(
            load_storage(self.storage(database=_URL.replace("sqlite:", "sqlite+pysqlite:"))), SqliteStorage
        )

    def test_a_value_that_is_not_a_url_is_refused_and_not_shown(self):
        refusal = self.refused(load_storage, self.storage(database="connection = secret"))
        self.assertIn("is not a URL", refusal)
        self.assertNotIn("= secret", refusal)

    def test_a_database_in_memory_is_refused(self):
        for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"):
            self.assertIn("names no file", self.refused(load_storage, self.storage(database=f"connection = {url}")))

    def test_a_lone_dollar_is_refused_without_quoting_the_value(self):
        refusal = self.refused(load_storage, self.storage(database="connection = sqlite:////tmp/pa$sword"))
        self.assertIn("$$", refusal)
        self.assertNotIn("sword", refusal)

    def test_a_misspelt_option_is_refused_with_a_suggestion(self):
        refusal = self.refused(load_storage, self.storage("retention_day = 5"))
        self.assertIn("did you mean 'retention_days'?", refusal)

    def test_values_out_of_bounds_are_refused_by_name(self):
        for line in ("retention_days = 0", "read_connections = many", "future_tolerance_seconds = -1"):
            self.assertIn(line.split()[0], self.refused(load_storage, self.storage(line)))

    def test_settings_do_not_show_the_password(self):
        settings = storage_settings(
            self.storage("driver = postgresql", database="connection = postgresql://u:secret@host/d")
        )
        self.assertEqual("postgresql://u:secret@host/d", settings.connection)
        self.assertNotIn("secret", repr(settings))

    def test_reading_options_before_the_file_is_parsed_is_refused(self):
        from oslo_config import cfg

        self.assertIn("was not read yet", self.refused(load_storage, cfg.ConfigOpts()))
