# SPDX-License-Identifier: Apache-2.0
from monasca_common.storage import StorageSettings
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.evaluate.rounds_contract import RoundsContract


class SqliteRoundsTest(RoundsContract, DatabaseCase):
    def setUp(self):
        super().setUp()
        self.settings = StorageSettings("sqlite", self.url)
        self.open_alarms()

    def fill_history(self):
        """SQLite has no partitions."""
