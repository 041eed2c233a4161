# SPDX-License-Identifier: Apache-2.0
"""The daemon from which Spark forks its Python workers."""

import gc
import importlib
import sys
import zipfile
from unittest import mock

import fixtures
from oslotest import base

from monasca_common.pipeline import worker_daemon


class PrepareTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.useFixture(fixtures.MonkeyPatch("sys.path", [*sys.path, f"{self.folder}/shipped.jar"]))
        self.useFixture(fixtures.MonkeyPatch("sys.path_hooks", list(sys.path_hooks)))
        self.useFixture(fixtures.MonkeyPatch("sys.path_importer_cache", {}))
        self.addCleanup(gc.unfreeze)
        self.addCleanup(gc.set_threshold, *gc.get_threshold())
        with zipfile.ZipFile(f"{self.folder}/shipped.jar", "w") as archive:
            archive.writestr("shipped_by_spark.py", "FOUND = True")

    def test_an_archive_is_read_once_even_if_its_cache_is_invalidated(self):
        """Spark invalidates the import caches before each task."""
        worker_daemon.prepare()
        self.addCleanup(sys.modules.pop, "shipped_by_spark", None)
        self.assertTrue(importlib.import_module("shipped_by_spark").FOUND)
        with mock.patch("zipimport._read_directory") as read:
            importlib.invalidate_caches()
        read.assert_not_called()

    def test_imported_modules_are_excluded_from_garbage_collection(self):
        worker_daemon.prepare()
        self.assertGreater(gc.get_freeze_count(), 0)
