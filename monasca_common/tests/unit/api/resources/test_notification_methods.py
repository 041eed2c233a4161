# SPDX-License-Identifier: Apache-2.0
from cryptography.fernet import Fernet

from monasca_common.alarms.address_keys import AddressKeys
from monasca_common.tests.unit.api.notification_methods_contract import EMAIL, PATH, NotificationMethodsContract
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase


class TestNotificationMethods(NotificationMethodsContract, SqliteTestCase):
    pass


class TestEncryptedNotificationMethods(NotificationMethodsContract, SqliteTestCase):
    keys = AddressKeys([Fernet.generate_key().decode()])

    def test_a_missing_encryption_key_is_answered_503(self):
        made = self.ask("POST", PATH, EMAIL, 201)
        self.keys = AddressKeys([Fernet.generate_key().decode()])
        self.client = self.application()
        self.assertEqual(
            "the database is unavailable: repeat the request later",
            self.message("GET", f"{PATH}/{made['id']}", None, 503),
        )
