# SPDX-License-Identifier: Apache-2.0
import importlib
from pathlib import Path

import fixtures

from monasca_common.api.settings import api_settings
from monasca_common.cli.configuration import own_options
from monasca_common.kafka.config import OptionGroup, consumer_settings, group_of
from monasca_common.pipeline.archive.settings import archive_settings
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

ROOT = Path(__file__).parents[5]
DECISION = "a gzip body may expand to 100 times its size, within max_body_bytes"
PACKAGES = (
    "api",
    "audit",
    "notification",
    "operations",
    "operations.dashboard",
    "operations.mirror",
    "persister",
    "pipeline",
    "pipeline.archive",
    "pipeline.replay",
    "storage",
)


def removed():
    """Return every removed name with its group."""
    groups = [group_of("kafka")]
    for package in PACKAGES:
        module = importlib.import_module(f"monasca_common.{package}.settings")
        declared = [getattr(value, "own", value) for value in vars(module).values()]
        groups += [each for each in declared if isinstance(each, OptionGroup)]
    return {(group.name, name) for group in groups for name in group.removed}


class RemovedOptionsTest(ConfigurationTestCase):
    def test_one_error_lists_all_removed_options_of_a_group_and_their_replacements(self):
        conf = self.with_kafka(api="max_gzip_ratio = 50\npage_limit = 9\n")
        self.assertEqual(
            f"max_gzip_ratio in group [api] has no effect: {DECISION}; page_limit in group [api] has no effect: "
            "a response has at most 10,000 elements; clients can request fewer with the parameter limit; remove them",
            self.refused(api_settings, conf),
        )

    def test_a_removed_name_in_the_environment_is_refused_as_in_a_file(self):
        self.useFixture(fixtures.EnvironmentVariable("OS_API__MAX_GZIP_RATIO", "50"))
        self.assertEqual(
            f"OS_API__MAX_GZIP_RATIO in the environment has no effect: {DECISION}; remove it",
            self.refused(api_settings, self.with_kafka()),
        )

    def test_a_name_refused_in_kafka_is_also_refused_in_the_group_of_a_consumer(self):
        line = "isolation_level = read_uncommitted\n"
        for conf in (self.with_kafka(line), self.with_kafka(kafka_metrics=line)):
            self.assertIn("consumers read committed messages", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_a_group_with_options_of_a_consumer_also_reports_the_deciding_option(self):
        conf = self.with_kafka(pipeline_archive="compact_to_mb = 64\n")
        self.assertIn("trigger_seconds determines the number of files", self.refused(archive_settings, conf))

    def test_a_removed_name_is_neither_an_option_nor_a_former_name_of_one(self):
        current = {(group, each.name) for group, options in own_options() for each in options}
        former = {
            (old.group or group, old.name)
            for group, options in own_options()
            for each in options
            for old in each.deprecated_opts
        }
        self.assertLess(30, len(removed()))
        self.assertEqual(set(), removed() & (current | former))

    def test_release_notes_name_each_removed_option(self):
        notes = "".join(path.read_text() for path in (ROOT / "releasenotes" / "notes").glob("*.yaml"))
        for group, name in removed():
            for part in (group, f"``{name}``"):
                self.assertIn(part, notes, f"[{group}] {name}")
