# SPDX-License-Identifier: Apache-2.0
from monasca_common.pipeline.source.offset_store import OffsetStore
from monasca_common.storage.sql import tables
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.unit.pipeline.evaluate.rounds_contract import DAY_MS, RoundsContract, look


class PostgresqlRoundsTest(RoundsContract, PostgresqlTestCase):
    def setUp(self):
        super().setUp()
        self.settings = self.database.settings
        self.offset_store = OffsetStore(self.settings.connection)
        self.open_alarms()

    def fill_history(self):
        """The partition of the test's times."""
        bounds = f"FOR VALUES FROM (0) TO ({DAY_MS})"
        self.session().execute(f"CREATE TABLE alarm_history_19700101 PARTITION OF alarm_history {bounds}")

    def test_history_without_a_partition_of_its_day_is_left_to_the_persister(self):
        alarms = self.alarms()
        alarms.arrive(alarms.ids[0], [(1000, 2.0, 0)])
        self.rounds(alarms).run(look(0, 2000))
        self.assertEqual((1, 0), (len(self.rows(tables.alarm_outbox)), len(self.rows(tables.alarm_history))))
