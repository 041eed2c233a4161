# SPDX-License-Identifier: Apache-2.0
"""What an older program left is evaluated once, and what is forgotten costs little."""

from monasca_common.storage import StorageSettings, open_storage
from monasca_common.storage.sql import schema, tables
from monasca_common.tests.unit.pipeline.database_case import DatabaseCase
from monasca_common.tests.unit.pipeline.evaluate.rounds_contract import RoundsContract, look


class MigratedDelayTest(RoundsContract, DatabaseCase):
    """An evaluator with ``delay_seconds`` 120 (or 0), whose database comes from before step 0020."""

    def setUp(self):
        super().setUp()
        self.settings = StorageSettings("sqlite", self.url)
        self.open_alarms()

    def fill_history(self): ...

    def downgraded_and_upgraded(self):
        """What 0019 -> 0020 does with the evaluator's row: the column is made anew with its default."""
        with schema.engine(self.url, to_write=True).begin() as connection:
            connection.exec_driver_sql("ALTER TABLE alarm_evaluator DROP COLUMN delay")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0019'")
        open_storage(self.settings).upgrade()

    def test_windows_are_decided_once_over_the_upgrade_with_a_long_delay(self):
        alarms = self.alarms("avg(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 0.0, 0), (61_000, 2.0, 0), (121_000, 0.0, 0)])
        self.rounds(alarms, delay_ms=120_000).run(look(0, 190_000))  # decides [0, 60) alone, due at 180
        self.downgraded_and_upgraded()
        rounds = self.rounds(alarms, delay_ms=120_000)
        rounds.finish()
        rounds.run(look(190_000, 320_000))  # [60, 120) is due at 240, [120, 180) at 300
        told = [(each.new, each.time_ms) for each in self.told(alarms.ids[0])]
        self.assertEqual([("OK", 180_000), ("ALARM", 240_000), ("OK", 300_000)], told)

    def test_windows_are_decided_once_over_the_upgrade_without_a_delay(self):
        alarms = self.alarms("avg(m) > 1")
        alarms.arrive(alarms.ids[0], [(1000, 0.0, 0)])
        self.rounds(alarms, delay_ms=0).run(look(0, 130_000))  # [60, 120) was empty: once
        self.assertEqual(1, self.rows(tables.sub_alarm)[0].empty_evaluations)
        self.downgraded_and_upgraded()
        rounds = self.rounds(alarms, delay_ms=0)
        rounds.finish()
        rounds.run(look(130_000, 140_000))  # no window ends
        self.assertEqual(1, self.rows(tables.sub_alarm)[0].empty_evaluations)


for _name in dir(RoundsContract):
    if _name.startswith("test_"):
        setattr(MigratedDelayTest, _name, None)
