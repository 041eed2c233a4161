# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import fixtures
from oslo_config import cfg

from monasca_common.api.settings import api_settings
from monasca_common.cli.configuration import own_options
from monasca_common.kafka.config import config_file, consumer_settings, removed_options
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase

ROOT = Path(__file__).parents[5]
LINE = "max_gzip_ratio = 50\n"
DECISION = "a gzip body may become 100 times larger, within max_body_bytes"


class RemovedOptionsTest(ConfigurationTestCase):
    def refused_file(self, *paths):
        arguments = [argument for path in paths for argument in ("--config-file", path)]
        return self.refused(config_file.read, cfg.ConfigOpts(), arguments, project="tests", default_config_dirs=[])

    def test_a_file_with_a_removed_name_is_refused_with_its_path_and_what_decides(self):
        path = self.path_of(f"[api]\n{LINE}")
        self.assertEqual(
            f"max_gzip_ratio in group [api] in {path} has no effect: {DECISION}; remove it", self.refused_file(path)
        )

    def test_all_removed_names_are_in_one_error(self):
        path = self.path_of(f"[api]\n{LINE}page_limit = 9\n[storage]\nmax_results = 9\n")
        told = self.refused_file(path)
        for part in ("max_gzip_ratio in group [api]", "page_limit in group [api]", "max_results in group [storage]"):
            self.assertIn(part, told)
        self.assertTrue(told.endswith("; remove them"), told)

    def test_of_several_files_the_one_with_the_name_is_named(self):
        path = self.path_of(f"[api]\n{LINE}")
        self.assertIn(path, self.refused_file(self.path_of("[api]\nworkers = 2\n"), path, self.path_of("[api]\n")))

    def test_a_file_in_a_folder_is_named(self):
        folder = self.useFixture(fixtures.TempDir()).path
        with open(f"{folder}/a.conf", "w") as file:
            file.write(f"[API]\n{LINE}")
        arguments = ["--config-dir", folder]
        self.assertIn(f"{folder}/a.conf", self.refused(config_file.read, cfg.ConfigOpts(), arguments, project="tests"))

    def test_a_removed_name_in_the_environment_is_refused(self):
        self.useFixture(fixtures.EnvironmentVariable("OS_API__MAX_GZIP_RATIO", "50"))
        self.assertIn("max_gzip_ratio in group [api] in the environment", self.refused_file(self.path_of("")))

    def test_a_service_that_reads_the_file_itself_refuses_the_name(self):
        self.assertIn(DECISION, self.refused(api_settings, self.with_kafka(api=LINE)))

    def test_a_name_that_kafka_must_not_have_is_refused_in_the_group_of_a_consumer_too(self):
        line = "isolation_level = read_uncommitted\n"
        for conf in (self.with_kafka(line), self.with_kafka(kafka_metrics=line)):
            self.assertIn("consumers read what is committed", self.refused(consumer_settings, conf, "kafka_metrics"))

    def test_a_removed_name_is_no_option_and_none_of_an_option_s_former_names(self):
        current = {(group, each.name) for group, options in own_options() for each in options}
        former = {
            (old.group or group, old.name)
            for group, options in own_options()
            for each in options
            for old in each.deprecated_opts
        }
        removed = {(group.name, old.name) for group in removed_options.OLD_GROUPS for old in group.options}
        self.assertEqual(set(), removed & (current | former))

    def test_release_notes_name_each_of_them(self):
        notes = "".join(path.read_text() for path in (ROOT / "releasenotes" / "notes").glob("*.yaml"))
        for group in removed_options.OLD_GROUPS:
            for old in group.options:
                for part in (group.name, f"``{old.name}``"):
                    self.assertIn(part, notes, f"[{group.name}] {old.name}")
