# SPDX-License-Identifier: Apache-2.0
from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import PLAIN, AddressKeys
from monasca_common.tests.unit.api.notifications_contract import PATH, NotificationsContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestNotifications(NotificationsContract, SqliteTestCase):
    keys = AddressKeys([Fernet.generate_key().decode()])

    def test_a_notification_is_returned_without_the_key_of_its_address(self):
        self.record()
        self.keys = PLAIN
        self.client = self.application()
        [shown] = self.elements(PATH)
        self.assertEqual("…", shown["notification_method"]["address"])
