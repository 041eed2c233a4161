# SPDX-License-Identifier: Apache-2.0
"""Names in configurations of monasca-api and monasca-persister are found, and misspelled names are reported."""

import json
import sys
from pathlib import Path

import fixtures
from oslotest import base

from monasca_common.simport import simport


class SimportTest(base.BaseTestCase):
    def test_a_class_is_loaded(self):
        self.assertIs(json.JSONDecoder, simport.load("json:JSONDecoder"))

    def test_a_module_that_is_not_imported_yet_is_imported(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "a_repository_of_ours.py").write_text("class Repository: pass")
        self.useFixture(fixtures.MonkeyPatch("sys.path", [*sys.path, str(folder)]))
        self.addCleanup(sys.modules.pop, "a_repository_of_ours", None)

        self.assertEqual("Repository", simport.load("a_repository_of_ours:Repository").__name__)

    def test_a_method_of_a_class_is_loaded(self):
        self.assertIs(json.JSONDecoder.decode, simport.load("json.decoder:JSONDecoder.decode"))

    def test_a_missing_module_is_named(self):
        error = self.assertRaises(simport.ImportFailed, simport.load, "monasca_nowhere.metrics:Metrics")
        self.assertIn("'monasca_nowhere.metrics:Metrics'", str(error))
        self.assertIn("install it", str(error))

    def test_an_error_raised_by_a_module_is_not_reported_as_a_missing_module(self):
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        (folder / "a_broken_repository.py").write_text("raise ValueError('no password')")
        self.useFixture(fixtures.MonkeyPatch("sys.path", [*sys.path, str(folder)]))

        self.assertRaises(ValueError, simport.load, "a_broken_repository:Repository")

    def test_a_missing_attribute_is_named(self):
        error = self.assertRaises(simport.MissingMethodOrFunction, simport.load, "json:Encoder")
        self.assertIn("'Encoder'", str(error))

    def test_an_incomplete_name_is_refused(self):
        for target in ("json", "", ":loads"):
            self.assertRaises(simport.MissingModule, simport.load, target)
        self.assertRaises(simport.MissingMethodOrFunction, simport.load, "json:")

    def test_a_folder_before_the_module_is_refused_with_the_remedy(self):
        error = self.assertRaises(simport.ImportFailed, simport.load, "/srv/plugins|ours:Repository")
        self.assertIn("PYTHONPATH", str(error))
        self.assertNotIn("/srv/plugins", sys.path)
