# SPDX-License-Identifier: Apache-2.0
import fixtures
import sqlalchemy as sa

from monasca_common.alarms import outbox
from monasca_common.alarms.database import AlarmsDatabase
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestOutbox(SqliteTestCase):
    def test_who_removes_a_row_late_removes_no_other_that_got_its_number(self):
        database = AlarmsDatabase(self.database.settings)
        self.addCleanup(database.close)

        def put(message_id):
            return database.write(
                lambda connection: outbox.put(connection, outbox.TRANSITION, "a", message_id, b"{}", 5)
            )

        first = put(b"1")
        outbox.remove(database, [first])  # by another request, which published it too
        second = put(b"2")
        self.assertEqual(first.number, second.number)
        outbox.remove(database, [first])
        self.assertEqual([b"2"], [row.message_id for row in database.rows(sa.select(tables.alarm_outbox))])
        outbox.remove(database, [first, second])
        outbox.remove(database, [])
        self.assertEqual([], database.rows(sa.select(tables.alarm_outbox)))

    def test_what_is_discarded_is_logged(self):
        logged = self.useFixture(fixtures.FakeLogger())
        database = AlarmsDatabase(self.database.settings)
        self.addCleanup(database.close)
        database.write(lambda connection: outbox.put(connection, "notification", "a", b"i", b"{}", 5))
        for before_ms, left in ((5, 1), (6, 0)):
            database.write(lambda connection, until_ms=before_ms: outbox.discard(connection, "notification", until_ms))
            self.assertEqual(left, len(database.rows(sa.select(tables.alarm_outbox))))
        self.assertEqual(1, logged.output.count("1 messages of kind notification"))

    def test_what_is_told_of_one_alarm_is_never_overtaken_however_much_others_left(self):
        database = AlarmsDatabase(self.database.settings)
        self.addCleanup(database.close)

        def put(key):
            return database.write(lambda connection: outbox.put(connection, outbox.TRANSITION, key, b"i", b"{}", 5))

        others = [put(f"other {number}") for number in range(3)]
        earlier, due = put("a"), put("a")
        oldest = outbox.oldest(database, before_ms=6, limit=2, due=due)
        self.assertEqual([earlier.number, due.number], [row.number for row in oldest])
        oldest = outbox.oldest(database, before_ms=6, limit=1, due=due)
        self.assertEqual([earlier.number], [row.number for row in oldest])
        oldest = outbox.oldest(database, before_ms=6, limit=3, due=due)
        self.assertEqual([others[0].number, earlier.number, due.number], [row.number for row in oldest])
