# SPDX-License-Identifier: Apache-2.0
"""A job's database, on SQLite."""

import fixtures
import sqlalchemy as sa

from monasca_common.pipeline.source.offset_store import OffsetRange, OffsetStore, Source
from monasca_common.tests.unit.pipeline.pipeline_case import PipelineCase
from monasca_common.tests.unit.storage.sqlite_case import copy_schema

SOURCE = Source("spark-aggregate", "metrics", "first-id")


class DatabaseCase(PipelineCase):
    def setUp(self):
        super().setUp()
        path = f"{self.useFixture(fixtures.TempDir()).path}/pipeline.sqlite"
        copy_schema(path)
        self.url = f"sqlite:///{path}"
        self.offset_store = OffsetStore(self.url)

    def rows(self, table, *columns):
        with self.offset_store.reading() as connection:
            return connection.execute(sa.select(*(table.c[name] for name in columns))).all()

    def advance(self, *ranges, source=SOURCE):
        with self.offset_store.advance(source, [OffsetRange(*each) for each in ranges]):
            pass
