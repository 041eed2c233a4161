# SPDX-License-Identifier: Apache-2.0
import sqlite3

import sqlalchemy as sa

from monasca_common.alarms.database import Slice
from monasca_common.alarms.definition_tables import AlarmDefinitions
from monasca_common.alarms.definitions import DefinitionFilter
from monasca_common.tests.unit.api.alarm_definitions_contract import AlarmDefinitionsContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestAlarmDefinitions(AlarmDefinitionsContract, SqliteTestCase):
    def test_a_filter_by_dimensions_reads_no_other_tenants_sub_expressions(self):
        asked = []

        def note(_connection, _cursor, statement, parameters, _context, _executemany):
            asked.append((statement, parameters))

        sa.event.listen(sa.Engine, "before_cursor_execute", note)
        self.addCleanup(sa.event.remove, sa.Engine, "before_cursor_execute", note)
        which = DefinitionFilter("t", dimensions={"host": ("a",)})
        list(AlarmDefinitions(self.alarms_database).iter_found(which, (), Slice(100)))
        (found,) = [each for each in asked if "alarm_sub_expression" in each[0]]
        connection = sqlite3.connect(f"{self.folder}/monasca.sqlite")
        self.addCleanup(connection.close)
        plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {found[0]}", found[1]))
        self.assertIn("alarm_sub_expression_by_definition", plan)
        self.assertNotIn("SCAN alarm_sub_expression", plan)
