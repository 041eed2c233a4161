# SPDX-License-Identifier: Apache-2.0
"""A job's database, on SQLite."""

import fixtures
import sqlalchemy as sa

from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.storage import StorageSettings, open_storage
from monasca_common.tests.unit.pipeline.pipeline_case import PipelineCase

SOURCE = Source("spark-aggregate", "metrics", "first-id")


class DatabaseCase(PipelineCase):
    def setUp(self):
        super().setUp()
        self.url = f"sqlite:///{self.useFixture(fixtures.TempDir()).path}/pipeline.sqlite"
        open_storage(StorageSettings("sqlite", self.url)).upgrade()
        self.offset_store = OffsetStore(self.url)

    def rows(self, table, *columns):
        with self.offset_store.reading() as connection:
            return connection.execute(sa.select(*(table.c[name] for name in columns))).all()

    def advance(self, *ranges, source=SOURCE):
        with self.offset_store.advance(source, [OffsetRange(*each) for each in ranges]):
            pass
