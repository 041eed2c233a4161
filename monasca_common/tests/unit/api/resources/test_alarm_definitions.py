# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.alarm_definitions_contract import AlarmDefinitionsContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestAlarmDefinitions(AlarmDefinitionsContract, SqliteTestCase):
    pass
