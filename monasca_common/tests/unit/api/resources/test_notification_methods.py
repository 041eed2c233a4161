# SPDX-License-Identifier: Apache-2.0
from monasca_common.tests.unit.api.api_case import ApiCase
from monasca_common.tests.unit.api.notification_methods_contract import PATH, NotificationMethodsContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestNotificationMethods(NotificationMethodsContract, SqliteTestCase):
    pass


class TestWithoutADatabaseOfAlarms(ApiCase):
    def test_it_is_said(self):
        for method in ("GET", "DELETE"):
            answer = self.client.simulate_request(method, f"{PATH}/a")
            self.assertEqual(501, answer.status_code)
