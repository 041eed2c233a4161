# SPDX-License-Identifier: Apache-2.0
"""The alert rules by promtool."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import fixtures
import yaml
from oslotest import base

from monasca_common.tests.functional.waiting import PATIENCE_SECONDS
from monasca_common.tests.unit.test_alert_rules import DEPLOY, alerts

RULES = DEPLOY / "prometheus"
_MISSING = "Prometheus is not installed: no `promtool` on the PATH (Debian's package `prometheus` has it)"


class PrometheusNeeded:
    """Mixed into a test case."""

    def setUp(self):
        super().setUp()
        if shutil.which("promtool") is None:
            print(_MISSING, file=sys.stderr)  # noqa: T201 - a skip without a word hides what was not tested
            self.skipTest(_MISSING)
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)


class TestAlertRules(PrometheusNeeded, base.BaseTestCase):
    def promtool(self, *arguments):
        return subprocess.run(
            ["promtool", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    def copy_rules(self):
        for name in ("alerts.yml", "alerts_test.yml", "prometheus.yml"):
            (self.folder / name).write_text((RULES / name).read_text())

    def test_rules_and_configuration_are_valid_and_each_alert_fires_for_what_is_bad_alone(self):
        self.copy_rules()
        for arguments in (
            ("check", "rules", "--lint-fatal", "alerts.yml"),
            ("check", "config", "prometheus.yml"),
            ("test", "rules", "alerts_test.yml"),
        ):
            done = self.promtool(*arguments)
            self.assertEqual(0, done.returncode, f"{arguments}: {done.stdout}{done.stderr}")

    def test_each_alert_has_a_test(self):
        tested = [each["name"] for each in yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]]
        self.assertEqual(sorted(alerts()), sorted(tested))

    def test_alerts_that_never_fire_and_alerts_that_always_do_are_caught(self):
        for expression in ("vector(1) > 2", "vector(1)"):
            self.copy_rules()
            made = yaml.safe_load((self.folder / "alerts.yml").read_text())
            for rule in (rule for group in made["groups"] for rule in group["rules"]):
                rule["expr"] = expression
            (self.folder / "alerts.yml").write_text(yaml.safe_dump(made))
            done = self.promtool("test", "rules", "alerts_test.yml")
            self.assertEqual(1, done.returncode)
            self.assertEqual(set(alerts()), alerts().keys() & set(re.findall(r"\w+", done.stdout + done.stderr)))
