# SPDX-License-Identifier: Apache-2.0

import json
import os
import time

import fixtures

from monasca_common.storage.base import Kind
from monasca_common.storage.errors import SchemaMismatch
from monasca_common.storage.settings import StorageSettings
from monasca_common.storage.sql import schema
from monasca_common.tests.command import run_main
from monasca_common.tests.contracts.storage import SqlDatabase
from monasca_common.tests.contracts.storage.scenario import Scenario, measurement
from monasca_common.tests.unit.cli.command_case import CommandCase

_OLD_DAYS = 30


class DatabaseCommandTest(Scenario, CommandCase):
    command = ("db",)

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        url = f"sqlite:///{self.folder}/monasca.sqlite"
        self.configuration = f"[storage]\nretention_days = 10\n[database]\nconnection = {url}\n"
        self.database = SqlDatabase(self.addCleanup, StorageSettings("sqlite", url))
        self.database.clock.now_ms = time.time_ns() // 1_000_000

    def test_a_separate_alarms_database_is_also_upgraded(self):
        url = f"sqlite:///{self.folder}/alarms.sqlite"
        self.configuration += f"[alarms]\nconnection = {url}\n"
        status, rows = self.run_json("upgrade")
        self.assertEqual((0, [schema.REVISION] * 2), (status, [row["after"] for row in rows]))
        self.assertEqual(url, rows[1]["database"])
        self.assertEqual(
            schema.REVISION, SqlDatabase(self.addCleanup, StorageSettings("sqlite", url)).storage().status().found
        )

    def test_upgrade_creates_the_tables_and_reports_it(self):
        for before in (None, schema.REVISION):
            status, [row] = self.run_json("upgrade")
            self.assertEqual((0, before, schema.REVISION), (status, row["before"], row["after"]))
        self.database.storage().open_writer().close()

    def test_an_unknown_column_is_refused_before_the_upgrade(self):
        self.assertEqual(1, self.run_command("upgrade", "-c", "revision")[0])
        self.assertEqual([], [name for name in os.listdir(self.folder) if "sqlite" in name])

    def test_an_upgrade_before_a_failed_one_is_printed(self):
        self.configuration += "[alarms]\nconnection = sqlite:////nowhere/alarms.sqlite\n"
        status, [row] = self.run_json("upgrade")
        self.assertEqual((1, schema.REVISION), (status, row["after"]))

    def test_status_is_1_until_the_schema_is_upgraded(self):
        status, _, error = self.run_command("status")
        self.assertEqual(1, status)
        self.assertIn("run `monasca-common db upgrade`", error)
        self.assertEqual([], [name for name in os.listdir(self.folder) if "sqlite" in name], "it made a file")
        self.run_command("upgrade")
        self.write(self.database.writer(), Kind.METRICS, [measurement(time_ms=self.database.clock.now_ms)], 41)
        status, report = self.run_json("status")
        self.assertEqual((0, True, 42), (status, report["current"], report["offsets"][0]["next_offset"]))
        self.assertIn("1_group topic/0 below 42", self.run_command("status")[1])

    def test_a_database_of_an_earlier_build_is_refused(self):
        self.run_command("upgrade")
        engine = schema.engine(self.database.settings.connection, to_write=True)
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0022'")
        for command in ("status", "upgrade"):
            status, _, error = self.run_command(command)
            self.assertEqual(1, status)
            self.assertIn("from a build before release 4.0.0, which cannot be upgraded: use a new database", error)
        refused = self.assertRaises(SchemaMismatch, schema.check, "0022")
        self.assertIn("use a new database", str(refused))

    def test_objects_are_json_in_formats_of_text(self):
        self.run_command("upgrade")
        self.write(self.database.writer(), Kind.METRICS, [measurement(time_ms=self.database.clock.now_ms)], 41)
        row = {"group": "1_group", "topic": "topic", "partition": 0, "topic_id": "topic-id", "next_offset": 42}
        value = self.run_command("status", "-f", "value", "-c", "offsets")[1]
        self.assertEqual([row], json.loads(value))
        self.assertIn(json.dumps([row]).replace('"', '\\"'), self.run_command("status", "-f", "shell")[1])

    def test_without_rows_a_table_is_not_printed(self):
        self.run_command("upgrade")
        self.assertEqual((0, "", ""), self.run_command("prune"))
        self.assertIn("removed", self.run_command("prune", "--print-empty")[1])

    def test_prune_removes_and_counts_old_rows(self):
        self.run_command("upgrade")
        now_ms = self.database.clock.now_ms
        rows = [measurement(n, time_ms=now_ms - n * _OLD_DAYS * 86_400_000) for n in range(2)]
        self.write(self.database.writer(), Kind.METRICS, rows)
        removed = [{"table": table, "unit": "rows", "removed": 1} for table in ("measurements", "series")]
        self.assertEqual((0, removed), self.run_json("prune"))
        self.assertEqual([rows[0]], self.stored(Kind.METRICS))
        self.assertEqual((0, []), self.run_json("prune"))

    def test_a_failure_ends_with_status_1_and_one_line_without_a_traceback(self):
        for arguments in (["prune"], ["upgrade", "--config-file", "/nowhere.conf"]):
            status, _, error = self.run_command(*arguments)
            self.assertEqual(1, status)
            self.assertEqual(1, error.count("\n"), error)
        self.configuration = "[database]\nconnection = sqlite:////nowhere/monasca.sqlite\n"
        status, _, error = self.run_command("upgrade")
        self.assertEqual(1, status)
        self.assertIn("/nowhere, does not exist", error)

    def test_an_invalid_line_is_not_quoted(self):
        path = self.path_of("[database]\nconnection secret\n")
        status, _, error = run_main("db", "status", "--config-file", path)
        self.assertEqual(1, status)
        self.assertIn(path, error)
        self.assertNotIn("secret", error)

    def test_help_names_every_option(self):
        shown = "".join(run_main("db", command, "--help")[1] for command in ("upgrade", "prune", "status"))
        self.assertEqual(3, shown.count("--format {"))
        self.assertEqual(3, shown.count("--config-file F "))
