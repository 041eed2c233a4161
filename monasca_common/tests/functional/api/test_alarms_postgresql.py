# SPDX-License-Identifier: Apache-2.0
"""Definitions, alarms and notification methods in a real PostgreSQL."""

from monasca_common.tests.functional.storage.postgresql_case import PostgresqlTestCase
from monasca_common.tests.unit.api.alarm_definitions_contract import AlarmDefinitionsContract
from monasca_common.tests.unit.api.alarms_contract import AlarmsContract
from monasca_common.tests.unit.api.notification_methods_contract import NotificationMethodsContract
from monasca_common.tests.unit.api.notifications_contract import NotificationsContract
from monasca_common.tests.unit.api.silences_contract import SilencesContract


class TestNotificationMethodsInPostgresql(NotificationMethodsContract, PostgresqlTestCase):
    pass


class TestAlarmDefinitionsInPostgresql(AlarmDefinitionsContract, PostgresqlTestCase):
    pass


class TestAlarmsInPostgresql(AlarmsContract, PostgresqlTestCase):
    pass


class TestSilencesInPostgresql(SilencesContract, PostgresqlTestCase):
    pass


class TestNotificationsInPostgresql(NotificationsContract, PostgresqlTestCase):
    pass
