# SPDX-License-Identifier: Apache-2.0
"""Stored addresses are encrypted with the first key, can be read with each key, and never appear in an error."""

import traceback

import fixtures
import sqlalchemy as sa
from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import PLAIN, AddressKeys, AddressUnreadable, Rotated, key_id, rotate
from monasca_common.alarms.database import AlarmsDatabase, Slice, Sort
from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.alarms.settings import NoAlarmsDatabase, database_settings
from monasca_common.cli.main import main
from monasca_common.storage.errors import StorageError
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.cli.command_case import CommandCase
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
HOOK = NotificationMethod("hook", "WEBHOOK", "https://example.org/t0ken")


class AddressKeysTest(SqliteTestCase):
    def setUp(self):
        super().setUp()
        self.alarms = AlarmsDatabase(self.database.settings)
        self.addCleanup(self.alarms.close)

    def methods(self, *keys):
        return NotificationMethods(self.alarms, AddressKeys(keys))

    def stored(self):
        table = tables.notification_method
        statement = sa.select(table.c.address, table.c.address_key).order_by(table.c.name)
        return [tuple(row) for row in self.alarms.rows(statement)]

    def test_an_address_is_encrypted_in_the_database_and_shown_to_its_tenant(self):
        made = self.methods(OLD).create("t1", HOOK, 1)
        [(address, key)] = self.stored()
        self.assertEqual(key_id(OLD), key)
        self.assertNotIn("t0ken", address)
        self.assertEqual("https://example.org/t0ken", self.methods(NEW, OLD).get("t1", made.id).address)

    def test_the_traceback_of_a_refused_write_does_not_contain_the_address(self):
        refuse = "BEFORE INSERT ON notification_method BEGIN SELECT abs(-9223372036854775808); END"
        self.alarms.write(lambda connection: connection.exec_driver_sql(f"CREATE TRIGGER refuse {refuse}"))
        error = self.assertRaises(StorageError, self.methods().create, "t1", HOOK, 1)
        shown = "".join(traceback.format_exception(error))
        self.assertIn("INSERT INTO notification_method", shown)
        self.assertNotIn("t0ken", shown)

    def test_a_change_encrypts_with_the_first_key(self):
        made = self.methods(OLD).create("t1", HOOK, 1)
        self.methods(NEW, OLD).change("t1", made.id, lambda method: method, 2)
        self.assertEqual([key_id(NEW)], [key for _, key in self.stored()])

    def test_addresses_stored_without_keys_stay_readable_after_keys_are_added(self):
        made = self.methods().create("t1", HOOK, 1)
        self.assertEqual([("https://example.org/t0ken", None)], self.stored())
        self.assertEqual("https://example.org/t0ken", self.methods(NEW).get("t1", made.id).address)

    def test_a_plain_address_that_looks_encrypted_is_not_decrypted(self):
        token = Fernet(OLD.encode()).encrypt(b"x").decode()
        made = self.methods().create("t1", NotificationMethod("a", "PAGERDUTY", token), 1)
        self.assertEqual(token, self.methods(OLD).get("t1", made.id).address)

    def test_a_missing_key_is_named_and_can_be_added_later(self):
        made = self.methods(OLD).create("t1", HOOK, 1)
        for keys in ((), (NEW,)):
            error = self.assertRaises(AddressUnreadable, self.methods(*keys).get, "t1", made.id)
            self.assertIn(key_id(OLD), str(error))
            self.assertNotIn(OLD, str(error))

    def test_an_address_modified_in_the_database_is_refused(self):
        made = self.methods(OLD).create("t1", HOOK, 1)
        table = tables.notification_method
        self.alarms.write(lambda connection: connection.execute(table.update().values(address="https://evil.org")))
        self.assertRaises(AddressUnreadable, self.methods(OLD).get, "t1", made.id)

    def test_a_list_is_sorted_by_decrypted_addresses(self):
        for number, (name, address) in enumerate({"a": "m@a", "b": "z@a", "c": "a@a", "d": "a@a"}.items()):
            self.methods(*[OLD, NEW][: number % 3]).create("t1", NotificationMethod(name, "EMAIL", address), number)
        for sorts, expected in (
            ([Sort("address"), Sort("name", descending=True)], ["d", "c", "a", "b"]),
            ([Sort("address", descending=True), Sort("created_at")], ["b", "a", "c", "d"]),
        ):
            found = self.methods(OLD, NEW).found("t1", sorts, Slice(10))
            self.assertEqual(expected, [each.name for each in found])
            found = self.methods(OLD, NEW).found("t1", sorts, Slice(2, 1))
            self.assertEqual(expected[1:3], [each.name for each in found])

    def test_a_rotation_encrypts_addresses_that_are_plain_or_encrypted_with_other_keys(self):
        self.methods().create("t1", HOOK, 1)
        self.methods(OLD).create("t2", HOOK, 1)
        self.methods(NEW).create("t3", HOOK, 1)

        self.assertEqual(Rotated(2, {}), rotate(self.alarms, AddressKeys([NEW, OLD])))
        self.assertEqual({key_id(NEW)}, {key for _, key in self.stored()})
        self.assertEqual(Rotated(0, {}), rotate(self.alarms, AddressKeys([NEW, OLD])))
        for tenant in ("t1", "t2", "t3"):
            [found] = self.methods(NEW).found(tenant, [], Slice(10))
            self.assertEqual(HOOK.address, found.address)

    def test_a_rotation_keeps_unreadable_addresses_unchanged(self):
        for number in range(5):
            keys = (OLD,) if number % 2 else ()
            self.methods(*keys).create("t1", NotificationMethod(str(number), "WEBHOOK", HOOK.address), 1)
        self.assertEqual(Rotated(3, {key_id(OLD): 2}), rotate(self.alarms, AddressKeys([NEW])))

    def test_an_invalid_key_is_refused_and_not_shown(self):
        error = self.assertRaises(ValueError, AddressKeys, ["s3cret"])
        self.assertNotIn("s3cret", str(error))

    def test_neither_a_repr_nor_a_mask_shows_an_address(self):
        self.assertNotIn("t0ken", repr(HOOK))
        for kind, address, expected in (
            ("WEBHOOK", "https://hooks.example.org:8080/t0ken?a=b", "https://hooks.example.org:8080/…"),
            ("WEBHOOK", "https://u:p@example.org/", "…"),
            ("SLACK", "https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/…"),
            ("EMAIL", "someone@example.org", "s…@example.org"),
            ("PAGERDUTY", "R0UT1NGKEY", "…"),
        ):
            self.assertEqual(expected, NotificationMethod("a", kind, address).masked_address)

    def test_the_default_has_no_keys(self):
        self.assertEqual({"address": "a", "address_key": None}, PLAIN.seal("a"))


class RotateKeysTest(CommandCase):
    command = ("notification", "rotate-keys")

    def setUp(self):
        super().setUp()
        folder = self.useFixture(fixtures.TempDir()).path
        self.database = f"[database]\nconnection = sqlite:///{folder}/monasca.sqlite\n"
        self.assertEqual(0, main(["db", "upgrade", "--config-file", self.path_of(self.database)]))

    def keys(self, *keys):
        return f"{self.database}[alarms]\naddress_keys = {','.join(keys)}\n"

    def create(self, *keys):
        from monasca_common.alarms.address_keys import address_keys
        from monasca_common.alarms.settings import database_settings

        conf = self.configured(self.keys(*keys))
        database = AlarmsDatabase(database_settings(conf))
        self.addCleanup(database.close)
        NotificationMethods(database, address_keys(conf)).create(f"t{len(keys)}", HOOK, 1)

    def test_the_command_prints_the_number_of_encrypted_addresses(self):
        self.create()
        for number in (1, 0):
            status, out, err = self.run_command(text=self.keys(NEW, OLD))
            self.assertEqual((0, ""), (status, err))
            self.assertTrue(out.startswith(f"{number} addresses were encrypted with the first key"), out)

    def test_unreadable_addresses_are_reported_as_a_failure(self):
        self.create(OLD)
        status, _, err = self.run_command(text=self.keys(NEW))
        self.assertEqual(1, status)
        self.assertIn(f"1 need the key {key_id(OLD)}", err)

    def test_without_keys_the_command_fails(self):
        status, _, err = self.run_command(text=self.database)
        self.assertEqual(1, status)
        self.assertIn("address_keys in group [alarms] is not set", err)

    def test_a_wrong_key_is_refused_and_not_shown(self):
        status, _, err = self.run_command(text=self.keys("s3cret"))
        self.assertEqual(1, status)
        self.assertIn("address_keys in group [alarms] is refused", err)
        self.assertNotIn("s3cret", err)

    def test_an_upgrade_of_the_database_encrypts_stored_addresses(self):
        self.create()
        self.command = ("db", "upgrade")
        _, _, err = self.run_command(text=self.keys(NEW))
        self.assertIn("1 addresses of notification methods were encrypted", err)


_STORAGE = "[database]\nconnection = sqlite:////var/lib/monasca/monasca.sqlite\n"


class AlarmsDatabaseTest(ConfigurationTestCase):
    def test_the_database_of_storage_is_the_default_if_it_is_sql(self):
        settings = database_settings(self.configured(f"[storage]\nread_timeout_seconds = 3\n{_STORAGE}"))
        self.assertEqual(
            ("sqlite", "sqlite:////var/lib/monasca/monasca.sqlite", 3),
            (settings.driver, settings.connection, settings.read_timeout_seconds),
        )

    def test_a_separate_url_is_used_with_the_limits_of_storage(self):
        own = "[alarms]\nconnection = postgresql://u:p@h/alarms\n"
        for storage in ("", _STORAGE, "[storage]\ndriver = influxdb\n[database]\nconnection = influxdb://h/mon\n"):
            settings = database_settings(self.configured(own + storage))
            self.assertEqual(("postgresql", "postgresql://u:p@h/alarms"), (settings.driver, settings.connection))
        settings = database_settings(self.configured(f"{own}[storage]\nread_connections = 3\n"))
        self.assertEqual(3, settings.read_connections)

    def test_influxdb_is_refused_with_the_remedy(self):
        conf = self.configured("[storage]\ndriver = influxdb\n[database]\nconnection = influxdb://h/mon\n")
        error = self.assertRaises(NoAlarmsDatabase, database_settings, conf)
        self.assertIn("[storage] driver is influxdb, which cannot store alarm definitions", str(error))
        self.assertIn("set connection in group [alarms]", str(error))

    def test_a_missing_database_is_reported(self):
        error = self.assertRaises(NoAlarmsDatabase, database_settings, self.configured(""))
        self.assertIn("neither connection in group [alarms] nor connection in group [database] is set", str(error))

    def test_another_url_is_refused_and_not_shown(self):
        refusal = self.refused(database_settings, self.configured("[alarms]\nconnection = mysql://u:hush@h/mon\n"))
        self.assertIn("connection in group [alarms] is not a URL of postgresql or sqlite", refusal)
        self.assertNotIn("hush", refusal)
