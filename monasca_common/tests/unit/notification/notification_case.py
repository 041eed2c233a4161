# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests of the service, for each database and any Kafka: methods, their actions, and the ledger."""

import sqlalchemy as sa

from monasca_common.alarms.notification_methods import NotificationMethod, NotificationMethods
from monasca_common.storage.sql import tables
from monasca_common.tests.unit.notification.receivers import HttpReceiver

TENANT, DEFINITION = "t1", "d1"


class NotificationCase:
    """A mixin for a case with ``self.alarms_database``."""

    def setUp(self):
        super().setUp()
        self.actions = 0

    def receiver(self, **named):
        made = HttpReceiver(**named)
        self.addCleanup(made.close)
        return made

    def method(self, address, state="ALARM", *, kind="WEBHOOK", tenant=TENANT, definition=DEFINITION):
        """Create a method that is notified when an alarm of the definition enters this state, and return its id."""
        self.actions += 1
        made = NotificationMethods(self.alarms_database).create(
            tenant, NotificationMethod(f"method {self.actions}", kind, address), 1
        )
        row = {"definition_id": definition, "state": state, "position": self.actions, "method_id": made.id}
        self.alarms_database.write(lambda connection: connection.execute(tables.alarm_action.insert().values(row)))
        return made.id

    def ledger(self, *columns):
        """Return these columns of each row, in order of alarm and method."""
        table = tables.notification
        statement = sa.select(*(table.c[name] for name in columns)).order_by(table.c.alarm_id, table.c.method_id)
        return [tuple(row) for row in self.alarms_database.rows(statement)]


def counts(families):
    """Return the total of each counter above 0, by its name without the prefix."""
    totals = {}
    for family in families:
        total = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
        if total:
            totals[family.name.removeprefix("monasca_notification_")] = total
    return totals


def ids(receiver):
    """Return the ids of the received notifications, in order."""
    return [headers["Idempotency-Key"] for _, headers, _ in list(receiver.requests)]
