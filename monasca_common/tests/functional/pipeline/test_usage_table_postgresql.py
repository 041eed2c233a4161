# SPDX-License-Identifier: Apache-2.0
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.unit.pipeline.aggregate.test_usage_table import GoldenMerge


class PostgresqlGoldenMergeTest(GoldenMerge, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.offset_store = OffsetStore(self.database.settings.connection)
