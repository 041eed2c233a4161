# SPDX-License-Identifier: Apache-2.0
"""The storage of configuration files of the old services."""

from __future__ import annotations

from monasca_common.storage import load_storage
from monasca_common.storage.influxdb import InfluxdbStorage
from monasca_common.storage.influxdb.client import address
from monasca_common.storage.settings import has_database, storage_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

_SERVER = "[influxdb]\nip_address = influx.example.org\nport = 8087\ndatabase_name = monasca\n"
_METRICS_DRIVER = "[repositories]\nmetrics_driver = monasca_persister.repositories.{}:MetricRepository\n"
_SQLITE = "[database]\nconnection = sqlite:////var/lib/monasca/monasca.sqlite\n"
_MYSQL = "[database]\nconnection = mysql+pymysql://monapi:hidden@mysql:3306/mon\n"


class OldStorageTest(ConfigurationTestCase):
    def logged(self, text: str, call=storage_settings):
        """Return the result of the call, and its warnings."""
        with self.assertLogs("monasca_common", "WARNING") as logs:
            result = call(self.configured(text))
        return result, [record.getMessage() for record in logs.records]

    def refused_with(self, text: str):
        """Return the warnings before a missing connection is refused, as one text."""
        with self.assertLogs("monasca_common", "WARNING") as logs:
            self.assertIn("is not set", self.refused(storage_settings, self.configured(text)))
        return "\n".join(record.getMessage() for record in logs.records)

    def test_a_server_is_read_as_driver_and_url(self):
        settings, logged = self.logged(_SERVER + "user = mon\npassword = hidden\n")

        self.assertEqual(
            ("influxdb", "influxdb://mon:hidden@influx.example.org:8087/monasca"),
            (settings.driver, settings.connection),
        )
        self.assertEqual(1, len(logged))
        self.assertEqual(
            "[influxdb] database_name, ip_address, password, port, user: read as [storage] driver = influxdb and "
            "[database] connection = influxdb://influx.example.org:8087/monasca, with user and password: write "
            "these instead",
            logged[0],
        )
        self.assertNotIn("hidden", repr(settings))

    def test_a_server_has_the_defaults_of_the_old_services(self):
        settings, _ = self.logged("[influxdb]\npassword = hidden\n")

        self.assertEqual("influxdb://mon_persister:hidden@127.0.0.1:8086/mon", settings.connection)

    def test_a_server_without_a_password_gets_no_login(self):
        self.assertEqual("influxdb://influx.example.org:8087/monasca", self.logged(_SERVER)[0].connection)

    def test_every_character_of_user_and_password_reaches_the_server(self):
        settings, logged = self.logged(_SERVER + "user = m@n:/\npassword = p@:/?#%%41 $$w+rd\n")

        where = address(settings.connection)

        self.assertEqual(("m@n:/", "p@:/?#%%41 $w+rd"), (where.user, where.password))
        self.assertEqual(("influx.example.org", 8087, "monasca"), (where.host, where.port, where.database))
        self.assertNotIn("w+rd", "".join(logged))

    def test_an_ipv6_address_is_kept_in_the_url(self):
        settings, _ = self.logged("[influxdb]\nip_address = 2001:db8::1\n")

        self.assertEqual(("2001:db8::1", 8086), (address(settings.connection).host, address(settings.connection).port))

    def test_tls_is_kept_and_the_certificate_is_verified(self):
        settings, logged = self.logged(_SERVER + "ssl = true\nverify_ssl = false\n")

        self.assertTrue(address(settings.connection).tls)
        self.assertIn("[influxdb] verify_ssl = false is ignored", logged[-1])
        self.assertIn("?ca_file=", logged[-1])

    def test_verified_tls_causes_no_warning(self):
        _, logged = self.logged(_SERVER + "ssl = true\nverify_ssl = true\n")

        self.assertEqual(1, len(logged))
        self.assertIn("influxdb+https://influx.example.org:8087/monasca", logged[0])

    def test_the_driver_is_loaded(self):
        self.assertIsInstance(self.logged(_SERVER, load_storage)[0], InfluxdbStorage)
        self.assertTrue(has_database(self.configured(_SERVER)))

    def test_new_options_take_precedence(self):
        for new in (_SQLITE, "[storage]\ndriver = sqlite\n" + _SQLITE):
            settings, logged = self.logged(_SERVER + "password = hidden\n" + new)
            self.assertEqual("sqlite", settings.driver)
            self.assertEqual("sqlite:////var/lib/monasca/monasca.sqlite", settings.connection)
            self.assertEqual(1, len(logged))
            self.assertEqual(
                "[influxdb] is ignored (database_name, ip_address, password, port): [storage] driver and [database] "
                "connection take effect",
                logged[0],
            )
            self.forget_warnings()

    def test_another_driver_in_the_new_form_does_not_use_the_old_server(self):
        refusal = self.refused_with(_SERVER + "[storage]\ndriver = postgresql\n")

        self.assertIn("[storage] driver = postgresql takes effect", refusal)

    def test_the_influxdb_driver_in_the_new_form_uses_the_old_server(self):
        settings, _ = self.logged(_SERVER + "[storage]\ndriver = influxdb\n")

        self.assertEqual("influxdb://influx.example.org:8087/monasca", settings.connection)

    def test_a_postgresql_url_without_its_driver_is_refused(self):
        text = _SERVER + "[database]\nconnection = postgresql://u:hidden@host/d\n"

        self.assertIn("change one of them", self.refused(load_storage, self.configured(text)))

    def test_the_old_influxdb_repository_selects_the_influxdb_driver(self):
        settings, logged = self.logged(_METRICS_DRIVER.format("influxdb.metrics_repository") + _SERVER)

        self.assertEqual("influxdb", settings.driver)
        self.assertIn("port, [repositories] metrics_driver: read as [storage] driver = influxdb", logged[0])

    def test_cassandra_is_ignored_with_a_remedy_in_the_log(self):
        refusal = self.refused_with(
            _METRICS_DRIVER.format("cassandra.metrics_repository") + "[cassandra]\nport = 9042\nkeyspace = monasca\n"
        )

        self.assertIn(
            "metrics_driver is ignored: the class in [repositories] metrics_driver has no driver here", refusal
        )
        self.assertIn("[cassandra] is ignored (keyspace, port): nothing is stored in Cassandra", refusal)
        self.assertIn("write [storage] driver = postgresql and [database] connection = ", refusal)

    def test_a_server_with_metrics_in_cassandra_is_ignored(self):
        refusal = self.refused_with(_METRICS_DRIVER.format("cassandra.metrics_repository") + _SERVER)

        self.assertIn(
            "[influxdb] is ignored (database_name, ip_address, port): the class in [repositories] metrics_driver has",
            refusal,
        )

    def test_influxdb_without_a_server_is_ignored_with_a_remedy_in_the_log(self):
        refusal = self.refused_with(_METRICS_DRIVER.format("influxdb.metrics_repository"))

        self.assertIn(
            "[influxdb] names no server, write [storage] driver = influxdb and [database] connection", refusal
        )

    def test_a_database_per_tenant_is_not_translated(self):
        refusal = self.refused_with(_SERVER + "db_per_tenant = true\n")

        self.assertIn("db_per_tenant = true is not supported", refusal)
        self.assertIn("write [storage] driver = influxdb", refusal)

    def test_the_mysql_database_of_an_old_api_is_not_used_as_storage(self):
        settings, logged = self.logged(_SERVER + _MYSQL)

        self.assertEqual("influxdb://influx.example.org:8087/monasca", settings.connection)
        self.assertIn("[database] connection is ignored, because it is the MySQL database of an earlier API", logged[0])
        self.assertNotIn("hidden", "".join(logged))

    def test_mysql_without_an_old_group_is_refused(self):
        self.assertIn("'mysql'", self.refused(load_storage, self.configured(_MYSQL)))

    def test_a_driver_for_mysql_keeps_its_url(self):
        settings, _ = self.logged(_SERVER + _MYSQL + "[storage]\ndriver = mysql\n")

        self.assertTrue(settings.connection.startswith("mysql"))

    def test_an_untranslated_option_is_logged_with_its_replacement(self):
        _, logged = self.logged(
            _SERVER + "default_retention_hours = 24\nbatch_size = 10\nname = x\n"
            "[repositories]\nignore_parse_point_error = true\nalarm_state_history_driver = x\nevents_driver = y\n"
            "alarms_driver = z\n[elasticsearch]\nhosts = localhost:9200\n"
        )

        refusal = "\n".join(logged)
        for text in (
            "[influxdb] default_retention_hours is ignored: write [storage] retention_days",
            "[influxdb] batch_size is ignored: write batch_size in",
            "[influxdb] is ignored (name): no service reads this option",
            "[repositories] ignore_parse_point_error is ignored: a message that cannot be stored goes to dead_letter",
            "[repositories] alarm_state_history_driver is ignored: ",
            "[repositories] events_driver is ignored: ",
            "[repositories] alarms_driver is ignored: ",
            "[elasticsearch] is ignored (hosts): ",
        ):
            self.assertIn(text, refusal)

    def test_each_warning_is_logged_once_per_process(self):
        text = _METRICS_DRIVER.format("influxdb.x") + _SERVER + "ssl = true\nbatch_size = 1\n" + _MYSQL
        _, logged = self.logged(text)
        self.assertEqual(sorted(set(logged)), sorted(logged))

        with self.assertNoLogs("monasca_common", "WARNING"):
            storage_settings(self.configured(text))
            has_database(self.configured(text))

    def test_a_file_without_old_groups_causes_no_warning(self):
        with self.assertNoLogs("monasca_common", "WARNING"):
            storage_settings(self.configured(_SQLITE))
            self.assertFalse(has_database(self.configured("")))

    def test_an_invalid_value_is_refused_by_name(self):
        self.assertIn("port in group [influxdb]", self.refused(storage_settings, self.configured(_SERVER + "port = x")))
        refusal = self.refused(storage_settings, self.configured(_SERVER + "password = up$stairs\n"))
        self.assertIn("$$", refusal)
        self.assertNotIn("stairs", refusal)
