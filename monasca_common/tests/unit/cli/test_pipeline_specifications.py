# SPDX-License-Identifier: Apache-2.0
import io
import json
from pathlib import Path

import fixtures

from monasca_common.cli.main import MonascaCommon
from monasca_common.pipeline.settings import aggregate_settings
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row


class SpecificationsCommandTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        self.url = f"sqlite:///{self.folder}/pipeline.sqlite"
        self.configuration = self.folder / "monasca.conf"
        self.configuration.write_text(f"[kafka]\nbootstrap_servers = a:1\n[database]\nconnection = {self.url}\n")
        row = shipped_row("mem_total_all", aggregated_metric_name="cpu_agg") | {"metric_id": "cpu_all"}
        self.files = [
            *("--pre-transforms", self.file("pre", pre_row("cpu", "cpu_all"))),
            *("--transforms", self.file("transforms", row)),
        ]

    def file(self, name, row):
        path = self.folder / name
        path.write_text(json.dumps(row) + "\n")
        return str(path)

    def run_command(self, *arguments):
        """The exit status, and what was said on standard output and standard error."""
        app = MonascaCommon()
        app.stdout, app.stderr = io.StringIO(), io.StringIO()
        status = app.run(["pipeline", "specifications", *arguments])
        return status, app.stdout.getvalue(), app.stderr.getvalue()

    def test_what_is_loaded_is_what_the_job_aggregates_by(self):
        open_storage(StorageSettings("sqlite", self.url)).upgrade()
        status, out, err = self.run_command("load", "--config-file", str(self.configuration), "-f", "json", *self.files)
        self.assertEqual((0, {"pre_transforms": 1, "transforms": 1, "warnings": []}), (status, json.loads(out)), err)
        conf = self.with_kafka(database=f"connection = {self.url}", pipeline_aggregate="specifications = database")
        self.assertEqual(["cpu_all"], [*aggregate_settings(conf).specifications.transforms])

    def test_nothing_is_loaded_before_the_database_has_tables(self):
        status, _, err = self.run_command("load", "--config-file", str(self.configuration), *self.files)
        self.assertEqual(1, status)
        self.assertIn("db upgrade", err)

    def test_a_row_that_is_refused_is_told_with_its_file(self):
        bad = self.file("bad", pre_row("cpu", "no_such_id"))
        status, _, err = self.run_command("check", *self.files, "--pre-transforms", bad)
        self.assertEqual(1, status)
        self.assertIn(f"{bad} row 1: metric_id_list[0]", err)

    def test_a_file_that_is_not_there_is_told(self):
        status, _, err = self.run_command("check", "--transforms", "/nowhere/x.jsonl")
        self.assertEqual(1, status)
        self.assertIn("/nowhere/x.jsonl cannot be read", err)

    def test_those_that_are_shipped_are_accepted(self):
        status, out, _ = self.run_command("check", "-f", "json")
        self.assertEqual((0, {"pre_transforms": 17, "transforms": 26, "warnings": []}), (status, json.loads(out)))
