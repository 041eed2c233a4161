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
        self.assertIn("/nowhere.conf: correct --config-file", self.refusal("/nowhere.conf"))

    def test_a_folder_instead_of_a_file_is_named(self):
        folder = self.useFixture(fixtures.TempDir()).path
        self.assertIn(f"{folder} cannot be read (Is a directory)", self.refusal(folder))
