# SPDX-License-Identifier: Apache-2.0
"""What tests of the service share, over a database of either kind and any Kafka: methods, their actions, the ledger."""

import sqlalchemy as sa

from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.receivers import HttpReceiver

TENANT, DEFINITION = "t1", "d1"


class NotificationCase:
    """Mixed into a case with ``self.alarms_database``."""

    def setUp(self):
        super().setUp()
        self.actions = 0

    def receiver(self, **named):
        made = HttpReceiver(**named)
        self.addCleanup(made.close)
        return made

    def method(self, address, state="ALARM", *, kind="WEBHOOK", tenant=TENANT, definition=DEFINITION):
        """The id of a method that the definition's alarms tell of this state."""
        self.actions += 1
        made = NotificationMethods(self.alarms_database).create(
            tenant, NotificationMethod(f"method {self.actions}", kind, address), 1
        )
        row = {"definition_id": definition, "state": state, "position": self.actions, "method_id": made.id}
        self.alarms_database.write(lambda connection: connection.execute(tables.alarm_action.insert().values(row)))
        return made.id

    def ledger(self, *columns):
        """These columns of each row, in order of alarm and method."""
        table = tables.notification
        statement = sa.select(*(table.c[name] for name in columns)).order_by(table.c.alarm_id, table.c.method_id)
        return [tuple(row) for row in self.alarms_database.rows(statement)]


def ids(receiver):
    """The ids of what was received, in order."""
    return [headers["Idempotency-Key"] for _, headers, _ in list(receiver.requests)]
