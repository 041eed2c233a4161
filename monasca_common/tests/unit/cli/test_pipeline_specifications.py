# SPDX-License-Identifier: Apache-2.0
import io
import json
from pathlib import Path

import fixtures

from monasca_common.cli.main import MonascaCommon
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.pipeline.pipeline_case import pre_row, shipped_row


class SpecificationsCommandTest(ConfigurationTestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
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
        """Return the exit status, standard output and standard error."""
        app = MonascaCommon()
        app.stdout, app.stderr = io.StringIO(), io.StringIO()
        status = app.run(["pipeline", "specifications", *arguments])
        return status, app.stdout.getvalue(), app.stderr.getvalue()

    def test_a_refused_row_is_reported_with_its_file(self):
        bad = self.file("bad", pre_row("cpu", "no_such_id"))
        status, _, err = self.run_command("check", *self.files, "--pre-transforms", bad)
        self.assertEqual(1, status)
        self.assertIn(f"{bad} row 1: metric_id_list[0]", err)

    def test_a_missing_file_is_reported(self):
        status, _, err = self.run_command("check", "--transforms", "/nowhere/x.jsonl")
        self.assertEqual(1, status)
        self.assertIn("/nowhere/x.jsonl cannot be read", err)

    def test_the_shipped_specifications_are_valid(self):
        status, out, _ = self.run_command("check", "-f", "json")
        self.assertEqual((0, {"pre_transforms": 17, "transforms": 26, "warnings": []}), (status, json.loads(out)))
