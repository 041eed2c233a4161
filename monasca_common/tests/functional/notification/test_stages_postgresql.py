# SPDX-License-Identifier: Apache-2.0
"""The contract of the stages in a real PostgreSQL."""

import threading

from monasca_common.notification.notification import notification_of
from monasca_common.tests.functional.notification.test_ledger_postgresql import WAITING_FOR_A_LOCK
from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.periodic import periodic
from monasca_common.tests.unit.notification import test_stages_sqlite
from monasca_common.tests.waiting import PATIENCE_SECONDS, Waiting


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class SilencesInPostgresqlTest(test_stages_sqlite.SilencesContract, Waiting, PostgresqlTestCase):
    def test_a_silence_withholds_nothing_after_its_concurrent_deletion(self):
        method = self.method()
        made = self.silence({}, test_stages_sqlite.HOUR_MS)
        changed = self.alarm("a1")
        arguments = (
            notification_of(changed, method),
            self.methods.get("t1", method),
            *self.pipeline.facts(changed, [method]),
        )
        planning = threading.Thread(target=self.pipeline.defers, args=arguments, daemon=True)
        deleting, seen = self.session(), self.session()
        with deleting.transaction():
            deleting.execute("DELETE FROM silence WHERE id = %s", (made.id,))
            planning.start()
            self.wait_until(lambda: seen.execute(WAITING_FOR_A_LOCK).fetchone() == (1,), "a plan that waits")
        planning.join(PATIENCE_SECONDS)
        self.wait()
        self.assertEqual((["a1:ALARM"], []), (self.sent(), self.held()))


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class RepeatsInPostgresqlTest(test_stages_sqlite.RepeatsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; the normal run contains SilencesInPostgresqlTest")
class GroupsInPostgresqlTest(test_stages_sqlite.GroupsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class LimitsInPostgresqlTest(test_stages_sqlite.LimitsContract, PostgresqlTestCase):
    pass


@periodic("second dialect; SQLite passes the same contract in the unit tests")
class InhibitionInPostgresqlTest(test_stages_sqlite.InhibitionContract, PostgresqlTestCase):
    pass
