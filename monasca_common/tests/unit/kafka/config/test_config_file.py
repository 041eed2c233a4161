# SPDX-License-Identifier: Apache-2.0
import fixtures
from oslo_config import cfg

from monasca_common.kafka.config import config_file
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase


class ReadTest(ConfigurationTestCase):
    def refusal(self, path):
        return self.refused(config_file.read, cfg.ConfigOpts(), ["--config-file", path], project="tests")

    def test_a_line_that_is_not_an_option_is_reported_by_its_number_and_not_quoted(self):
        path = self.path_of("[kafka]\nsasl_password pa55word\n")
        reported = self.refusal(path)
        self.assertIn(f"line 2 of {path} is neither", reported)
        self.assertNotIn("pa55word", reported)

    def test_a_missing_file_is_named(self):
        reported = self.refusal("/nowhere.conf")
        self.assertIn("correct it or --config-file: Failed to find some config files: /nowhere.conf", reported)

    def test_a_folder_instead_of_a_file_is_named(self):
        folder = self.useFixture(fixtures.TempDir()).path
        self.assertIn(f"Is a directory: '{folder}'", self.refusal(folder))
